"""Erase: the key is in no file of the ledger, everything else is as it was, and a crash leaves it right."""

from __future__ import annotations

import contextlib
import errno
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import HailstormError, LedgerError, UsageError
from hailstorm.faults import inject
from hailstorm.history.erase import erase
from hailstorm.history.erasures import erased_hashes, erased_records, unfinished_erasures
from hailstorm.history.exporting import export_snapshot
from hailstorm.history.importing import import_snapshot
from hailstorm.history.opened import open_ledger
from hailstorm.history.scratch import SECOND_RUNS
from hailstorm.history.snapshots import make_snapshot
from hailstorm.history.verify import verify
from hailstorm.ledger.copying import copy_ledger
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.letters import letters_table, with_rows
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import write_rows
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.spouts import Log
from tests.unit.word_ledger import WordLedger

pytestmark = pytest.mark.slow

KEY = "ada-lovelace-1815"


class Killed(BaseException):
    """As if the process were gone."""


@pytest.fixture
def place(tmp_path: Path) -> WordLedger:
    """Twenty ticks with compactions, in which the key comes, changes, goes and comes back; a letter and an outbox."""
    dice = random.Random(5)
    place = WordLedger(tmp_path / "words")
    for number in range(1, 21):
        changes: dict[str, int | None] = {f"word{dice.randrange(30)}": dice.randrange(9) for _ in range(3)}
        if number % 2:
            changes[KEY] = None if number == 9 else number
        place.tick(changes)
        if number % 6 == 0:
            place.compact()
    ledger = place.ledger
    letters = with_rows(
        letters_table(
            [
                ("lines", 0, n, "lines", "bad", json.dumps({"word": word}).encode())
                for n, word in enumerate([KEY, "rain"])
            ]
        ),
        pa.table({"time": [1, 2]}),
    )
    rows = write_rows(ledger.store, "outbox/board", place.rows({KEY: 1, "rain": 2}), ledger.stamp)
    fields: dict[str, Any] = {
        "dead_letters": (write_rows(ledger.store, "errors", letters, ledger.stamp),),
        "outbox": {"board": (rows,)},
    }
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), **fields))
    place.at[ledger.head.commit] = place.at[ledger.head.commit - 1]
    make_snapshot(ledger, "monday", 8)
    for run in ledger.head.runs["counts"]:
        ledger.cache.open("counts", run)
    return place


def holding(root: Path) -> list[str]:
    """The files in which the key can be found, as text. Pages of few rows are not compressed beyond recognition."""
    return [
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ]


def check(place: WordLedger, root: Path | None = None) -> None:
    """Everything but the key is as it was, at every commit."""
    reader = open_ledger(root or place.ledger.root)
    for commit in reader.commits():
        rows = reader.state("counts", at=commit.commit).arrow().to_pylist()
        expected = {word: n for word, n in place.at[commit.commit].items() if word != KEY}
        assert {row["word"]: row["n"] for row in rows} == expected
        one = reader.state("counts", at=commit.commit).of_keys({"word": pa.array([KEY])})
        assert one.num_rows == 0
    assert verify(Ledger(root or place.ledger.root)).problems == []


def wanted() -> dict[str, pa.Array]:
    return {"word": pa.array([KEY])}


def test_a_key_is_erased_from_everywhere_in_the_ledger(place: WordLedger, tmp_path: Path) -> None:
    root = place.ledger.root
    assert holding(root)
    dry = erase(Ledger(root), "counts", wanted(), dry_run=True)
    before = {path: path.read_bytes() for path in root.rglob("*.parquet")}
    report = erase(Ledger(root), "counts", wanted())
    assert holding(root) == []
    assert (report.state, report.outboxes, report.letters) == (dry.state, dry.outboxes, dry.letters)
    assert report.state["counts"] >= 10
    assert report.outboxes == {"board": 1}
    assert report.letters == 1
    check(place)
    changed = [path for path in before if path.exists() and path.read_bytes() != before[path]]
    assert len(changed) == report.files
    assert open_ledger(root).errors()["raw"].to_pylist() == [b'{"word": "rain"}']
    assert open_ledger(root).life("counts", word=KEY).arrow().num_rows == 0
    assert erased_hashes(place.ledger.store, {"counts"}) == {int(hash_columns([pa.array([KEY])], 1)[0])}
    # It is as if it had never been: erasing it again finds nothing, and the ledger goes on.
    assert erase(Ledger(root), "counts", wanted()).files == 0
    again = WordLedger.__new__(WordLedger)
    again.ledger, again.at, again.ticks = Ledger(root), place.at, place.ticks
    again.tick({KEY: 1, "rain": 5})
    again.compact()
    state = {row["word"]: row["n"] for row in open_ledger(root).state("counts").arrow().to_pylist()}
    assert (state[KEY], state["rain"]) == (1, 5)
    # What is carried elsewhere is whole, too.
    export_snapshot(Ledger(root), "monday", tmp_path / "monday.tar")
    import_snapshot(tmp_path / "monday.tar", tmp_path / "elsewhere")
    assert verify(Ledger(tmp_path / "elsewhere")).problems == []


@pytest.mark.parametrize("finished", [True, False])
def test_what_is_taken_elsewhere_knows_of_erasures(place: WordLedger, tmp_path: Path, finished: bool) -> None:
    """An audit there must leave the keys out, and an erasure that was killed must not be forgotten."""
    root, copy = place.ledger.root, tmp_path / "copy"
    copy_ledger(Ledger(root), str(copy))
    with inject("after-erase", Killed()) if not finished else contextlib.nullcontext(), contextlib.suppress(Killed):
        erase(Ledger(root), "counts", wanted())
    copy_ledger(Ledger(root), str(copy))
    export_snapshot(Ledger(root), "monday", tmp_path / "monday.tar")
    import_snapshot(tmp_path / "monday.tar", tmp_path / "imported")
    export_snapshot(Ledger(root), "monday", tmp_path / "exported")
    for elsewhere in (copy, tmp_path / "imported", tmp_path / "exported"):
        store = Ledger(elsewhere).store
        assert erased_hashes(store, {"counts"}) == erased_hashes(place.ledger.store, {"counts"}) != set()
        assert bool(unfinished_erasures(store)) != finished
        assert holding(elsewhere) == []
        erase(Ledger(elsewhere), "counts", wanted())
        assert unfinished_erasures(store) == []
    with pytest.raises(LedgerError, match=r"HS-LED-037.*gone its own way"):
        copy_ledger(Ledger(root), str(copy))


def test_a_copy_loses_a_key_also_from_files_that_are_as_long_as_before(
    place: WordLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = place.ledger.root, tmp_path / "copy"
    copy_ledger(Ledger(root), str(copy))
    erase(Ledger(root), "counts", wanted())
    sizes = {file.name: file.bytes for file in Ledger(root).store.files("state")}
    known = LocalStore.size
    monkeypatch.setattr(LocalStore, "size", lambda store, name: sizes.get(name) or known(store, name))
    copy_ledger(Ledger(root), str(copy))
    assert holding(copy) == []


def test_columns_of_the_same_name_and_another_type_do_not_stop_an_erasure(place: WordLedger) -> None:
    """Elsewhere `word` is a number, or a list: what cannot be the key is not it, and what can be is."""
    ledger = place.ledger
    for column in ([1, 1815], [[KEY], []], [True, False], [KEY.encode(), b""]):
        rows = pa.table({"word": column})
        letters = with_rows(letters_table([("lines", 0, n, "lines", "bad", b"") for n in range(2)]), rows)
        fields: dict[str, Any] = {
            "dead_letters": (write_rows(ledger.store, "errors", letters, ledger.stamp),),
            "outbox": {"other": (write_rows(ledger.store, "outbox/other", rows, ledger.stamp),)},
        }
        ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), **fields))
    report = erase(Ledger(ledger.root), "counts", {"word": pa.array([KEY, "1815"])})
    assert report.outboxes == {"board": 1, "other": 2}, "the number 1815, and the key as bytes"
    assert report.letters == 3


def test_a_damaged_file_is_found_after_an_erasure_as_before(place: WordLedger) -> None:
    root = place.ledger.root
    erase(Ledger(root), "counts", wanted())
    dice = random.Random(8)
    paths = [path for path in root.rglob("*.parquet") if b"hailstorm-erased" in path.read_bytes()]
    assert len(paths) > 5
    for path in paths:
        data = path.read_bytes()
        for _ in range(4):
            at = dice.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :])
            assert [problem.file for problem in verify(Ledger(root)).problems] == [str(path.relative_to(root))]
        path.write_bytes(data)


def test_a_second_run_that_was_killed_does_not_bring_the_key_back(place: WordLedger) -> None:
    root = place.ledger.root
    inner = WordLedger(root / SECOND_RUNS / "counts-1")
    inner.tick({KEY: 1})
    erase(Ledger(root), "counts", wanted(), dry_run=True)
    assert any(name.startswith(SECOND_RUNS) for name in holding(root))
    erase(Ledger(root), "counts", wanted())
    assert holding(root) == []


def test_a_column_of_that_name_of_something_else_is_left_alone(place: WordLedger) -> None:
    ledger = place.ledger
    rows = write_rows(ledger.store, "outbox/numbers", pa.table({"word": [1, 2]}), ledger.stamp)
    fields = {"outbox": {"numbers": (rows,)}}
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), **fields))
    assert erase(Ledger(ledger.root), "counts", wanted()).outboxes == {"board": 1}


@pytest.mark.parametrize("point", ["during-erase", "after-erase"])
def test_a_crash_leaves_a_ledger_that_is_right_and_says_what_to_do(place: WordLedger, point: str) -> None:
    root = place.ledger.root
    with inject(point, Killed()), pytest.raises(Killed):
        erase(Ledger(root), "counts", wanted())
    problems = verify(Ledger(root)).problems
    assert ["was not finished" in problem.what for problem in problems] == [True]
    reader = open_ledger(root)
    for commit in reader.commits():
        rows = {row["word"]: row["n"] for row in reader.state("counts", at=commit.commit).arrow().to_pylist()}
        rows.pop(KEY, None)
        assert rows == {word: n for word, n in place.at[commit.commit].items() if word != KEY}
    erase(Ledger(root), "counts", wanted())
    assert holding(root) == []
    check(place)


def test_a_disk_that_fills_up_halfway_is_told_and_the_rest_is_done_later(place: WordLedger) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        inject("during-erase", full),
        pytest.raises(LedgerError, match="HS-LED-012  the ledger cannot be written: No sp"),
    ):
        erase(Ledger(place.ledger.root), "counts", wanted())
    assert holding(place.ledger.root)
    erase(Ledger(place.ledger.root), "counts", wanted())
    assert holding(place.ledger.root) == []
    check(place)


def test_a_running_topology_and_a_wrong_step_are_refused(place: WordLedger) -> None:
    root = place.ledger.root
    with pytest.raises(LedgerError, match="no step 'count'"):
        erase(Ledger(root), "count", wanted())
    before = holding(root)
    lease = Lease(place.ledger.store)
    lease._me.pid, lease._me.born = 1, 0
    lease._me.host = "elsewhere"
    lease.beat()
    with pytest.raises(LedgerError, match="is running on elsewhere"):
        erase(Ledger(root), "counts", wanted())
    assert holding(root) == before


def test_erase_on_the_command_line(place: WordLedger) -> None:
    root = str(place.ledger.root)
    refused = CliRunner().invoke(app, ["erase", root, "counts", "--key", KEY], input="n\n")
    assert refused.exit_code == 1
    assert holding(place.ledger.root)
    dry = CliRunner().invoke(app, ["erase", root, "counts", "--key", KEY, "--dry-run"])
    assert "rows would be erased" in dry.stdout
    assert holding(place.ledger.root)
    done = CliRunner().invoke(app, ["erase", root, "counts", "--key", KEY, "--yes", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["letters"] == 1
    assert holding(place.ledger.root) == []
    none = CliRunner().invoke(app, ["erase", root, "counts", "--key", KEY, "--yes"])
    assert "has no such key" in none.stdout
    wrong = CliRunner().invoke(app, ["erase", root, "counts", "--key", "wrod=x", "--yes"])
    assert isinstance(wrong.exception, HailstormError)
    assert State(place.ledger, place.ledger.newest(), "counts").arrow().num_rows


APP = """
import hailstorm as hs

storm = hs.Topology("words", ledger="words")
lines = storm.spout("lines", hs.Log("log"), schema="word STRING")
lines.fold("counts", by="word", n=hs.count())
"""


def test_embedded_logs_lose_the_records_too_when_somebody_says_so(place: WordLedger) -> None:
    folder = place.ledger.root.parent
    (folder / "app.py").write_text(APP)
    log = Log(folder / "log")
    log.append([{"word": KEY}, {"word": "rain"}, "no JSON", {"word": KEY, "n": 1}], partition=0)
    words = ["erase", str(folder / "app.py"), "counts", "--key", KEY, "--logs"]
    said = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
    assert json.loads(said.stdout)["logs"] == {"lines": 2}
    assert any("/log/" in f"/{name}" for name in holding(folder))
    with inject("after-erase", RuntimeError("the power is gone")):
        assert isinstance(CliRunner().invoke(app, [*words, "--yes"]).exception, RuntimeError)
    assert list(holding(folder / "log")) == []
    said = CliRunner().invoke(app, [*words, "--yes"])
    assert said.exit_code == 0, said.output
    assert [name for name in holding(folder) if not name.startswith("words/erased")] == []
    assert [offset for batch in log.read(0, 0, 4) for offset in batch.column("offset").to_pylist()] == [1, 2]
    assert erased_records(place.ledger.store) == {"lines": 2}
    check(place)
    words[1] = str(place.ledger.root)
    assert isinstance(CliRunner().invoke(app, [*words, "--yes"]).exception, UsageError)
