"""Loading app files and finding ledgers: every way in which it goes wrong says what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hailstorm.cli.target import find_ledger, load_app
from hailstorm.errors import TopologyError, UsageError
from hailstorm.ledger.ledger import Ledger

HEAD = "import hailstorm as hs\n"


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading an app puts its folder on the path, as for a script; the next test must not find it there."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str, name: str = "app.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_the_only_topology_is_found_under_any_name(write) -> None:
    app = load_app(write(HEAD + "weather = hs.Topology('weather')\nsame = weather"))
    assert app.topology.name == "weather"


def test_a_named_topology_is_chosen(write) -> None:
    path = write(HEAD + "a = hs.Topology('one')\nb = hs.Topology('two')")
    assert load_app(f"{path}:b").topology.name == "two"


def test_several_topologies_are_listed(write) -> None:
    path = write(HEAD + "a = hs.Topology('one')\nb = hs.Topology('two')")
    with pytest.raises(UsageError, match=r"several topologies\n.*app\.py:a, app\.py:b"):
        load_app(path)


def test_a_wrong_name_gets_a_suggestion(write) -> None:
    with pytest.raises(UsageError, match=r"no topology 'strom'\n  Did you mean 'storm'\?"):
        load_app(write(HEAD + "storm = hs.Topology('one')") + ":strom")


def test_an_app_without_a_topology_is_told_how_to_make_one(write) -> None:
    with pytest.raises(UsageError, match=r"has no topology\n.*hs\.Topology\("):
        load_app(write("x = 1"))


def test_a_missing_file_suggests_a_near_one(write) -> None:
    path = write("x = 1", "trending.py")
    with pytest.raises(UsageError, match=r"HS-CLI-001  there is no app file .*\n  Did you mean 'trending.py'\?"):
        load_app(path.replace("trending", "trendin"))


def test_a_syntax_error_shows_the_line(write) -> None:
    with pytest.raises(UsageError, match=r"not valid Python.*\n  at app\.py:2, in def broken\(:"):
        load_app(write("x = 1\ndef broken(:\n"))


def test_an_exception_while_importing_shows_the_users_own_line(write) -> None:
    text = "import json\n\ndef load():\n    return json.loads('{')\n\nload()\n"
    with pytest.raises(UsageError, match=r"JSONDecodeError.*\n  at app\.py:4, in return json\.loads") as caught:
        load_app(write(text))
    assert caught.value.__cause__ is not None


def test_an_app_that_exits_is_an_error_and_not_the_end(write) -> None:
    with pytest.raises(UsageError, match="SystemExit"):
        load_app(write("import sys\nsys.exit(3)"))


def test_a_mistake_in_the_topology_is_shown_as_it_is(write) -> None:
    with pytest.raises(TopologyError, match=r"at app\.py:2"):
        load_app(write(HEAD + "storm = hs.Topology('Not a Name')"))


def test_an_app_may_import_what_lies_beside_it(write) -> None:
    write("NAME = 'from_beside'", "beside_the_app.py")
    assert load_app(write(HEAD + "import beside_the_app as b\ns = hs.Topology(b.NAME)")).topology.name == "from_beside"


def test_an_app_that_is_called_like_a_module_does_not_replace_it(write) -> None:
    load_app(write(HEAD + "s = hs.Topology('one')", "json.py"))
    import json

    assert json.loads("1") == 1


def test_the_ledger_is_beside_the_app_file(write, tmp_path: Path) -> None:
    assert load_app(write(HEAD + "s = hs.Topology('one')")).topology.ledger_address() == str(
        tmp_path / ".hailstorm/one"
    )


def test_a_topology_may_name_its_ledger(write, tmp_path: Path) -> None:
    assert load_app(write(HEAD + "s = hs.Topology('one', ledger='state')")).topology.ledger_address() == str(
        tmp_path / "state"
    )


def test_an_app_that_never_ran_has_no_ledger_yet(write) -> None:
    with pytest.raises(UsageError, match=r"no ledger yet.*\n  Type: hailstorm run"):
        find_ledger(write(HEAD + "s = hs.Topology('one')"))


def test_a_folder_that_is_no_ledger_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no hailstorm\.json"):
        find_ledger(str(tmp_path))
    with pytest.raises(
        UsageError, match=r"there is nothing at .*none'\n  Name an app file .* or the folder of a ledger"
    ):
        find_ledger(str(tmp_path / "none"))


def test_an_app_may_be_told_where_its_ledger_is(write, tmp_path: Path) -> None:
    target, elsewhere = write(HEAD + "s = hs.Topology('one')"), str(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"no ledger yet: nothing at .*elsewhere\n  Type: hailstorm run .* --ledger"):
        find_ledger(target, elsewhere)
    Ledger(elsewhere, create=True)
    assert find_ledger(target, elsewhere) == elsewhere
    assert find_ledger(target, "s3://bucket/one") == "s3://bucket/one"
    with pytest.raises(UsageError, match="HS-CLI-119"):
        find_ledger(elsewhere, elsewhere)
