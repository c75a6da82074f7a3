"""The plans of a run: one for each number of tasks, compiled when it is first asked for, and kept.

On a cluster the number of tasks follows the cores that are there. An executor that dies and comes back finds the plan
that was left; but where numbers come and go for days, only the newest few of them have a plan.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.ticks.logs import Logs, Rosters
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.topology.topology import Topology

_MOST = 4  # planned ones

Made = dict[int, tuple[Plan, Rosters]]  # by tasks, each with the rosters that its sources know


class Plans:
    def __init__(self, spark: SparkSession, topology: Topology, logs: Logs, made: Made | None = None) -> None:
        self._spark, self._topology, self._logs = spark, topology, logs
        self._made = dict(made or {})

    def of(self, way: int) -> Plan:
        tasks = max(way, PREPARED)  # a resident worker runs the passes of the prepared plan
        if tasks not in self._made:
            plan = compile_topology(self._spark, self._logs.used_by(self._topology), tasks)
            self._made[tasks] = plan, dict(self._logs.rosters)
            self._forget_the_oldest()
        return self._made[tasks][0]

    def newer_rosters(self, way: int) -> Rosters:
        """Of spouts whose logs have come or gone since the plan of this way was made. It stays, and so does a worker
        that knows it."""
        known = self._made[max(way, PREPARED)][1]
        return {spout: roster for spout, roster in self._logs.rosters.items() if roster != known.get(spout)}

    def _forget_the_oldest(self) -> None:
        planned = [tasks for tasks in self._made if tasks > PREPARED]
        for tasks in planned[:-_MOST]:
            del self._made[tasks]
