"""The watermarks of a topology from one commit to the next: of its spouts, and of every step below them.

A tick uses those of the commit before (`Work.watermarks`); what it saw makes those of its own commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hailstorm.clock.watermark import OfSteps, Patience, Time, Watermark, of_steps
from hailstorm.engine.stages.order import Seen
from hailstorm.ledger.live import Live
from hailstorm.topology.topology import Topology

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Released = Callable[[str, Time], Time]  # the output watermark of a step, from its input watermark


def _at_once(step: str, watermark: Time) -> Time:
    return watermark


@dataclass(frozen=True)
class Times:
    topology: Topology

    def after(self, head: Live, seen: Mapping[str, Mapping[int, Seen]], now: int) -> Watermark:
        """After a tick at `now` (µs) that saw this. The wall clock alone may move it, where all partitions are idle."""
        highest = {
            spout: {p: one.highest for p, one in partitions.items() if one.highest is not None}
            for spout, partitions in seen.items()
            if spout in self._patience
        }
        return self.at(head).advance(highest, now, self._patience)

    def at(self, head: Live) -> Watermark:
        """As it is at a commit, of the spouts that the topology has by now."""
        spouts = {
            name: time for name in self._patience if (time := head.watermarks.get(name, (None, None))[1]) is not None
        }
        return Watermark.from_json(_micros(head.watermark), spouts, head.event_times)

    def at_the_end(self, head: Live) -> Watermark:
        """When the logs are said to hold all that there will be."""
        return self.after(head, {}, 0).ended(self._patience)

    def of_steps(self, watermark: Watermark, released: Released = _at_once) -> OfSteps:
        return of_steps([(step.name, step.clocked_by) for step in self.topology.steps], watermark.spouts, released)

    def fields(self, watermark: Watermark, released: Released = _at_once) -> dict[str, Any]:
        """What a commit says of it. Sinks have no time of their own."""
        return {
            "watermark": _iso(watermark.time),
            "watermarks": self._said(watermark, released),
            "event_times": msgspec.convert(watermark.to_json(), dict[str, dict[str, tuple[int, int]]]),
        }

    def evolved(self, head: Live, released: Released = _at_once) -> OfSteps:
        """Of the steps that the topology has by now, at a commit of another one: they follow from those of the spouts.

        Without it, a step that is new would have none in its first tick, and nothing would be late for it there.
        """
        return self._said(self.at(head), released) if head.watermarks else {}

    def _said(self, watermark: Watermark, released: Released) -> OfSteps:
        steps = self.of_steps(watermark, released)
        return {name: times for name, times in steps.items() if self.topology.step(name).gives_rows}

    @property
    def _patience(self) -> dict[str, Patience]:
        """Also of spouts whose records have no time: the end of input ends those, too."""
        return {
            spout.name: Patience(spout.lateness_ms * 1000, None if spout.idle_ms is None else spout.idle_ms * 1000)
            for spout in self.topology.spouts
        }


def _iso(micros: int | None) -> str | None:
    # In whole numbers: a float would round the ends of time beyond them.
    return None if micros is None else (_EPOCH + timedelta(microseconds=micros)).isoformat()


def _micros(iso: str | None) -> int | None:
    return None if iso is None else (datetime.fromisoformat(iso) - _EPOCH) // timedelta(microseconds=1)
