"""Reading ahead: whatever a consumer gives and whenever, a range gets exactly its records, or is read as ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hailstorm.spouts.kafka import ahead
from hailstorm.spouts.kafka.client import Cluster

CLUSTER = Cluster("nowhere:9092", {})


@dataclass(frozen=True)
class Message:
    number: int
    place: ahead.Place = ("orders", 0)
    problem: str | None = None

    def offset(self) -> int:
        return self.number

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def error(self) -> Message | None:
        return self if self.problem else None

    def name(self) -> str:
        return str(self.problem)

    def str(self) -> str:
        return str(self.problem)

    def __len__(self) -> int:
        return 10


@dataclass
class Consumer:
    """Gives what the test puts into it, in pieces of random size."""

    settings: dict[str, Any]
    waiting: list[Message] = field(default_factory=list)
    there: threading.Condition = field(default_factory=threading.Condition)
    assigned: list[Any] = field(default_factory=list)
    closed: bool = False

    def assign(self, places: list[Any]) -> None:
        self.assigned = places

    def give(self, *messages: Message) -> None:
        with self.there:
            self.waiting += messages
            self.there.notify_all()

    def poll(self, timeout: float) -> Message | None:
        with self.there:
            return self.waiting.pop(0) if self.there.wait_for(lambda: self.waiting, timeout) else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        with self.there:
            count = random.randint(0, min(count, len(self.waiting)))
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Consumer]]:
    consumers: list[Consumer] = []

    class Library:
        KafkaException = type("KafkaException", (Exception,), {})

        @staticmethod
        def Consumer(settings: dict[str, Any]) -> Consumer:
            consumers.append(Consumer(settings))
            return consumers[-1]

        @staticmethod
        def TopicPartition(topic: str, partition: int, offset: int) -> tuple[str, int, int]:
            return topic, partition, offset

    monkeypatch.setattr(ahead, "load", lambda: Library)
    monkeypatch.setattr(ahead, "_PATIENCE", 0.05)
    yield consumers
    with ahead._lock:
        for one in ahead._following.values():
            one.close()
        ahead._following.clear()


def numbers(taken: list[Any] | None) -> list[int] | None:
    return None if taken is None else [message.offset() for message in taken]


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.002)


def following(positions: dict[ahead.Place, int], wake: Callable[[], None] = lambda: None) -> dict[ahead.Place, int]:
    return ahead.follow(CLUSTER, positions, wake)


P0, P1 = ("orders", 0), ("orders", 1)


def test_a_range_gets_its_records_and_the_next_one_the_rest(made: list[Consumer]) -> None:
    assert following({P0: 5}) == {P0: 5}
    assert made[0].assigned == [("orders", 0, 5)]
    made[0].give(*map(Message, range(5, 12)))
    eventually(lambda: following({P0: 5}) == {P0: 12})
    assert numbers(ahead.taken_ahead(CLUSTER, P0, 5, 8)) == [5, 6, 7]
    assert following({P0: 8}) == {P0: 12}
    assert numbers(ahead.taken_ahead(CLUSTER, P0, 8, 12)) == [8, 9, 10, 11]
    assert len(made) == 1, "one consumer, kept at its position"


def test_a_range_that_is_not_all_here_is_not_given_at_all(made: list[Consumer]) -> None:
    following({P0: 5})
    made[0].give(*map(Message, range(5, 8)))
    eventually(lambda: following({P0: 5}) == {P0: 8})
    assert ahead.taken_ahead(CLUSTER, P0, 5, 9) is None, "its end has not come"
    assert ahead.taken_ahead(CLUSTER, P0, 4, 6) is None, "its beginning was never here"
    assert ahead.taken_ahead(CLUSTER, P1, 5, 6) is None, "nobody follows that"
    assert numbers(ahead.taken_ahead(CLUSTER, P0, 5, 8)) == [5, 6, 7]
    assert ahead.taken_ahead(CLUSTER, P0, 5, 8) is None, "a second time: that is read as ever"


def test_gaps_and_the_end_of_a_partition_are_passed(made: list[Consumer]) -> None:
    following({P0: 0})
    made[0].give(Message(0), Message(3), Message(6, problem="_PARTITION_EOF"))
    eventually(lambda: following({P0: 0}) == {P0: 6})
    assert numbers(ahead.taken_ahead(CLUSTER, P0, 0, 2)) == [0]
    assert numbers(ahead.taken_ahead(CLUSTER, P0, 2, 6)) == [3]


def test_who_goes_on_elsewhere_gets_another_consumer_and_not_what_the_old_one_still_has(
    made: list[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_SECONDS_OF_ONE", 0.0)
    following({P0: 0})
    made[0].give(Message(0), Message(1))
    eventually(lambda: following({P0: 0}) == {P0: 2})
    assert following({P0: 100}) == {P0: 100}
    assert following({P0: 100, P1: 7}) == {P0: 100, P1: 7}, "a new partition"
    assert [one.assigned for one in made[1:]] == [[("orders", 0, 100)], [("orders", 0, 100), ("orders", 1, 7)]]
    eventually(lambda: made[0].closed)
    made[0].give(Message(2))
    assert ahead.taken_ahead(CLUSTER, P0, 2, 3) is None


def test_a_consumer_that_was_of_no_use_is_not_followed_by_another_at_once(made: list[Consumer]) -> None:
    following({P0: 0})
    assert following({P0: 100}) == {}
    assert following({P0: 200}) == {}
    assert len(made) == 1


@pytest.mark.parametrize("problem", ["_AUTO_OFFSET_RESET", "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART"])
def test_an_error_that_stays_ends_following_and_who_reads_meets_it(made: list[Consumer], problem: str) -> None:
    following({P0: 0})
    made[0].give(Message(0), Message(0, problem=problem))
    eventually(lambda: made[0].closed)
    assert following({P0: 0}) == {}
    assert ahead.taken_ahead(CLUSTER, P0, 0, 1) is None


def test_a_broker_that_is_away_for_a_while_changes_nothing(made: list[Consumer]) -> None:
    following({P0: 0})
    made[0].give(Message(0), Message(-1, ("", -1), "_ALL_BROKERS_DOWN"), Message(1))
    eventually(lambda: following({P0: 0}) == {P0: 2})


def test_what_nobody_reads_is_not_kept_without_bound(made: list[Consumer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_MOST_BYTES", 500)
    monkeypatch.setattr(ahead, "_TAKE", 10)
    following({P0: 0})
    made[0].give(*map(Message, range(1000)))
    eventually(lambda: following({P0: 0})[P0] >= 50)
    time.sleep(0.05)
    read = following({P0: 0})[P0]
    assert read <= 61
    assert numbers(ahead.taken_ahead(CLUSTER, P0, 0, read)) == list(range(read))
    following({P0: read})
    eventually(lambda: following({P0: read})[P0] > read)


def test_whoever_waits_is_woken_when_there_is_more(made: list[Consumer]) -> None:
    woken = threading.Event()
    following({P0: 0}, woken.set)
    assert not woken.is_set()
    made[0].give(Message(0))
    assert woken.wait(10)


@pytest.mark.parametrize("seed", range(20))
def test_any_ranges_in_any_order_give_the_records_of_the_log(made: list[Consumer], seed: int) -> None:
    """The log has gaps, and the consumer gives some records twice, as after a break."""
    chance = random.Random(seed)
    log = {place: sorted(chance.sample(range(200), 120)) for place in (P0, P1)}
    following({P0: 0, P1: 0})
    sent = {P0: 0, P1: 0}
    position = {P0: 0, P1: 0}
    end = {place: offsets[-1] + 1 for place, offsets in log.items()}
    while any(position[place] < end[place] for place in (P0, P1)):
        for place in (P0, P1):
            again = max(0, sent[place] - chance.randint(0, 3))
            more = min(len(log[place]), sent[place] + chance.randint(0, 12))
            made[-1].give(*(Message(offset, place) for offset in log[place][again:more]))
            sent[place] = more
        place = chance.choice((P0, P1))
        known = following(position).get(place, position[place])
        if known > position[place]:
            stop = chance.randint(position[place] + 1, known)
            taken = numbers(ahead.taken_ahead(CLUSTER, place, position[place], stop))
            assert taken == [offset for offset in log[place] if position[place] <= offset < stop]
            position[place] = stop
    assert len(made) == 1
