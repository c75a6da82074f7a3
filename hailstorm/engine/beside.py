"""What runs beside ticks, and the commits that it needs: delivery, and housekeeping.

Both have threads of their own, and neither commits: there is one writer. So the negotiator tells them of its commits,
and between two ticks, in its own thread, lets this module commit what they wait for: runs and letters that were merged,
and the whole tables of sinks that lack theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hailstorm.clock.clock import Interval
from hailstorm.columns import KIND
from hailstorm.engine.advance import Work, whole_table
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.plan.flow import type_text
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.spark.session import is_on_this_machine
from hailstorm.engine.stages.exchange import borders
from hailstorm.engine.ticks.committing import Committer
from hailstorm.engine.ticks.housekeeping import Housekeeper
from hailstorm.engine.ticks.letters import merged_letters
from hailstorm.engine.ticks.merging import MergeInTasks
from hailstorm.ledger.commit import JOINED, RESENT, DataFile
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.runs import write_rows
from hailstorm.topology.ends import Sink
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.settings import Settings
from hailstorm.topology.topology import Topology

_DRAIN_SECONDS = 60.0


class Beside:
    """Of one run. `start` once, `notice` after every commit, `catch_up` between ticks, `end` or `abandon`."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        ledger: Ledger,
        settings: Settings,
        plan: Plan,
        committer: Committer,
        outbox: LedgerOutbox,
        now: Callable[[], datetime],
        tasks: int,
    ) -> None:
        """`tasks` is the most that a tick may have: of so many, each owns a range of hashes."""
        self._spark, self._ledger, self._plan = spark, ledger, plan
        self._committer, self._now = committer, now
        self._outbox_limit = settings.outbox_limit
        self.sinks = typed_sinks(topology, plan)
        self.deliverer = Deliverer(topology.name, self.sinks, outbox, settings)
        keeping = (settings.publish_every, settings.tiers, settings.history_limit)
        if is_on_this_machine(spark):
            self.housekeeper = Housekeeper(ledger, *keeping)
        else:
            # Tasks on other machines merge what is large: the driver would have to read all of it over the network.
            far = MergeInTasks(spark, ledger.store.address, ledger.copies, tasks)
            self.housekeeper = Housekeeper(ledger, *keeping, elsewhere=far, borders=borders(tasks))

    def start(self, resend: tuple[str, ...]) -> None:
        """The sinks in `resend` get the whole of their table, whatever their targets hold."""
        self.housekeeper.start()
        if resend:  # before anybody looks at the targets: this says that they are to be taken over
            self.give_whole_tables(resend, RESENT)
        self.deliverer.start()

    def notice(self) -> None:
        """There is a new commit."""
        self.deliverer.notify(self._ledger.head.commit)
        self.housekeeper.notice(self._ledger.head)

    def catch_up(self) -> None:
        """Commit what waits for it."""
        self._commit_compactions()
        if lacking := self.deliverer.lacking():
            self.give_whole_tables(lacking)

    def too_far_behind(self) -> str | None:
        """A sink whose outbox is full, if there is one."""
        states = self.deliverer.states()
        return next((name for name, state in states.items() if state.behind > self._outbox_limit), None)

    def give_whole_tables(self, sinks: tuple[str, ...], why: str = JOINED) -> None:
        """A commit with the tables of these sinks as they are now."""
        now, head = self._now(), self._ledger.head
        position = head.position()
        work = Work(self._ledger, head, Interval(position, position), int(now.timestamp() * 1_000_000))
        outbox = {sink: whole_table(self._spark, self._plan, work, sink) or self._no_rows(sink) for sink in sinks}
        self.deliverer.notify(self._committer.whole(outbox, dict.fromkeys(sinks, why), now).commit)

    def end(self, in_a_hurry: bool) -> None:
        """Deliver what is committed, and end. What cannot be delivered in time waits in the outbox."""
        self.deliverer.drain(_DRAIN_SECONDS, once=in_a_hurry)
        if lacking := self.deliverer.lacking():
            self.give_whole_tables(lacking)
            self.deliverer.drain(_DRAIN_SECONDS)
        self.abandon()
        self._commit_compactions()
        self.housekeeper.publish_the_end()

    def abandon(self) -> None:
        """End at once. Deliveries that are under way are finished by the next run."""
        self.deliverer.stop()
        self.housekeeper.stop()

    def _commit_compactions(self) -> None:
        if found := self.housekeeper.finished():
            live = {table: {run.id for run in runs} for table, runs in self._ledger.head.runs.items()}
            # What was merged of runs that have been replaced meanwhile is of no use.
            changes = {t: change for t, change in found.items() if live.get(t, set()).issuperset(change.removed)}
            if changes:
                self._committer.compaction(changes)
            self.housekeeper.committed(found, self._ledger.head)
        if merged := merged_letters(self._ledger):
            self._committer.letters(merged)

    def _no_rows(self, sink: str) -> tuple[DataFile, ...]:
        """An empty table has a file, too: what waits for a sink is what has files for it."""
        none = pa.table({KIND: pa.array([], pa.string())})
        return (write_rows(self._ledger.store, f"outbox/{sink}", none, self._ledger.stamp),)


def typed_sinks(topology: Topology, plan: Plan) -> list[Sink]:
    """The sinks with the types of what they get. Of what an SQL step selects only Spark knows them, and so a plan."""
    return [replace(sink, schema=_schema(plan.schemas[sink.inputs[0]])) for sink in topology.sinks]


def _schema(columns: pa.Schema) -> Schema:
    fields = from_arrow_schema(columns).fields
    return Schema(tuple(Column(field.name, type_text(field.dataType)) for field in fields))
