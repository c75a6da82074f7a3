"""Beginnings: steps that are new to tables that have rows already get these rows as their first changes.

A join that knew only later changes of a table would miss what it holds, and a fold would subtract rows that it never
added. So before the commit that names such steps, an advance without records brings them the whole of their tables,
and runs what is below them. The state that it leaves is a part of that commit: nobody sees such a step without it.

The negotiator calls it at the start. Tables are read, and nothing of theirs is changed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval
from hailstorm.engine.advance import Outcome, Work, advance
from hailstorm.engine.plan.builder import Beginning
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.ticks.covering import spouts_above
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.ledger.commit import Covered, Spans
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.topology import Topology

Of = dict[str, dict[str, Spans]]  # spout -> partition -> offsets


@dataclass(frozen=True)
class Begun:
    """What steps have that began with their tables: files, and the records that are in them by way of the tables."""

    outcome: Outcome
    coverage: Covered


def begin(
    spark: SparkSession, topology: Topology, ledger: Ledger, readers: Collection[str], now: datetime
) -> Begun | None:
    """Give these steps the tables that they read, as they are. None where there is no such step."""
    if not readers:
        return None
    steps = set(readers)
    for step in topology.steps:
        if steps.intersection(step.inputs):
            steps.add(step.name)
    beginning = Beginning(frozenset(steps), frozenset(readers))
    plan = compile_topology(spark, topology, PREPARED, beginning=beginning)
    head = ledger.head
    position = head.position()
    work = Work(ledger, head, Interval(position, position), int(now.timestamp() * 1_000_000))
    outcome = advance(spark, plan, work)
    return Begun(outcome, _covered(topology, beginning, set(plan.stateful), head.coverage))


def _covered(topology: Topology, beginning: Beginning, stateful: Collection[str], known: Covered) -> Covered:
    """What is in the state of the steps that were run: of each spout, what their tables have of it."""
    found: Covered = {}

    def given(name: str, reader: str) -> Of:
        """What came to `reader` by way of this input."""
        step = topology.step(name)
        if name in found:
            return found[name]
        if name in stateful and step.is_table and reader in beginning.readers:
            return known.get(name, {})
        if name in stateful or not step.inputs:
            return {spout: {} for spout in spouts_above(topology, name)}
        return _agreed([given(above, reader if step.is_table else "") for above in step.inputs])

    for step in topology.steps:
        if step.name in beginning.steps and step.name in stateful:
            found[step.name] = _agreed([given(name, step.name) for name in step.inputs])
    return found


def _agreed(ways: list[Of]) -> Of:
    """Where a spout comes in two ways that differ (a stream, and a table of the same records), nothing is said of it:
    the step has all of it only from now on."""
    spouts = sorted({spout for way in ways for spout in way})
    of_spouts = {spout: [way[spout] for way in ways if spout in way] for spout in spouts}
    return {spout: some[0] if all(one == some[0] for one in some) else {} for spout, some in of_spouts.items()}
