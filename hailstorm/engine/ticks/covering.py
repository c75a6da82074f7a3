"""Coverage in use: which records each stateful step has been given, so that none is counted twice.

A tick gives its interval to every stateful step below its spouts; a record that is in a step's coverage already is
refused. A retried letter goes into a step only where its record was given before (docs/decisions/0040-coverage.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from hailstorm.clock.clock import Interval
from hailstorm.clock.coverage import Coverage, Overlap
from hailstorm.errors import RunError
from hailstorm.ledger.commit import Covered
from hailstorm.ledger.live import Live
from hailstorm.topology.topology import Topology


def begun(topology: Topology, stateful: Iterable[str], known: Covered) -> Covered:
    """The coverage of the stateful steps of a topology: what is known, and nothing yet of spouts that are new."""
    return {
        step: {spout: known.get(step, {}).get(spout, {}) for spout in sorted(spouts_above(topology, step))}
        for step in stateful
    }


def refuse_overlap(head: Live, interval: Interval) -> None:
    """Raise when a step that would be given the interval has got a part of it already."""
    read = Coverage.of_interval(interval)
    for step, spouts in head.coverage.items():
        if step in head.fingerprints:
            mine = Coverage.of_ranges(one for one in read if one.spout in spouts)
            try:
                Coverage.from_json(spouts).union(mine)
            except Overlap as error:
                raise RunError(
                    31,
                    f"step '{step}' would count records twice: {error}",
                    hint="Nothing was committed. The ledger's clock and what its states contain do not fit together:\n"
                    "was a file of the ledger changed by hand?",
                ) from error


def spouts_above(topology: Topology, name: str) -> set[str]:
    return {spout.name for spout in topology.only([name]).spouts}
