"""Damage: a bit that flips in any file of a ledger is found by `verify`, and nobody is shown anything wrong."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import HailstormError, LedgerError
from hailstorm.history.exporting import export_snapshot
from hailstorm.history.importing import import_snapshot
from hailstorm.history.marks import cuts
from hailstorm.history.opened import open_ledger
from hailstorm.history.snapshots import make_snapshot
from hailstorm.history.verify import verify
from hailstorm.ledger import parts, vacuum
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.letters import letters_table
from hailstorm.ledger.runs import write_rows
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import read_retention
from tests.unit.word_ledger import BEGIN, WordLedger


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WordLedger:
    """A ledger with packs, ticks, single commits, a manifest, a snapshot, an outbox, dead letters and a cursor."""
    patch = pytest.MonkeyPatch()
    for name, value in {"KEEP_LOOSE": 3, "PACK": 6}.items():
        patch.setattr(vacuum, name, value)
    dice = random.Random(3)
    place = WordLedger(tmp_path_factory.mktemp("whole") / "words")
    for number in range(1, 18):
        place.tick({f"word{dice.randrange(9)}": dice.randrange(100) for _ in range(4)})
        if number % 5 == 0:
            place.compact()
    ledger = place.ledger
    letters = write_rows(
        ledger.store, "errors", letters_table([("lines", 0, 3, "lines", "not JSON", b"x")]), ledger.stamp
    )
    rows = write_rows(ledger.store, "outbox/board", place.rows({"word1": 1}), ledger.stamp)
    fields: dict[str, Any] = {"dead_letters": (letters,), "outbox": {"board": (rows,)}, "errors": 1}
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), **fields))
    place.at[ledger.head.commit] = place.at[ledger.head.commit - 1]
    ledger.cursors.store("board", SinkRecord(commit=3))
    make_snapshot(ledger, "monday", 6)
    work = Vacuum(ledger, read_retention("1 second, 1 day: 4 seconds, rest: 1 day"), now=lambda: BEGIN.timestamp() + 60)
    while work.work(whole=True):
        pass
    ledger.write_manifest(ledger.head)
    ledger.cache.clear_after_reboot()
    for run in ledger.head.runs["counts"]:
        ledger.cache.open("counts", run)
    patch.undo()
    return place


# What nobody believes, so that a wrong bit there does no harm: whose the ledger is, who reads it, and which boot of the
# machine the copies are of (another one: they are not read).
COURTESY = {"lease.json", "pins", ".cache/boot"}


def files(root: Path) -> list[Path]:
    """All files of a ledger whose content is believed by somebody, whatever their kind."""
    found = (path for path in root.rglob("*") if path.is_file())
    return sorted(path for path in found if not _is_courtesy(path.relative_to(root)))


def _is_courtesy(path: Path) -> bool:
    return bool(COURTESY & {str(path), *map(str, path.parents)})


def seen(root: Path, place: WordLedger) -> None:
    """Read all that there is; whatever is shown must be right."""
    parts._kept = parts._Kept()  # as another process
    reader = open_ledger(root)
    assert reader.live().commit <= place.ledger.head.commit
    for cut in cuts(Ledger(root), 0, Ledger(root).history().packed):
        assert (cut.now, cut.clock.offsets) == place.ticks[cut.commit]
    for commit in reader.commits():
        rows = reader.state("counts", at=commit.commit).arrow().to_pylist()
        assert {row["word"]: row["n"] for row in rows} == place.at[commit.commit]
        word = next(iter(place.at[commit.commit]))
        one = reader.state("counts", at=commit.commit).of_keys({"word": place.rows({word: 0})["word"].combine_chunks()})
        assert one.to_pylist() == [{"word": word, "n": place.at[commit.commit][word]}]
    assert reader.errors()["reason"].to_pylist() == ["not JSON"]
    assert [one.commit for one in reader.snapshots()] == [6]
    assert reader.cursor("board").commit == 3


def test_a_whole_ledger_is_well(whole: WordLedger) -> None:
    found = verify(Ledger(whole.ledger.root))
    assert found.problems == []
    assert found.commits == len(list(whole.ledger.commits()))
    root = whole.ledger.root
    kinds = {path.relative_to(root).parts[0] for path in files(root)}
    assert kinds >= {"commits", "state", "outbox", "errors", "manifests", "snapshots", "cursors", "history.json"}
    assert {path.suffix for path in files(root / "commits")} == {".json", ".pack", ".ticks"}
    assert list((root / ".cache").rglob("*.arrow"))
    seen(whole.ledger.root, whole)
    assert CliRunner().invoke(app, ["verify", str(whole.ledger.root)]).exit_code == 0


def damaged(path: Path, change: Callable[[bytes], bytes | None]) -> Callable[[], None]:
    """Damage a file; what is given undoes it."""
    before = path.read_bytes()
    after = change(before)
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
    return lambda: path.write_bytes(before) and None


@pytest.mark.slow
def test_a_wrong_bit_anywhere_in_a_file_of_ticks_gives_no_wrong_cut(whole: WordLedger, tmp_path: Path) -> None:
    root = Path(shutil.copytree(whole.ledger.root, tmp_path / "words"))
    path = next((root / "commits").glob("*.ticks"))
    for byte in range(path.stat().st_size):
        undo = damaged(path, lambda data, at=byte: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with contextlib.suppress(LedgerError):
            for cut in cuts(Ledger(root), 0, Ledger(root).history().packed):
                assert (cut.now, cut.clock.offsets) == whole.ticks[cut.commit], byte
        undo()


def test_verify_finds_a_damaged_copy_and_says_that_it_can_go(whole: WordLedger, tmp_path: Path) -> None:
    root = Path(shutil.copytree(whole.ledger.root, tmp_path / "words"))
    path = next((root / ".cache").rglob("*.arrow"))
    damaged(path, flipped(random.Random(1)))
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert result.exit_code == 1
    assert "delete the damaged copies" in result.stderr
    assert "backup" not in result.stderr
    path.unlink()
    assert verify(Ledger(root)).problems == []


def flipped(dice: random.Random) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        place = dice.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << dice.randrange(8))]) + data[place + 1 :]

    return change


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_in_any_file_is_found_and_never_shown(whole: WordLedger, tmp_path: Path, seed: int) -> None:
    root = Path(shutil.copytree(whole.ledger.root, tmp_path / "words"))
    dice = random.Random(seed)
    for path in files(root):
        undo = damaged(path, flipped(dice))
        try:
            found = bool(verify(Ledger(root)).problems)
        except LedgerError:
            found = True
        assert found, path
        # A copy is not needed: the ledger's own file is read instead.
        with contextlib.nullcontext() if ".cache" in path.parts else contextlib.suppress(LedgerError):
            seen(root, whole)
        undo()
    assert verify(Ledger(root)).problems == []


@pytest.mark.parametrize("what", ["missing", "truncated", "empty"])
def test_a_file_that_is_not_whole_is_found(whole: WordLedger, tmp_path: Path, what: str) -> None:
    root = Path(shutil.copytree(whole.ledger.root, tmp_path / "words", ignore=shutil.ignore_patterns(".cache")))
    named = [
        path for path in files(root) if path.parent.name in ("counts", "board", "errors") and path.suffix == ".parquet"
    ]
    for path in named[:: 4 if what == "missing" else 7]:
        change = {"missing": lambda data: None, "truncated": lambda data: data[:-9], "empty": lambda data: b""}[what]
        undo = damaged(path, change)
        problems = verify(Ledger(root)).problems
        assert [problem.file for problem in problems] == [str(path.relative_to(root))]
        assert "commit" in problems[0].affects
        undo()


def test_verify_says_what_is_affected_and_ends_with_one(whole: WordLedger, tmp_path: Path) -> None:
    root = Path(shutil.copytree(whole.ledger.root, tmp_path / "words", ignore=shutil.ignore_patterns(".cache")))
    run = whole.ledger.head.runs["counts"][-1]
    path = root / f"state/counts/{run.id}.parquet"
    damaged(path, lambda data: data[:200] + bytes(255 - byte for byte in data[200:300]) + data[300:])
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert result.exit_code == 1
    assert f"counts from commit {run.seq} on" in result.stdout
    with pytest.raises(HailstormError) as error:
        open_ledger(root).state("counts").arrow()
    assert error.value.code == "HS-LED-033"
    assert open_ledger(root).state("counts", at=6).arrow().num_rows == len(whole.at[6]), "other moments are well"


def test_a_ledger_of_before_checksums_is_read_as_it_was(tmp_path: Path) -> None:
    old = Path(__file__).parents[1] / "data/ledger-format-2"
    root = Path(shutil.copytree(old, tmp_path / "old"))
    assert verify(Ledger(root)).problems == []


def test_an_import_lacks_nothing_although_what_its_first_commit_removed_is_not_in_it(tmp_path: Path) -> None:
    words = WordLedger(tmp_path / "ledger")
    words.tick({"hail": 1})
    words.tick({"rain": 2})
    words.compact()
    make_snapshot(words.ledger, "monday", "latest")
    export_snapshot(words.ledger, "monday", tmp_path / "monday.tar")
    import_snapshot(tmp_path / "monday.tar", tmp_path / "other")
    assert not verify(Ledger(tmp_path / "other")).problems
