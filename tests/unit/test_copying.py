"""A copy of a ledger is the ledger at one commit: also if it was cut off, brought up to date, or made beside a run."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from hailstorm.errors import LedgerError
from hailstorm.ledger import copying, vacuum
from hailstorm.ledger.commit import StateChange, StepShape
from hailstorm.ledger.copying import copy_ledger
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.pins import Snapshot
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.runs import sort_by_hash, write_rows, write_run
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import read_retention

SHAPE = StepShape(kind="fold", key=("k",), values=("n",), fingerprint="f")


class Original:
    def __init__(self, root: Path, seed: int = 1) -> None:
        self.ledger, self.chance, self.sums = Ledger(root, create=True), random.Random(seed), dict[int, int]()

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            ledger, keys = self.ledger, self.chance.sample(range(20), 3)
            self.sums |= {key: self.sums.get(key, 0) + 1 for key in keys}
            rows = pa.table(
                {
                    "_bucket": pa.array([0] * 3, pa.int16()),
                    "_hash": pa.array(keys, pa.int64()),
                    "k": keys,
                    "n": [self.sums[key] for key in keys],
                    "_updated": [ledger.head.commit + 1] * 3,
                    "_deleted": [False] * 3,
                }
            )
            run = write_run(ledger.store, "counts", sort_by_hash(rows), ledger.stamp)
            out = write_rows(ledger.store, "outbox/board", rows, ledger.stamp)
            fields: dict[str, Any] = {"state": {"counts": StateChange(added=(run,))}, "outbox": {"board": (out,)}}
            if not ledger.head.commit:
                fields["steps"] = {"counts": SHAPE}
            ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), **fields))

    def clean_up(self) -> None:
        work = Vacuum(self.ledger, read_retention("all"))
        while work.work(whole=True):
            pass


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Original:
    for name, value in {"KEEP_LOOSE": 4, "PACK": 6, "MERGE": 3}.items():
        monkeypatch.setattr(vacuum, name, value)
    made = Original(tmp_path / "original")
    made.tick(17)
    made.clean_up()
    made.tick(3)
    return made


def state(place: Path | str, at: int | None = None) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = open_ledger(place).state("counts", at=at).arrow().sort_by("k").to_pylist()
    return rows


def judge(original: Original, copy: Path, commit: int) -> None:
    """Every moment that the copy knows is as in the original, and it can go on."""
    ledger = Ledger(copy)
    assert (ledger.id, ledger.head) == (original.ledger.id, original.ledger.at(commit))
    assert list(ledger.commits()) == [one for one in original.ledger.commits() if one.commit <= commit]
    for number in (1, commit // 2, commit):
        assert state(copy, number) == state(original.ledger.root, number)
    for one in ledger.commits():
        assert all(ledger.store.size(file.path) == file.bytes for files in one.outbox.values() for file in files)


def test_a_copy_is_the_ledger_with_its_history(original: Original, tmp_path: Path) -> None:
    original.ledger.cursors.store("board", SinkRecord(commit=12))
    original.ledger.store.put("snapshots/old.json", msgspec.json.encode(Snapshot(3)))
    found = copy_ledger(original.ledger, str(tmp_path / "copy"))
    assert found.commit == 20
    judge(original, tmp_path / "copy", 20)
    copy = Ledger(tmp_path / "copy")
    assert copy.cursors.load("board") == SinkRecord(commit=12)
    assert copy.store.list("snapshots") == ["old.json"]
    assert not copy.store.exists("lease.json") and not original.ledger.store.exists("housekeeping.json")


def test_copying_again_takes_only_what_is_new(original: Original, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    first = copy_ledger(original.ledger, str(copy))
    original.tick(9)
    original.clean_up()  # what was single commits in the copy is in packs by now
    second = copy_ledger(original.ledger, str(copy))
    assert second.commit == 29 and second.files < first.files
    judge(original, copy, 29)
    assert copy_ledger(original.ledger, str(copy)).files <= 1, "history.json, perhaps"


@pytest.mark.slow
@pytest.mark.parametrize("writes", [0, 1, 7, 30, 45])
def test_a_copy_that_was_cut_off_is_whole_at_an_earlier_commit_or_none(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    copy, left = tmp_path / "copy", iter(range(writes))
    put = LocalStore.put

    def cut_off(self: LocalStore, name: str, data: bytes) -> None:
        if self.address == str(copy) and next(left, None) is None:
            raise OSError(5, "cut off")
        put(self, name, data)

    def cut_off_copy() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "put", cut_off)
            patch.setattr(copying, "_AT_ONCE", 1)
            with pytest.raises(OSError, match="cut off"):
                copy_ledger(original.ledger, str(copy))

    cut_off_copy()
    with pytest.raises(LedgerError, match=r"no ledger"):
        Ledger(copy)
    copy_ledger(original.ledger, str(copy))
    judge(original, copy, 20)
    original.tick(12)
    original.clean_up()
    left = iter(range(writes))
    if writes < 30:
        cut_off_copy()
        judge(original, copy, Ledger(copy).head.commit)
    copy_ledger(original.ledger, str(copy))
    judge(original, copy, 32)


def test_a_copy_beside_a_run_has_what_was_committed_and_nothing_of_what_comes(
    original: Original, tmp_path: Path
) -> None:
    def meanwhile(done: int, total: int) -> None:
        if original.ledger.head.commit < 24:
            original.tick()
            original.ledger.cursors.store("board", SinkRecord(commit=original.ledger.head.commit))

    found = copy_ledger(original.ledger, str(tmp_path / "copy"), meanwhile)
    assert (found.commit, original.ledger.head.commit) == (20, 24)
    judge(original, tmp_path / "copy", 20)
    assert Ledger(tmp_path / "copy").cursors.load("board").commit == 20, "a sink that is further has got all of it"


def test_what_is_not_an_earlier_copy_is_left_alone(original: Original, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    other = Original(tmp_path / "other", seed=2)
    other.tick()
    copy_ledger(original.ledger, str(tmp_path / "copy"))
    copy = Ledger(tmp_path / "copy")
    copy.commit(next_commit(copy.head, "tick", copy.epoch, datetime.now(UTC)))
    for place in ("mine", "other", "copy", "original"):
        with pytest.raises(LedgerError) as told:
            copy_ledger(original.ledger, str(tmp_path / place))
        assert told.value.code == "HS-LED-037"
    original.tick(2)  # as far, and another way
    with pytest.raises(LedgerError, match="gone its own way"):
        copy_ledger(original.ledger, str(tmp_path / "copy"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert Ledger(tmp_path / "copy").head == copy.head
