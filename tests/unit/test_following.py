"""A worker that follows logs says how far they are when it is told where to begin, and once more when there is more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hailstorm.engine.resident.following import Following
from hailstorm.engine.resident.messages import Follow, News, as_answer
from hailstorm.engine.stages.chain import Line, Pass
from hailstorm.engine.stages.read import ReadLog
from hailstorm.errors import LogError


@dataclass
class Source:
    ends: dict[int, int] = field(default_factory=dict)
    wake: Callable[[], None] = lambda: None
    roster: Mapping[str, str] = field(default_factory=dict)
    error: LogError | None = None

    def follow(self, positions: Mapping[int, int], wake: Callable[[], None]) -> dict[int, int]:
        self.wake = wake
        if self.error is not None:
            raise self.error
        return {p: max(end, self.ends[p]) for p, end in positions.items() if p in self.ends}

    def remembering(self, roster: Mapping[str, str], spout: str = "") -> Source:
        self.roster = roster
        return self


class Wire:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            news = as_answer(frame)
            assert isinstance(news, News)
            self.said.append(news.ends)


def following(source: Any, wire: Any) -> Following:
    none: Any = None
    stage = ReadLog("lines", source, None, (), none, "fail")
    return Following(wire, [Pass("pass#1", (Line("lines", (stage,)),), 1, none)])


START = Follow({"lines": {0: 5, 1: 7}})


def test_news_come_once_after_each_time_that_somebody_waits() -> None:
    source, wire = Source({0: 5, 1: 7}), Wire()
    one = following(source, wire)
    one.go_on(START)
    assert wire.said == [{"lines": {0: 5, 1: 7}}], "nothing new yet"
    source.ends[0] = 6
    source.wake()
    source.ends[0] = 9
    source.wake()
    assert wire.said[1:] == [{"lines": {0: 6, 1: 7}}], "once: the driver is at work by now"
    one.go_on(Follow({"lines": {0: 6, 1: 7}}))
    assert wire.said[2:] == [{"lines": {0: 9, 1: 7}}], "what came meanwhile is told at once"


def test_news_do_not_overtake_the_answer_that_they_follow() -> None:
    """The driver believes the last word. If that were the older one, a record would wait until somebody looks."""
    source, threads = Source({0: 5, 1: 7}), list[threading.Thread]()

    class SlowWire(Wire):
        def send(self, *frames: bytes) -> None:
            if not threads:  # a record comes while the answer is being sent
                source.ends[0] = 6
                threads.append(threading.Thread(target=source.wake))
                threads[0].start()
                threads[0].join(0.2)
            super().send(*frames)

    wire = SlowWire()
    following(source, wire).go_on(START)
    threads[0].join()
    assert wire.said == [{"lines": {0: 5, 1: 7}}, {"lines": {0: 6, 1: 7}}]


def test_nobody_is_told_while_there_is_an_order() -> None:
    source, wire = Source({0: 5, 1: 7}), Wire()
    one = following(source, wire)
    one.go_on(START)
    one.hush()
    source.ends[0] = 6
    source.wake()
    assert len(wire.said) == 1


def test_a_spout_that_is_not_followed_as_a_whole_is_not_named() -> None:
    source, wire = Source({0: 5}), Wire()
    following(source, wire).go_on(START)
    source.error = LogError(30, "away")
    following(source, wire).go_on(START)
    following(object(), wire).go_on(START)
    assert wire.said == [{}, {}, {}]


def test_partitions_are_numbered_as_the_driver_says() -> None:
    source, wire = Source({0: 5, 1: 7}), Wire()
    following(source, wire).go_on(Follow(START.positions, {"lines": {"0": "orders"}}))
    assert source.roster == {"0": "orders"}
