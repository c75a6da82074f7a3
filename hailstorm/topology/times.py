"""Which steps need the times of rows, and which tables must tell when one moved, although its values stayed equal.

A change of a table carries a time, and `latest` below it goes by that. An update that leaves the values as they were
would be no change to anybody else: sinks and bolts never see it. So it flows only where a step below reads the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailstorm.topology.step import Step

if TYPE_CHECKING:
    from hailstorm.topology.topology import Topology


def times_matter(topology: Topology, table: str) -> bool:
    """Whether a step below this table reads the times of its rows, or hands them on to one that does."""
    return any(_reads_times(topology, step) for step in topology.consumers(table))


def _reads_times(topology: Topology, step: Step) -> bool:
    return step.reads_times or (step.is_table and times_matter(topology, step.name))


def folds_times(topology: Topology, step: Step) -> bool:
    """Whether a fold of a table must know the times of its rows: then it keeps them, also where it could subtract.

    The time of its row is the latest of the rows behind it now. What has come and gone leaves no trace, so it does not
    matter how the input was cut into ticks.
    """
    return step.keeps_times and topology.step(step.inputs[0]).is_table and times_matter(topology, step.name)


def goes_by_time_below(topology: Topology, name: str) -> bool:
    """Whether a step that gets the rows of this one, with the times that they have here, goes by these."""
    return any(
        step.goes_by_time or (not step.has_own_times and goes_by_time_below(topology, step.name))
        for step in topology.consumers(name)
    )
