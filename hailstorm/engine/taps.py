"""Taps: the rows of some steps, wanted back from an advance beside what it writes.

A tap is a sink that keeps nothing. An advance that is asked for it (`Work.taps`) gives its rows back in the outcome;
one that is not writes them to its outbox like those of any sink: the test driver reads them there, commit by commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hailstorm.sinks.sink import Cursor, Delivery, Parcel
from hailstorm.topology.ends import Sink
from hailstorm.topology.topology import Topology


def tap_of(step: str) -> str:
    """The name of the sink that is the tap on a step."""
    return f"tap-{step.replace('.', '--')}"


def tapped(topology: Topology, steps: Iterable[str]) -> Topology:
    """The topology with a tap on each of these steps."""
    whole = topology.with_steps(lambda step: step)
    for name in steps:
        step = topology.step(name)
        whole.add(
            Sink(
                name=tap_of(name),
                at=step.at,
                inputs=(name,),
                schema=step.schema,
                key=step.key,
                is_table=step.is_table,
                sink=Nowhere(),
                delivery="exactly-once",
            )
        )
    return whole


@dataclass(frozen=True)
class Nowhere:
    """A sink that keeps nothing."""

    keeps_cursor: bool = False
    forgets: bool = False

    def open(self, delivery: Delivery) -> None: ...

    def cursor(self) -> Cursor | None:
        return None

    def deliver(self, parcel: Parcel) -> None: ...

    def close(self) -> None: ...

    def resolve(self, folder: Path) -> Nowhere:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "nowhere"}
