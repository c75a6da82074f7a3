"""Housekeeping beside the negotiator: what is merged is what is live, and tables are published in time."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hailstorm import faults
from hailstorm.columns import BUCKET, DELETED, HASH
from hailstorm.engine.ticks import housekeeping
from hailstorm.engine.ticks.housekeeping import Housekeeper
from hailstorm.errors import LedgerError
from hailstorm.ledger.commit import Stamp, StateChange, StepShape
from hailstorm.ledger.compaction import FAN_IN
from hailstorm.ledger.delta.log import read_version
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import buckets_of, write_run


class WatchedLedger(Ledger):
    """Lets something happen when the housekeeping thread has looked at the head and not yet acted on it."""

    looked: Callable[[], None] | None = None

    @property
    def head(self) -> Live:  # type: ignore[override]
        head = self._head
        if self.looked is not None and threading.current_thread().name == "housekeeping":
            happens, self.looked = self.looked, None
            happens()
        return head

    @head.setter
    def head(self, live: Live) -> None:
        self._head = live


COUNTS = StepShape(kind="fold", key=("key",), values=(), tables={"counts": ("key",)})


def commit(ledger: Ledger, **state: StateChange) -> None:
    steps = {"counts": COUNTS}
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), state=state, steps=steps))


def rows(key: int) -> pa.Table:
    hashes = np.array([key], dtype=np.int64)
    return pa.table({BUCKET: buckets_of(hashes), HASH: hashes, "key": [key], DELETED: [False]})


def test_runs_that_were_merged_and_committed_meanwhile_are_not_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "MANIFEST_EVERY", 1)  # every commit is work for the thread
    monkeypatch.setattr(housekeeping.Vacuum, "work", lambda self: False)  # it looks at the head, too
    ledger = WatchedLedger(tmp_path / "ledger", create=True)
    for seq in range(1, FAN_IN + 1):
        commit(ledger, counts=StateChange(added=(write_run(ledger.store, "counts", rows(seq), Stamp(seq, 1)),)))
    keeper = Housekeeper(ledger)
    merged, looked_again = threading.Event(), threading.Event()
    done: dict[str, StateChange] = {}

    def commit_the_merged_runs() -> None:
        commit(ledger, **done)
        keeper.committed(done, ledger.head)
        keeper.notice(ledger.head)
        ledger.looked = looked_again.set

    keeper.start()
    keeper.notice(ledger.head)
    while not done:
        merged.wait(0.01)
        done |= keeper.finished()
    ledger.looked = commit_the_merged_runs
    commit(ledger)
    keeper.notice(ledger.head)
    assert looked_again.wait(10)
    keeper.stop()
    assert keeper.finished() == {}
    assert [run.rows for run in ledger.head.runs["counts"]] == [FAN_IN]


def a_ledger_with_a_fold(root: Path) -> Ledger:
    ledger = Ledger(root, create=True)
    shape = StepShape(kind="fold", key=("key",), values=(), fingerprint="")
    added = StateChange(added=(write_run(ledger.store, "counts", rows(1), Stamp(1, 1)),))
    ledger.commit(
        next_commit(ledger.head, "tick", 1, datetime.now(UTC), steps={"counts": shape}, state={"counts": added})
    )
    return ledger


def published(ledger: Ledger) -> int | None:
    """The commit that the table shows."""
    version = read_version(ledger.store, "delta/counts")
    return None if version is None else version.commit


def test_tables_are_published_when_it_is_time_and_at_the_end(tmp_path: Path) -> None:
    ledger = a_ledger_with_a_fold(tmp_path / "ledger")
    keeper = Housekeeper(ledger, publish_every=0.01)
    keeper.start()
    deadline = time.monotonic() + 10
    while published(ledger) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert published(ledger) == 1, "nobody has to notice anything for that"
    keeper.stop()
    commit(ledger, counts=StateChange(added=(write_run(ledger.store, "counts", rows(2), Stamp(2, 1)),)))
    assert published(ledger) == 1
    keeper.publish_the_end()
    assert published(ledger) == 2


def test_nothing_is_published_when_it_is_off(tmp_path: Path) -> None:
    ledger = a_ledger_with_a_fold(tmp_path / "ledger")
    keeper = Housekeeper(ledger)
    keeper.start()
    keeper.stop()
    keeper.publish_the_end()
    assert not (tmp_path / "ledger/delta").exists()


def test_a_disk_that_takes_no_table_is_told_as_such(tmp_path: Path) -> None:
    ledger = a_ledger_with_a_fold(tmp_path / "ledger")
    keeper = Housekeeper(ledger, publish_every=3600)
    keeper.start()
    keeper.stop()
    with (
        faults.inject("during-publishing", OSError(errno.ENOSPC, "No space left on device")),
        pytest.raises(LedgerError, match="No space left"),
    ):
        keeper.publish_the_end()
