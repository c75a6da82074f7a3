"""Vacuum under kill -9: whatever was held is there and right, and what is kept can be read.

One ledger lives through all kills. A reader holds a pin on a commit, a snapshot names another one, and two sinks are
behind, each at a place of its own.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from hailstorm.ledger.commit import Commit, stamp_of
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.pins import Snapshot
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.runs import run_name
from tests.chaos.vacuum_process import KEYS, LETTER_EVERY, SINKS, SPOUT, STEP
from tests.forks import Forks

pytestmark = pytest.mark.chaos

SCRIPT = Path(__file__).parent / "vacuum_process.py"
POINTS = ("during-packing", "during-vacuum", "during-deletion", "during-compaction", "before-commit", "after-commit")


class Place:
    """The ledger, what holds on to it, and the processes that are killed on it."""

    def __init__(self, root: Path, forks: Forks) -> None:
        self.root, self.forks, self.chance = root, forks, random.Random(5)
        self.cursors = dict.fromkeys(SINKS, 0)
        self.delivered = dict.fromkeys(SINKS, 0)  # ticks
        self.run(20)
        self.ledger = Ledger(root)
        kept = [commit.commit for commit in self.ledger.commits()]
        self.snapshot, self.pinned = kept[5], kept[10]
        self.ledger.store.put("snapshots/old.json", msgspec.json.encode(Snapshot(self.snapshot)))

    def run(self, ticks: int, fault: str = "") -> int:
        process = self.start(ticks, fault, self.forks.python)
        said = process.communicate(timeout=120)[0]
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        return process.returncode

    def start(self, ticks: int, fault: str = "", python: str = sys.executable) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [python, str(SCRIPT), str(self.root), str(ticks)],
            env={**os.environ, "HAILSTORM_FAULT": fault},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def deliver(self) -> None:
        """Both sinks get on a little, the second one less: they stay behind."""
        for place, sink in enumerate(SINKS):
            waiting = [commit for commit in self.ledger.commits(self.cursors[sink]) if sink in commit.outbox]
            self._deliver(sink, waiting[: self.chance.randrange(len(waiting) // (4 + 8 * place) + 1)])

    def deliver_everything(self) -> None:
        for sink in SINKS:
            self._deliver(sink, list(self.ledger.commits(self.cursors[sink])))

    def _deliver(self, sink: str, commits: list[Commit]) -> None:
        if commits:
            self.cursors[sink], self.delivered[sink] = commits[-1].commit, commits[-1].end[SPOUT]["0"]
            self.ledger.cursors.store(sink, SinkRecord(commit=self.cursors[sink]))

    def judge(self) -> None:
        reader = open_ledger(self.root)
        head = reader.live().commit
        numbers = [commit.commit for commit in reader.commits()]
        assert numbers[-1] == head
        assert {self.snapshot, self.pinned} <= set(numbers)
        for number in numbers[1:]:
            self._judge_state(number)
        self._judge_outboxes()
        ticks = self._ticks(head)
        letters = [pq.read_table(self.root / file.path)["t"][0].as_py() for file in reader.live().dead_letters]
        assert letters == list(range(LETTER_EVERY, ticks + 1, LETTER_EVERY))

    def _judge_state(self, number: int) -> None:
        ticks = self._ticks(number)
        expected = {t % KEYS: t for t in range(1, ticks + 1)}
        rows = open_ledger(self.root).state(STEP, at=number).arrow().to_pylist()
        assert {row["k"]: row["t"] for row in rows} == expected, number
        assert len(rows) == len(expected)

    def _judge_outboxes(self) -> None:
        """A sink finds every row after its cursor, once and in order."""
        ledger = Ledger(self.root)
        for sink, cursor in self.cursors.items():
            waiting = [file for commit in ledger.commits(after=cursor) for file in commit.outbox.get(sink, ())]
            rows = [pq.read_table(self.root / file.path)["t"][0].as_py() for file in waiting]
            assert rows == list(range(self.delivered[sink] + 1, self._ticks(ledger.head.commit) + 1)), sink

    def _ticks(self, number: int) -> int:
        return Ledger(self.root).at(number).clock.get(SPOUT, {}).get("0", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("vacuum") / "ledger", forks)
    with ExitStack() as held:
        held.enter_context(made.ledger.pinned(made.pinned))
        yield made


@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_fault_point_takes_nothing_that_is_needed(place: Place, point: str, number: int) -> None:
    place.deliver()
    assert place.run(60, fault=f"{point}:{number}") == -signal.SIGKILL
    place.judge()


@pytest.mark.parametrize("attempt", range(3))
def test_a_kill_at_a_random_moment_takes_nothing_that_is_needed(place: Place, attempt: int) -> None:
    place.deliver()
    process = place.start(100_000)
    before = len(list((place.root / "commits").iterdir()))
    while len(list((place.root / "commits").iterdir())) == before and process.poll() is None:
        time.sleep(0.01)
    time.sleep(place.chance.random())
    process.kill()
    said = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, said.decode()
    place.judge()


def test_after_all_those_kills_everything_that_is_not_needed_goes(place: Place) -> None:
    place.deliver_everything()
    assert place.run(150) == 0
    place.judge()
    ledger = Ledger(place.root)
    kept = [ledger.at(commit.commit) for commit in ledger.commits()]
    needed = {run_name(STEP, run.id) for live in kept for run in live.runs.get(STEP, ())}
    there = {file.name for file in ledger.store.files("state")}
    assert there == needed
    assert not list(place.root.rglob(".*.????????")), "temporary files of the dead"
    assert {file.name for file in ledger.store.files("errors")} == {file.path for file in ledger.head.dead_letters}
    for sink, cursor in place.cursors.items():
        stamps = [stamp_of(file.name) for file in ledger.store.files(f"outbox/{sink}")]
        assert all(stamp is not None and stamp.commit > cursor for stamp in stamps), sink
