"""What every log promises, as tests. A log passes when `class TestMyLog(LogContract)` does.

To add a log: write a harness with `make()` (the source, not yet read), `append(rows, partition)` (bytes that become
records at the end of a partition, visible when it returns) and the two flags below, and give it as the fixture
`harness`. `test_logs.py` shows the embedded ones.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pytest

from hailstorm.errors import LogError
from hailstorm.spouts.roster import living
from hailstorm.spouts.source import BATCH_ROWS, RECORD, Source


class Harness(Protocol):
    partitions: int  # how many the log has
    ends: bool  # whether a range that ends beyond the log is refused (a generator has no end)

    def make(self) -> Source:
        """A source of the log; called several times, it is the same log each time."""

    def append(self, rows: list[bytes], partition: int) -> None:
        """Put records at the end of a partition. What they hold is up to a log that computes its own."""

    def remake(self) -> None:
        """Put another log in the same place."""

    def forget(self) -> list[Path]:
        """Let the next `latest()` be as in a new process. What it must sync, or `pytest.skip` where nothing is ours."""

    def expire(self) -> None:
        """Make the first records of partition 0 unreadable; `pytest.skip` where records never go away."""


def read(source: Source, partition: int, start: int, end: int) -> pa.Table:
    batches = list(source.read(partition, start, end))
    assert all(0 < len(batch) <= BATCH_ROWS for batch in batches)
    return pa.Table.from_batches(batches, batches[0].schema if batches else RECORD).combine_chunks()


def some(count: int, name: str = "row") -> list[bytes]:
    return [b'{"%s": %d}' % (name.encode(), number) for number in range(count)]


class LogContract:
    appends = 60  # while others read; fewer where each is many requests to a server

    def test_it_is_a_source(self, harness: Harness) -> None:
        assert isinstance(harness.make(), Source)

    def test_positions_only_grow_and_the_earliest_is_not_after_the_latest(self, harness: Harness) -> None:
        source = harness.make()
        seen = []
        for _ in range(4):
            harness.append(some(10), 0)
            seen.append((source.earliest(), source.latest()))
        for (earliest, latest), (earliest_after, latest_after) in itertools.pairwise(seen):
            assert all(earliest[p] <= earliest_after[p] for p in earliest)
            assert all(latest[p] <= latest_after[p] for p in latest)
            assert latest_after[0] >= latest[0] + 10
        assert set(latest) == set(earliest) == set(range(harness.partitions))
        assert all(0 <= earliest[p] <= latest[p] for p in latest)

    def test_a_range_gives_ascending_offsets_within_it(self, harness: Harness) -> None:
        for partition in range(harness.partitions):
            harness.append(some(50), partition)
        source = harness.make()
        for partition, latest in source.latest().items():
            start = source.earliest()[partition] + 3
            offsets = read(source, partition, start, latest - 2)["offset"].to_pylist()
            assert offsets == sorted(set(offsets))
            assert offsets and start <= offsets[0] and offsets[-1] < latest - 2

    def test_records_have_the_declared_shape(self, harness: Harness) -> None:
        harness.append(some(5), 0)
        source = harness.make()
        batch = next(iter(source.read(0, source.earliest()[0], source.latest()[0])))
        if source.columns is None:
            assert batch.schema == RECORD
        else:
            assert batch.schema.names[:2] == ["offset", "time"]
            assert batch.schema.types[:2] == RECORD.types[:2]

    def test_what_is_appended_is_read_in_order(self, harness: Harness) -> None:
        source = harness.make()
        if source.columns is not None:
            pytest.skip("this log computes its records")
        harness.append(some(30, "a"), 0)
        harness.append(some(20, "b"), 0)
        rows = read(source, 0, source.earliest()[0], source.latest()[0])
        assert rows["value"].to_pylist()[-50:] == some(30, "a") + some(20, "b")

    def test_reading_twice_gives_the_same_records(self, harness: Harness) -> None:
        harness.append(some(100), 0)
        source = harness.make()
        start, end = source.earliest()[0], source.latest()[0]
        before = read(source, 0, start, end)
        harness.append(some(7), 0)
        source.latest()
        assert read(source, 0, start, end).equals(before)
        assert read(harness.make(), 0, start, end).equals(before)

    def test_any_cut_of_a_range_gives_the_same_records(self, harness: Harness) -> None:
        for _ in range(9):
            harness.append(some(11), 0)
        source = harness.make()
        start, end = source.earliest()[0], source.latest()[0]
        end = min(end, start + 500)
        whole = read(source, 0, start, end)
        chance = random.Random(7)
        for _ in range(5):
            cuts = sorted({start, end, *(chance.randint(start, end) for _ in range(6))})
            parts = [read(source, 0, low, high) for low, high in itertools.pairwise(cuts)]
            assert pa.concat_tables(parts).combine_chunks().equals(whole)

    def test_a_long_range_comes_in_batches_of_bounded_size(self, harness: Harness) -> None:
        harness.append(some(BATCH_ROWS + 1000), 0)
        source = harness.make()
        end = source.latest()[0]
        assert len(read(source, 0, end - BATCH_ROWS - 1000, end)) == BATCH_ROWS + 1000

    def test_an_empty_range_is_empty(self, harness: Harness) -> None:
        harness.append(some(5), 0)
        source = harness.make()
        for place in (source.earliest()[0], source.latest()[0]):
            assert list(source.read(0, place, place)) == []

    def test_a_copy_in_another_process_reads_the_same(self, harness: Harness) -> None:
        harness.append(some(20), 0)
        source = harness.make()
        start, end = source.earliest()[0], source.latest()[0]
        copy = pickle.loads(pickle.dumps(source))
        assert read(copy, 0, start, end).equals(read(source, 0, start, end))
        assert copy.describe() == source.describe()

    def test_readers_see_whole_records_while_a_writer_appends(self, harness: Harness) -> None:
        harness.append(some(10), 0)
        done = threading.Event()
        wrong: list[str] = []

        def follow() -> None:
            source = harness.make()
            place = start = source.earliest()[0]
            rows = []
            while not done.is_set() or place < source.latest()[0]:
                end = source.latest()[0]
                rows.append(read(source, 0, place, end))
                place = max(place, end)
                if place - start > 50_000:
                    break  # a generator never ends
            if not pa.concat_tables(rows).combine_chunks().equals(read(harness.make(), 0, start, place)):
                wrong.append("what was followed is not what is there")

        def watched(function: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    function()
                except BaseException as error:  # a thread's failure must fail the test
                    wrong.append(repr(error))

            return run

        readers = [threading.Thread(target=watched(follow)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(self.appends):
            harness.append(some(3), 0)
        done.set()
        for reader in readers:
            reader.join(60)
        assert wrong == []

    def test_what_is_gone_is_refused_by_name(self, harness: Harness) -> None:
        harness.append(some(100), 0)
        source = harness.make()
        before, latest = source.earliest()[0], source.latest()[0]
        harness.expire()
        after = source.earliest()[0]
        assert before < after <= latest
        assert source.latest()[0] == latest
        with pytest.raises(LogError, match=f"{before} to {after - 1}"):
            list(source.read(0, before, latest))
        harness.append(some(5), 0)
        assert source.latest()[0] >= latest + 5

    def test_a_range_beyond_the_end_is_refused(self, harness: Harness) -> None:
        if not harness.ends:
            pytest.skip("this log has no end")
        harness.append(some(5), 0)
        source = harness.make()
        end = source.latest()[0]
        with pytest.raises(LogError, match=f"ends at {end}"):
            list(source.read(0, end - 1, end + 10))

    def test_where_new_partitions_begin_passes_over_nothing(self, harness: Harness) -> None:
        harness.append(some(5), 0)
        source = living(harness.make())
        source = source.remembering(source.roster())
        assert source.beginning(first=False) == source.earliest()
        assert source.beginning(first=True).keys() == source.latest().keys()

    def test_the_same_log_has_the_same_roster_and_another_one_in_its_place_needs_a_word(self, harness: Harness) -> None:
        harness.append(some(5), 0)
        roster = living(harness.make()).roster()
        harness.append(some(5), 0)
        source = living(harness.make()).remembering(roster, "words")
        assert source.roster() == roster
        assert source.latest()[0] >= source.earliest()[0] + 10
        harness.remake()
        harness.append(some(7, "other"), 0)
        source = living(harness.make()).remembering(roster, "words")
        for ask in (source.roster, source.latest):
            with pytest.raises(LogError, match="--accept words"):
                ask()
        accepted = source.remembering(source.roster(accept=True))
        assert accepted.roster() == accepted.remembering(accepted.roster()).roster()
        earliest, latest = accepted.earliest(), accepted.latest()
        assert set(earliest) == set(latest) == {10_000 + p for p in range(harness.partitions)}
        assert accepted.beginning(first=False) == earliest
        assert len(read(accepted, 10_000, earliest[10_000], latest[10_000])) >= 7
        with pytest.raises(LogError):
            list(accepted.read(0, 0, 1))  # of the old log: the new one's records must not be taken for its

    def test_an_end_that_is_shown_survives_a_power_cut(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        harness.append(some(5), 0)
        with monkeypatch.context() as killed:  # a writer that does not get as far as syncing
            killed.setattr(os, "fsync", lambda handle: None)
            harness.append(some(5), 0)
        needed = harness.forget()
        synced: set[str] = set()
        sync = os.fsync

        def recorded(handle: int) -> None:
            sync(handle)
            synced.add(os.readlink(f"/proc/self/fd/{handle}"))

        monkeypatch.setattr(os, "fsync", recorded)
        source = harness.make()
        assert source.latest()[0] == 10
        assert {str(path) for path in needed} <= synced
        synced.clear()
        source.latest()
        assert synced == set(), "once is enough"

    def test_a_size_is_known_roughly_or_not_at_all(self, harness: Harness) -> None:
        harness.append(some(100), 0)
        source = harness.make()
        start, end = source.earliest()[0], source.latest()[0]
        size = source.size(0, start, end)
        assert size is None or 0 < size < 1000 * (end - start) + 10_000
        assert isinstance(source.has_time, bool)

    def test_a_partition_that_is_not_there_is_refused(self, harness: Harness) -> None:
        harness.append(some(5), 0)
        with pytest.raises(LogError):
            list(harness.make().read(harness.partitions, 0, 1))
