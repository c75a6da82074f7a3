"""Many commits in a short time: ticks whose Spark job is left out.

Such a tick writes the run that the job would have written, a few rows of the state as they are; choosing, the
commit, compaction and manifests are the engine's own. So a ledger gets as old as after a day, in minutes.
"""

from __future__ import annotations

from unittest.mock import patch

from pyspark.sql import SparkSession

from bench.peers.topologies import SPOUT
from hailstorm.clock.clock import Clock
from hailstorm.engine.advance import Outcome, Work
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.stages.order import Seen
from hailstorm.engine.ticks import attempts
from hailstorm.ledger.commit import StateChange
from hailstorm.ledger.runs import write_run

_ROWS = 10


def grow_old(negotiator: Negotiator, step: str, commits: int) -> None:
    """Tick until the ledger has so many commits."""

    def advance(spark: SparkSession, plan: Plan, work: Work, resident: Resident | None = None) -> Outcome:
        ledger = work.ledger
        oldest = ledger.head.runs[step][0]
        rows = ledger.cache.open(step, oldest).table
        start = ledger.head.commit * _ROWS % (rows.num_rows - _ROWS)
        few = rows.slice(start, _ROWS).combine_chunks()
        run = write_run(ledger.store, step, few, ledger.stamp)
        ledger.cache.put(step, run.id, few)
        seen = {SPOUT: {0: Seen(rows=len(work.interval))}}
        return Outcome(work.interval, state={step: StateChange(added=(run,))}, seen=seen)

    with patch.object(attempts, "advance", advance):
        while negotiator.ledger.head.commit < commits:
            end = (negotiator.position().offset(SPOUT, 0) or 0) + _ROWS
            negotiator.tick(Clock({SPOUT: {0: end}}))
