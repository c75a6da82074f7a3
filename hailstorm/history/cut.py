"""Which states depend on where ticks were cut, and why: these cannot be had from one batch over all records.

Most states cannot be told from those of one batch: folds are commutative, windows correct themselves, joins find the
same pairs. What depends on the order in which rows came does: then only the same ticks give the same state. Whatever
reads such a step depends on it as well.
"""

from __future__ import annotations

from hailstorm.ledger.live import Live
from hailstorm.topology.step import Past, Step
from hailstorm.topology.topology import Topology


def depends_on_cut(topology: Topology, live: Live) -> dict[str, str]:
    """The steps whose state, or rows, depend on where ticks were cut up to this moment, each with the reason."""
    found: dict[str, str] = {}
    for step in topology.steps:
        own = _reason(topology, step, live)
        above = next((name for name in step.inputs if name in found), None)
        if own:
            found[step.name] = own
        elif above is not None:
            found[step.name] = f"it reads '{above}', which depends on it: {found[above].rpartition(': ')[2]}"
    return found


def _reason(topology: Topology, step: Step, live: Live) -> str:
    """What the step says of itself, and what depends on its place in the topology."""
    past = Past(live.late > 0, _partitions(live, topology.timeless(step.name)))
    if own := step.depends_on_cut(past):
        return own
    above = [topology.step(name) for name in step.made_of]
    if any(one.is_table for one in above) and not step.is_table:
        return "it reads the changes of a table, of which each key has at most one per tick"
    if past.came_late and any(one.misses_late for one in above):
        return "what came too late for a window is not in what was made of it"
    return ""


def _partitions(live: Live, spouts: tuple[str, ...]) -> int:
    """How many partitions these have: within one, records have an order of their own."""
    return sum(len(live.clock.get(spout, {})) for spout in spouts)
