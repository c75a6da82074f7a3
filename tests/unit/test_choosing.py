"""Choosing the next clock: what a tick reads of what waits, and what it leaves out on overload."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hailstorm as hs
from hailstorm.clock.clock import Clock
from hailstorm.engine.ticks.logs import Choice, Logs, OnDataLoss
from hailstorm.ledger.commit import Hole
from hailstorm.ledger.ledger import next_commit
from hailstorm.ledger.live import Live
from hailstorm.spouts.roster import OneLog
from hailstorm.topology.settings import OnOverload


@dataclass(frozen=True)
class Ends:
    """A log of which only the ends are known."""

    ends: Mapping[int, int]
    begins: Mapping[int, int]

    id: str = "a"

    def earliest(self) -> Mapping[int, int]:
        return self.begins

    def latest(self) -> Mapping[int, int]:
        return self.ends

    def identity(self) -> str:
        return self.id

    def describe(self) -> Mapping[str, Any]:
        return {"ends": "of a test"}


def logs(ends: Mapping[int, int], begins: Mapping[int, int] | None = None, on_data_loss: OnDataLoss = "fail") -> Logs:
    found = Logs(hs.Topology("empty"), Live(), on_data_loss)
    source: Any = Ends(ends, begins or dict.fromkeys(ends, 0))
    found.sources["letters"] = OneLog(source)
    return found


def choose(found: Logs, head: Clock, target: Clock | None, limit: int, on_overload: OnOverload = "queue") -> Choice:
    """As the negotiator does: where new partitions begin is committed first."""
    look = found.look(head)
    return found.choose(head.join(look.begins), look.ends, target, limit, on_overload)


def at(**offsets: int) -> Clock:
    return Clock({"letters": {int(name[1:]): offset for name, offset in offsets.items()}})


@pytest.mark.parametrize("on_overload", get_args(OnOverload))
def test_ten_ticks_worth_is_no_overload_yet(on_overload: OnOverload) -> None:
    choice = choose(logs({0: 1000}), Clock(), None, 100, on_overload)
    assert (choice.interval.start, choice.interval.end, choice.holes) == (at(p0=0), at(p0=100), {})
    assert (choice.lag, choice.lag_after) == (1000, 900)


def test_a_queue_reads_the_oldest_however_much_waits() -> None:
    choice = choose(logs({0: 10_000}), Clock(), None, 100, "queue")
    assert (choice.interval.start, choice.interval.end, choice.holes) == (at(p0=0), at(p0=100), {})


def test_a_log_with_few_records_does_not_wait_behind_one_with_many() -> None:
    choice = choose(logs({0: 1_000_000, 1: 60, 2: 0}), Clock(), None, 1600, "queue")
    assert choice.interval.end == at(p0=1540, p1=60, p2=0)
    choice = choose(logs({0: 900_000, 1: 100_000}), Clock(), None, 1600, "queue")  # by what waits, but for a little
    assert choice.interval.end == at(p0=1361, p1=240)


def test_drop_skips_to_the_newest_ticks_worth() -> None:
    choice = choose(logs({0: 6000, 1: 2000}), at(p0=0, p1=0), None, 400, "drop")
    assert (choice.interval.start, choice.interval.end) == (at(p0=5711, p1=1888), at(p0=6000, p1=2000))
    assert choice.holes == {"letters": {"0": [Hole(0, 5711, "dropped")], "1": [Hole(0, 1888, "dropped")]}}
    assert (choice.lag, choice.lag_after) == (8000, 0)


def test_sample_takes_a_tenth_and_reads_its_newest_ticks_worth() -> None:
    choice = choose(logs({0: 10_000}), Clock(), None, 100, "sample")
    assert (choice.interval.start, choice.interval.end) == (at(p0=900), at(p0=1000))
    assert choice.holes == {"letters": {"0": [Hole(0, 900, "sampled")]}}
    assert choice.lag_after == 9000


def test_drop_does_not_go_beyond_the_target() -> None:
    choice = choose(logs({0: 50_000}), Clock(), at(p0=5000), 100, "drop")
    assert choice.interval.end == at(p0=5000)
    assert choice.holes == {"letters": {"0": [Hole(0, 4900, "dropped")]}}


def test_what_is_gone_and_what_is_dropped_are_two_holes() -> None:
    choice = choose(logs({0: 9000}, {0: 100}, "continue"), at(p0=50), None, 100, "drop")
    assert choice.holes == {"letters": {"0": [Hole(50, 100, "gone"), Hole(100, 8900, "dropped")]}}
    assert choice.lag_after == 0


def test_in_a_steady_overload_one_record_in_k_is_read() -> None:
    end, head, read = 100_000, at(p0=0), 0
    for _ in range(200):
        end += 300  # three times what a tick reads
        choice = choose(logs({0: end}), head, None, 100, "sample")
        head, read = choice.interval.end, len(choice.interval)
    assert read == 100
    assert choice.holes["letters"]["0"][0].end - choice.holes["letters"]["0"][0].start in range(198, 203)
    assert choice.lag < 3100, "what waits stays as it is"


@pytest.mark.slow
@settings(deadline=None)
@given(
    ends=st.dictionaries(st.integers(0, 5), st.integers(0, 20_000), min_size=1),
    limit=st.integers(100, 5000),
    on_overload=st.sampled_from(get_args(OnOverload)),
)
def test_every_record_is_read_or_in_a_hole_and_the_target_is_reached(
    ends: dict[int, int], limit: int, on_overload: OnOverload
) -> None:
    read_ahead = {partition: end + 77 for partition, end in ends.items()}
    target = Clock({"letters": ends})
    head, accounted = Clock(), dict.fromkeys(ends, 0)
    for _ in range(2 + sum(ends.values()) // limit):
        if head.covers(target):
            break
        choice = choose(logs(read_ahead), head, target, limit, on_overload)
        pieces = [(p.partition, p.start, p.end) for p in choice.interval.ranges()]
        for partition, holes in choice.holes.get("letters", {}).items():
            pieces += [(int(partition), hole.start, hole.end) for hole in holes]
        for partition, start, end in sorted(pieces):
            assert start == accounted[partition]
            accounted[partition] = end
        assert len(choice.interval) <= limit + len(ends)
        head = choice.interval.end
    assert accounted == ends


def test_a_ledger_counts_what_was_skipped_and_remembers_what_is_gone() -> None:
    live = Live()
    for _ in range(3):
        holes = {"letters": {"0": [Hole(0, 10, "sampled"), Hole(10, 12, "gone")], "1": [Hole(0, 5, "dropped")]}}
        commit = next_commit(live, "tick", 1, datetime(2026, 1, 31, tzinfo=UTC), holes=holes)
        assert commit.skipped == 15
        live = live.after(commit)
    assert live.skipped == {"letters": {"0": 30, "1": 15}}
    assert live.holes == {"letters": {"0": [Hole(10, 12)] * 3}}


class Telling(hs.Kafka):
    """A log that takes its time to tell others how far we are."""

    told: ClassVar[list[Mapping[int, int]]] = []
    go_on: ClassVar[threading.Event] = threading.Event()

    def committed(self, offsets: Mapping[int, int]) -> None:
        self.told.append(offsets)
        self.go_on.wait(10)


def test_the_newest_commit_is_told_to_others_also_when_it_comes_while_they_are_told() -> None:
    found = logs({1: 9})
    found.look(Clock({}))
    found.sources["letters"] = Telling("letters", servers="nowhere:9092")
    for offset in (1, 2, 3):
        # Partition 0 is of a topic that was deleted: a clock names it for ever, and Kafka knows nothing of it.
        found.committed(Clock({"letters": {0: 7, 1: offset}}))
    Telling.go_on.set()
    deadline = time.monotonic() + 10
    while {1: 3} not in Telling.told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Telling.told[-1] == {1: 3}


def test_a_log_that_somebody_follows_is_not_asked_for_every_tick() -> None:
    asked = []

    @dataclass(frozen=True)
    class Counted(Ends):
        def latest(self) -> Mapping[int, int]:
            asked.append(1)
            return self.ends

    found = logs({0: 5, 1: 5})
    source: Any = Counted({0: 5, 1: 5}, {0: 0, 1: 0})
    found.sources["letters"] = OneLog(source)
    head = Clock({"letters": {0: 5, 1: 5}})
    assert found.look(head, {"letters": {0: 9}}).ends == head, "the first time it is, whatever was heard"
    assert found.look(head, {"letters": {0: 9}}).ends == Clock({"letters": {0: 9, 1: 5}})
    further = Clock({"letters": {0: 12, 1: 5}})
    assert found.look(further, {"letters": {0: 9}}).ends == further, "it is at least as far as we are"
    assert len(asked) == 1
    found.look(head, {})
    assert len(asked) == 2, "nobody follows it any more"
    found._asked["letters"] -= 2
    found.look(head, {"letters": {0: 13}})
    assert len(asked) == 3, "and once in a while it is"
