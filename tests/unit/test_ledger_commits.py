"""Commits and what is live: JSON both ways, manifests, earlier commits, and ledgers that cannot be opened."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hailstorm.errors import FencedError, LedgerError
from hailstorm.ledger.commit import (
    FORMAT,
    Commit,
    DataFile,
    Run,
    StateChange,
    StepShape,
    commit_name,
    decode,
    encode,
)
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live, changed_runs

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def run(name: str, seq: int, rows: int = 1) -> Run:
    return Run(id=name, seq=seq, rows=rows, bytes=100, first=-5, last=2**63 - 1)


def file(name: str) -> DataFile:
    return DataFile(path=name, rows=3, bytes=10)


def tick(ledger: Ledger, **fields: Any) -> Live:
    return ledger.commit(next_commit(ledger.head, "tick", 1, NOW, **fields))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_commit_is_the_same_after_json() -> None:
    shape = StepShape(kind="fold", key=("word",), values=("n",), fingerprint="f")
    commit = Commit(
        commit=42,
        epoch=3,
        reason="tick",
        at=NOW.isoformat(),
        now=1_767_323_045_678_901,
        start={"tweets": {"0": 1, "10": 2}},
        end={"tweets": {"0": 5, "10": 2}},
        rows=4,
        ms=12.5,
        watermark=NOW.isoformat(),
        event_times={"tweets": {"0": (1, 2)}},
        late=1,
        errors=2,
        state={"counts": StateChange(added=(run("a", 42),), removed=("b", "c"))},
        outbox={"board": (file("outbox/board/x.parquet"),)},
        dead_letters=(file("errors/x.parquet"),),
        retried=("errors/y.parquet",),
        steps={"counts": shape},
        fingerprints={"counts": "f"},
        coverage={"counts": {"tweets": {"0": ((0, 1),)}}},
        timings={"read": 1.25},
    )
    assert decode(encode(commit), Commit, "commits/42.json") == commit


def test_a_commit_reads_as_documented_json() -> None:
    commit = next_commit(Live(), "tick", 1, NOW, start={}, end={"tweets": {"0": 5}})
    said = json.loads(encode(commit))
    assert said["format"] == FORMAT
    assert (said["commit"], said["reason"], said["from"], said["to"]) == (1, "tick", {}, {"tweets": {"0": 5}})
    assert said["now"] == 1_767_323_045_678_901


def test_what_a_commit_does_not_say_stays_as_it_was() -> None:
    shape = StepShape(kind="fold", key=("word",), values=("n",), fingerprint="f")
    live = Live(clock={"t": {"0": 7}}, watermark=NOW.isoformat(), steps={"counts": shape}, fingerprints={"counts": "f"})
    after = live.after(next_commit(live, "compact", 1, NOW))
    assert (after.clock, after.watermark, after.steps) == (live.clock, live.watermark, live.steps)
    assert after.fingerprints == live.fingerprints


def test_live_is_the_fold_of_commits() -> None:
    live = Live()
    for i in range(1, 5):
        state = {"counts": StateChange(added=(run(f"r{i}", i),))}
        outbox = {"board": (file(f"o{i}"),)} if i != 4 else {"board": ()}
        commit = next_commit(
            live, "tick", 1, NOW, state=state, outbox=outbox, rows=10, errors=1, dead_letters=(file(f"e{i}"),)
        )
        live = live.after(commit)
    assert [r.id for r in live.runs["counts"]] == ["r1", "r2", "r3", "r4"]
    assert (live.commit, live.rows, live.errors) == (4, 40, 4)
    assert live.outboxes == {"board": 3}, "a commit without rows for a sink is not its last"
    change = StateChange(added=(run("m", 3),), removed=("r1", "r2", "r3"))
    live = live.after(next_commit(live, "compact", 1, NOW, state={"counts": change}, retried=("e2",)))
    assert [r.id for r in live.runs["counts"]] == ["m", "r4"]
    assert [f.path for f in live.dead_letters] == ["e1", "e3", "e4"]


def test_a_commit_out_of_order_is_refused() -> None:
    commit = next_commit(Live(commit=5), "tick", 1, NOW)
    with pytest.raises(AssertionError):
        Live().after(commit)


def test_merged_runs_stand_where_the_newest_of_them_stood() -> None:
    runs = tuple(run(f"r{i}", i) for i in range(1, 6))
    merged = changed_runs(runs, StateChange(added=(run("m", 3), run("m2", 3)), removed=("r2", "r3")))
    assert [r.id for r in merged] == ["r1", "m", "m2", "r4", "r5"]


def test_a_ledger_opened_again_is_where_it_was(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    for i in range(5):
        tick(ledger, end={"t": {"0": i + 1}}, rows=1)
    assert Ledger(tmp_path / "ledger").head == ledger.head


@pytest.mark.parametrize("manifests", [(), (7,), (3, 7), (10,)])
def test_earlier_commits_can_be_seen_with_and_without_manifests(tmp_path: Path, manifests: tuple[int, ...]) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    past = [ledger.head]
    for i in range(1, 11):
        change = StateChange(added=(run(f"r{i}", i),), removed=(f"r{i - 3}",) if i > 3 else ())
        past.append(tick(ledger, state={"counts": change}, end={"t": {"0": i}}))
        if i in manifests:
            ledger.write_manifest(ledger.head)
    again = Ledger(tmp_path / "ledger")
    assert again.head == past[-1]
    for number, live in enumerate(past):
        assert again.at(number) == live


def test_a_manifest_saves_reading_the_commits_before_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    for _ in range(5):
        tick(ledger)
    ledger.write_manifest(ledger.head)
    tick(ledger)
    for number in range(1, 6):
        (tmp_path / "ledger" / commit_name(number)).unlink()
    assert Ledger(tmp_path / "ledger").head == ledger.head


@pytest.mark.parametrize("number", [-1, 3, 10**6])
def test_a_commit_that_is_not_there_is_named(tmp_path: Path, number: int) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    tick(ledger)
    tick(ledger)
    with pytest.raises(LedgerError, match=f"no commit {number}"):
        ledger.at(number)


def test_of_two_drivers_the_second_is_fenced_and_changes_nothing(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger", create=True)
    second = Ledger(tmp_path / "ledger")
    tick(first, rows=1)
    before = contents(tmp_path)
    with pytest.raises(FencedError, match="another driver"):
        tick(second, rows=2)
    assert contents(tmp_path) == before
    assert second.head.commit == 0, "a fenced driver does not believe in its own commit"


def test_a_commit_whose_answer_was_lost_is_ours_all_the_same(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    ours = next_commit(ledger.head, "tick", 1, NOW, rows=3)
    ledger.store.put_if_absent(commit_name(1), encode(ours))  # it arrived, and we never heard of it
    assert ledger.commit(ours).rows == 3


def test_another_commit_of_the_same_epoch_is_not_ours(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    ledger.store.put_if_absent(commit_name(1), encode(next_commit(ledger.head, "tick", 1, NOW, rows=3)))
    with pytest.raises(FencedError, match="another driver"):
        tick(ledger, rows=3)


def test_a_ledger_keeps_its_id_for_ever(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    assert Ledger(tmp_path / "ledger").id == ledger.id
    assert Ledger(tmp_path / "other", create=True).id != ledger.id


def test_an_older_format_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    root.mkdir()
    (root / "hailstorm.json").write_bytes(b'{"format": 1, "created": "2026-01-02", "buckets": 256, "host": "here"}')
    before = contents(tmp_path)
    for create in (False, True):
        with pytest.raises(LedgerError, match="format 1, from an older Hailstorm"):
            Ledger(root, create=create)
    assert contents(tmp_path) == before


def newer(data: bytes) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(data), "format": FORMAT + 1, "unknown": [1]})


@pytest.mark.parametrize("name", ["hailstorm.json", commit_name(2), "manifests/00000000000000000002.json"])
def test_a_newer_format_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    tick(ledger)
    tick(ledger)
    if name.startswith("manifests"):
        ledger.write_manifest(ledger.head)
    path = tmp_path / "ledger" / name
    path.write_bytes(newer(path.read_bytes()))
    before = contents(tmp_path)
    for create in (False, True):
        with pytest.raises(LedgerError, match="newer version"):
            Ledger(tmp_path / "ledger", create=create)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("said", [b"", b"not json", b"[]", b"{}", b'{"format": "2"}', b'{"format": 2}', b"\xff"])
def test_a_ledger_whose_description_is_damaged_is_refused(tmp_path: Path, said: bytes) -> None:
    root = tmp_path / "ledger"
    Ledger(root, create=True)
    (root / "hailstorm.json").write_bytes(said)
    with pytest.raises(LedgerError):
        Ledger(root, create=True)
    assert (root / "hailstorm.json").read_bytes() == said


@pytest.mark.parametrize("said", [b"", b'{"format": 2', b"[]", b'{"format": 2}'])
def test_a_damaged_commit_is_an_error_that_names_it(tmp_path: Path, said: bytes) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    tick(ledger)
    (tmp_path / "ledger" / commit_name(1)).write_bytes(said)
    with pytest.raises(LedgerError, match=r"commits/0+1\.json"):
        Ledger(tmp_path / "ledger")


def test_a_ledger_that_is_a_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("precious")
    for create in (False, True):
        with pytest.raises(LedgerError, match="is a file"):
            Ledger(path, create=create)
    assert path.read_text() == "precious"


def test_a_ledger_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(tmp_path / "file" / "ledger", create=True)


def test_a_folder_with_other_files_is_not_made_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(tmp_path, create=True)
    assert contents(tmp_path) == {"thesis.tex": b"precious"}


def test_a_ledger_that_is_not_there_is_only_made_when_asked(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()
    assert Ledger(tmp_path / "ledger", create=True).head.commit == 0


def test_a_crash_while_a_ledger_was_made_does_not_block_the_next_start(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    root.mkdir()
    (root / ".hailstorm.json.0a1b2c3d").write_bytes(b"{}")
    assert Ledger(root, create=True).head.commit == 0


def test_cursors_are_kept_by_sink(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    assert ledger.cursors.load("board") == SinkRecord()
    ledger.cursors.store("board", SinkRecord(commit=7))
    ledger.cursors.store("other", SinkRecord(commit=3))
    again = Ledger(tmp_path / "ledger")
    assert (again.cursors.load("board").commit, again.cursors.load("other").commit) == (7, 3)


def test_a_deposed_driver_does_not_move_a_cursor_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    ledger.cursors.store("board", SinkRecord(commit=6, epoch=1))
    ledger.cursors.store("board", SinkRecord(commit=9, epoch=2))
    zombie = Ledger(tmp_path / "ledger")
    zombie.cursors.store("board", SinkRecord(commit=7, epoch=1, error="too late"))
    assert ledger.cursors.load("board") == SinkRecord(commit=9, epoch=2)
    ledger.cursors.store("board", SinkRecord(commit=10, epoch=2))
    assert ledger.store.list("cursors/board") == ["00000000000000000010.json"], "older records go"
