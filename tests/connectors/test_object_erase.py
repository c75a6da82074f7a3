"""Erase in an object store: the key is in no object, and no machine that had copies of its runs brings it back."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.engine.place import SCRATCH
from hailstorm.faults import inject
from hailstorm.history.erase import erase
from hailstorm.history.opened import open_ledger
from hailstorm.history.verify import verify
from hailstorm.ledger.cache import cache_of_this_machine
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import State
from tests.connectors.servers.s3 import BUCKET, S3Server, known_here
from tests.unit.word_ledger import WordLedger

pytest.importorskip("obstore")

KEY = "ada-lovelace-1815"
WANTED = {"word": pa.array([KEY])}

_places = itertools.count(1)


class Killed(BaseException):
    """As if the process were gone."""


@contextlib.contextmanager
def on_machine(folder: Path) -> Iterator[Path]:
    """This process is on a machine that keeps its copies in this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HAILSTORM_CACHE", str(folder))
        yield folder


@pytest.fixture
def words(s3_server: S3Server, tmp_path: Path) -> Iterator[WordLedger]:
    """Some ticks with the key, a compaction, and what a tick that was killed has left."""
    with known_here(s3_server.environment(), tmp_path / "near"):
        made = WordLedger(f"s3://{BUCKET}/erase {next(_places)}/ledger")
        made.tick({KEY: 1, "rain": 1})
        made.tick({KEY: 2, "hail": 1})
        made.compact()
        made.tick({KEY: 3, "snow": 1})
        made.ledger.store.put(f"{SCRATCH}/1/rows.arrow", KEY.encode())
        yield made


def objects_with_it(words: WordLedger) -> list[str]:
    store = words.ledger.store
    return [file.name for file in store.files("") if KEY.encode() in (store.get(file.name) or b"")]


def copies_with_it(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def states(words: WordLedger) -> dict[int, dict[str, int]]:
    """At every commit, as somebody sees it who opens the ledger now."""
    reader = open_ledger(words.ledger.address)
    found = {}
    for commit in reader.commits():
        state = reader.state("counts", at=commit.commit)
        assert state.of_keys(WANTED).num_rows == (KEY in state.arrow()["word"].to_pylist())
        found[commit.commit] = {row["word"]: row["n"] for row in state.arrow().to_pylist()}
    return found


def copied(words: WordLedger) -> Ledger:
    """This machine has copies of all runs, in its cache and in memory."""
    ledger = Ledger(words.ledger.address)
    for run in ledger.head.runs["counts"]:
        ledger.cache.open("counts", run)
    assert KEY in str(states(words))
    return ledger


def without(words: WordLedger) -> dict[int, dict[str, int]]:
    return {at: {word: n for word, n in of.items() if word != KEY} for at, of in words.at.items() if at}


def test_a_key_is_in_no_object_and_comes_back_from_no_machine(words: WordLedger, tmp_path: Path) -> None:
    with on_machine(tmp_path / "far") as far:
        old = copied(words)
        assert copies_with_it(far)
    mine = copied(words)
    assert not erase(mine, "counts", WANTED, dry_run=True).files and objects_with_it(words)
    report = erase(mine, "counts", WANTED)
    assert objects_with_it(words) == []
    assert any("keeps versions" in sentence for sentence in report.elsewhere)
    assert states(words) == without(words)
    assert copies_with_it(tmp_path / "near") == []
    rows = State(mine, mine.head, "counts").arrow().to_pylist()
    assert {row["word"]: row["n"] for row in rows} == without(words)[4], "for who has had it open, too"
    with on_machine(far):
        assert copies_with_it(far), "nobody could reach it"
        assert states(words) == without(words), "and it is not believed"
        again = Ledger(words.ledger.address)
        assert copies_with_it(far) == [] and again.copies != old.copies
        # A run that goes on from there merges what it has copied.
        words.ledger = again
        words.compact()
        assert states(words)[again.head.commit] == without(words)[4]
    assert verify(Ledger(words.ledger.address)).problems == []


def test_tasks_on_other_machines_begin_with_no_copies_after_an_erasure(words: WordLedger, tmp_path: Path) -> None:
    with on_machine(tmp_path / "far") as far:
        copied(words)
        before = cache_of_this_machine(words.ledger.address, words.ledger.copies)
        erase(words.ledger, "counts", WANTED)
        assert cache_of_this_machine(words.ledger.address, words.ledger.copies) != before
        assert copies_with_it(far) == [] and not before.exists()


@pytest.mark.parametrize("point", ["during-erase", "after-erase"])
def test_an_erasure_that_was_killed_is_finished_by_the_next(words: WordLedger, tmp_path: Path, point: str) -> None:
    with inject(point, Killed()), pytest.raises(Killed):
        erase(words.ledger, "counts", WANTED)
    with on_machine(tmp_path / "far"):  # which copies files that were not replaced yet
        ledger = Ledger(words.ledger.address)
        for run in ledger.head.runs["counts"]:
            ledger.cache.open("counts", run)
        assert ["not finished" in problem.what for problem in verify(ledger).problems] == [True]
    done = CliRunner().invoke(app, ["erase", words.ledger.address, "counts", "--key", KEY, "--yes"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert objects_with_it(words) == []
    with on_machine(tmp_path / "far") as far:
        assert states(words) == without(words)
        assert copies_with_it(far) == []
    assert verify(Ledger(words.ledger.address)).problems == []
