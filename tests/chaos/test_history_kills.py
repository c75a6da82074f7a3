"""Commands of the time machine under kill -9: real processes that die at a named point, and the same command again.

After each kill the ledger opens and `verify` finds nothing (but that an erasure is unfinished); the same command once
more gives what an unbroken one gives. Erase, export, import and release need no Spark; rewind, backfill, recompute,
retry and a renaming share one warm JVM and one small world, of which every case gets a copy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any, Protocol

import pytest

from hailstorm.history.exporting import export_snapshot
from hailstorm.history.snapshots import make_snapshot
from hailstorm.history.verify import verify
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import open_ledger
from hailstorm.spouts import Log
from tests.forks import Forks
from tests.jvm import WarmJvm
from tests.unit.word_ledger import BEGIN, WordLedger

pytestmark = pytest.mark.chaos

PATIENCE = 240.0  # seconds: the machine may be busy with other work


class Hailstorm(Protocol):
    def __call__(self, *words: object, folder: Path, fault: str = "", jvm: WarmJvm | None = None, code: int = 0) -> str:
        """Run the command line, and give what it said. With a fault it must die there, else it must end so."""


@pytest.fixture(scope="session")
def hailstorm(forks: Forks) -> Hailstorm:
    def run(*words: object, folder: Path, fault: str = "", jvm: WarmJvm | None = None, code: int = 0) -> str:
        done = subprocess.run(
            [forks.python, "-m", "hailstorm", *map(str, words)],
            cwd=folder,
            env={**os.environ, "HAILSTORM_FAULT": fault, **(jvm.for_the_next() if jvm else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            text=True,
        )
        assert done.returncode == (-signal.SIGKILL if fault else code), done.stdout
        return done.stdout

    return run


def counts(ledger: Path, step: str = "counts", at: int | None = None) -> dict[str, Any]:
    return {row["word"]: row["n"] for row in open_ledger(ledger).state(step, at).arrow().to_pylist()}


def problems(ledger: Path) -> list[str]:
    return [problem.what for problem in verify(Ledger(ledger)).problems]


# Without Spark


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Four commits of word counts, and a snapshot of the third; with the last one the step is removed."""
    made = WordLedger(tmp_path / "ledger")
    made.tick({"hail": 1, "zora": 1})
    made.tick({"rain": 2, "zora": 2})
    made.compact()
    make_snapshot(made.ledger, "monday", "latest")
    made.ledger.commit(next_commit(made.ledger.head, "evolve", made.ledger.epoch, BEGIN, fingerprints={}))
    return tmp_path / "ledger"


@pytest.mark.parametrize("point", ["during-erase:1", "during-erase:3", "after-erase"])
def test_an_erasure_that_is_killed_says_so_and_is_finished_by_the_next(
    hailstorm: Hailstorm, words: Path, point: str
) -> None:
    erase = ("erase", words, "counts", "--key", "zora", "--yes")
    hailstorm(*erase, folder=words.parent, fault=point)
    assert problems(words) == ["an erasure from step 'counts' was not finished: do it again"], (
        "and nothing else is wrong"
    )
    assert counts(words).keys() >= {"hail", "rain"}
    hailstorm(*erase, folder=words.parent)
    assert not problems(words)
    assert [counts(words, at=number) for number in (1, 2, 3)] == [{"hail": 1}, *[{"hail": 1, "rain": 2}] * 2]
    files = (file for file in words.rglob("*") if file.is_file() and file.parent.name != "erased")
    assert not [file for file in files if b"zora" in file.read_bytes()]


@pytest.mark.parametrize("form", ["monday.tar", "monday"])
def test_an_export_that_is_killed_leaves_nothing_that_looks_like_one(
    hailstorm: Hailstorm, words: Path, form: str
) -> None:
    folder = words.parent
    hailstorm("snapshot", "export", words, "monday", form, folder=folder, fault="during-export")
    assert not problems(words)
    hailstorm("snapshot", "import", form, "other", folder=folder, code=1)
    assert not (folder / "other").exists()
    shutil.rmtree(folder / form, ignore_errors=True)
    hailstorm("snapshot", "export", words, "monday", form, folder=folder)
    hailstorm("snapshot", "import", form, "other", folder=folder)
    assert counts(folder / "other") == counts(words, at=3)
    assert not problems(folder / "other")


@pytest.mark.parametrize("point", ["during-import:1", "during-import:3"])
def test_an_import_that_is_killed_is_no_ledger_and_the_next_one_is(
    hailstorm: Hailstorm, words: Path, point: str
) -> None:
    folder = words.parent
    export_snapshot(Ledger(words), "monday", folder / "monday.tar")
    hailstorm("snapshot", "import", "monday.tar", "other", folder=folder, fault=point)
    assert not (folder / "other" / "hailstorm.json").exists()
    hailstorm("snapshot", "import", "monday.tar", "other", folder=folder)
    assert counts(folder / "other") == counts(words, at=3)
    assert not problems(folder / "other")


@pytest.mark.parametrize(("point", "done"), [("before-commit", False), ("after-commit", True), ("after-release", True)])
def test_a_release_that_is_killed_has_happened_or_not(
    hailstorm: Hailstorm, words: Path, point: str, done: bool
) -> None:
    (words / "delta/counts/_delta_log").mkdir(parents=True)
    hailstorm("release", words, "--step", "counts", "--yes", folder=words.parent, fault=point)
    assert not problems(words)
    assert ("counts" not in Ledger(words).head.steps) is done
    if not done:
        hailstorm("release", words, "--step", "counts", "--yes", folder=words.parent)
    assert not Ledger(words).head.runs["counts"]
    assert counts(words, at=3) == {"hail": 1, "zora": 2, "rain": 2}
    assert not problems(words)


# With Spark

APP = """
from pathlib import Path

import hailstorm as hs

HERE = Path(__file__).parent
storm = hs.Topology("storm", ledger="ledger", latency="1 second")
lines = storm.spout("lines", hs.Log("lines"), schema="word STRING")


@lines.bolt(returns="word STRING")
def good(line):
    if line.word == "bad" and not (HERE / "fixed").exists():
        raise ValueError("a bad word")
    return {"word": line.word}


counts = good.fold(NAME, by="word", n=hs.count(), renamed_from=OLD)
counts.sink("board", hs.Sqlite("board.db", table="board"))
MORE
"""
FIRST = APP.replace("NAME", '"counts"').replace("OLD", "None")
MORE = 'good.fold("more", by="word", n=hs.count())'
RUN = ("run", "app.py", "--until", "caught-up", "--set", "max_tick_rows=3")


@pytest.fixture(scope="module")
def world(hailstorm: Hailstorm, tmp_path_factory: pytest.TempPathFactory, jvm: WarmJvm) -> Path:
    """Some ticks, then a second fold is added, then some more ticks. One record is a dead letter."""
    folder = tmp_path_factory.mktemp("history") / "world"
    folder.mkdir()
    log = Log(folder / "lines").create(1)
    (folder / "app.py").write_text(FIRST.replace("MORE", ""))
    log.append([{"word": word} for word in ("hail", "rain", "bad", "hail")])
    hailstorm(*RUN, folder=folder, jvm=jvm)
    (folder / "app.py").write_text(FIRST.replace("MORE", MORE))
    log.append([{"word": word} for word in ("hail", "snow")])
    hailstorm(*RUN, folder=folder, jvm=jvm)
    return folder


def left(folder: Path, step: str = "counts") -> dict[str, Any]:
    """What people can see: both states, the clock, the dead letters and the target."""
    ledger = folder / "ledger"
    live = open_ledger(ledger).live()
    with sqlite3.connect(folder / "board.db") as connection:
        board = dict(connection.execute("SELECT word, n FROM board"))
    return {
        "counts": counts(ledger, step),
        "more": counts(ledger, "more"),
        "clock": live.clock,
        "letters": open_ledger(ledger).errors().num_rows,
        "board": board,
        "coverage": {name if name != step else "counts": spans for name, spans in live.coverage.items()},
    }


CAUGHT_UP = ("run", "app.py", "--until", "caught-up")
COMMANDS = {
    "rewind": ("rewind", "app.py", "--to", "2", "--yes"),
    "rewind of steps": ("rewind", "app.py", "--to", "2", "--steps", "counts", "--yes"),
    "backfill": ("backfill", "app.py", "more"),
    "backfill from files": ("backfill", "app.py", "more", "--from-files", "old.jsonl"),
    "backfill beside": (*RUN, "--backfill", "more"),
    "recompute": (*CAUGHT_UP, "--recompute", "more"),
    "retry": ("errors", "app.py", "--retry"),
    "rename": RUN,
}
# The command is given once for each point, and dies there; then once more. Commits of a second run are counted, too:
# 1 is its beginning, then come its ticks, and then the commit that takes its state over.
CASES = [
    ("rewind", "before-commit:1"),
    ("rewind of steps", "after-write:1 after-commit:2"),
    ("backfill", "after-commit:2"),
    ("backfill from files", "after-commit:2"),
    ("backfill beside", "before-commit:2 after-commit:3"),
    ("recompute", "after-commit:2 after-commit:1"),
    ("retry", "after-commit:1"),
    ("rename", "before-commit:1"),
]
LONG = [
    ("rewind", "after-commit:1"),
    ("backfill", "before-commit:3"),
    ("backfill from files", "before-commit:3"),
    ("retry", "before-commit:1"),
    ("rename", "after-commit:1"),
]


def begun(world: Path, folder: Path, name: str) -> Path:
    """A copy of the world, as it is when the command is given."""
    shutil.copytree(world, folder)
    if name == "retry":
        (folder / "fixed").touch()
    if name == "backfill from files":
        words = ("hail", "rain", "bad")
        rows = [{"_partition": 0, "_offset": n, "_time": BEGIN.isoformat(), "word": w} for n, w in enumerate(words)]
        (folder / "old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Log(folder / "lines").retain(records=3)
    if name in ("backfill beside", "recompute"):  # that there are live ticks, too
        Log(folder / "lines").append([{"word": word} for word in ("rain", "bad", "fog", "hail")])
    if name == "rewind of steps":  # or all would be as before
        (folder / "app.py").write_text(FIRST.replace("MORE", MORE).replace('{"word": line.word}', '{"word": "a"}'))
    if name == "rename":
        renamed = APP.replace("NAME", '"totals"').replace("OLD", '"counts"').replace("MORE", MORE)
        (folder / "app.py").write_text(renamed)
    return folder


@pytest.mark.spark
@pytest.mark.parametrize(("name", "point"), [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in LONG)])
def test_a_command_that_is_killed_and_given_again_does_what_an_unbroken_one_does(
    hailstorm: Hailstorm, world: Path, tmp_path: Path, jvm: WarmJvm, name: str, point: str
) -> None:
    command = COMMANDS[name]
    step = "totals" if name == "rename" else "counts"
    results = []
    for faults in ([], point.split()):
        folder = begun(world, tmp_path / f"world {len(faults)}", name)
        for fault in faults:
            hailstorm(*command, folder=folder, fault=fault, jvm=jvm)
            assert not problems(folder / "ledger")
        hailstorm(*command, folder=folder, jvm=jvm)
        assert not problems(folder / "ledger")
        results.append(left(folder, step))
    unbroken, broken = results
    assert unbroken != left(world) or name == "rename"
    assert broken == unbroken
