"""How joins of streams and look-ups become flows that end in their stage, and which layouts of state they have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from hailstorm.columns import EVENT_TIME, GONE, HIDDEN, OWN_HASH, UPDATED
from hailstorm.engine.plan.flow import Flow
from hailstorm.engine.plan.join import CHANGE, RECORD, JoinedColumns
from hailstorm.engine.plan.sides import Input, together
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.everyone import ControlTable, KeepControl, PairWithEveryone
from hailstorm.engine.stages.join import JoinStreams, Stream, unmatched
from hailstorm.engine.stages.lookup import LookUpLatest, LookupShape
from hailstorm.engine.stages.lookup_by_time import LookUpByTime, expiring, waiting
from hailstorm.engine.stages.sides import ReadDue, Side
from hailstorm.ledger.keyed_state import Layout
from hailstorm.topology.two_sided import Join, Lookup


@dataclass(frozen=True)
class StreamJoinPlan:
    step: Join
    columns: JoinedColumns
    tasks: int
    out: Outlet
    late: Outlet | None

    @property
    def shown(self) -> pa.Schema:
        return pa.schema([self.columns.both.field(name) for name in self.step.schema.names])

    def compiled(self, left: Flow, right: Flow, start: Flow) -> tuple[Flow, tuple[Layout, ...]]:
        """The flow that joins, and its tables of state. `start` is where a task begins that reads what is due."""
        before, after, how = self.step.before_us, self.step.after_us, self.step.how
        sides = (self.columns.of_left(*RECORD), self.columns.of_right(*RECORD))
        names = [tuple(n for n in side.schema.names if n not in HIDDEN.names) for side in sides]
        streams = (
            Stream("left", names[0], before, after, how in ("left", "full", "anti")),
            Stream("right", names[1], after, before, how in ("right", "full")),
        )
        due = [
            due_input(start, unmatched(self.step.name, stream.name), side)
            for stream, side in zip(streams, sides, strict=True)
        ]
        inputs = [Input(left, sides[0]), Input(right, sides[1]), *due]
        stage = JoinStreams(
            step=self.step.name,
            on=self.columns.on,
            columns=self.columns.both,
            how=how,
            streams=streams,
            sides=tuple(one.side for one in inputs),
            out=self.out,
            late=self.late,
        )
        return together(self.step.name, inputs, self.tasks).then(stage), stage.layouts


@dataclass(frozen=True)
class LookupPlan:
    step: Lookup
    columns: JoinedColumns
    tasks: int
    out: Outlet
    late: Outlet | None

    def latest(self, rows: Flow, changes: Flow) -> tuple[Flow, tuple[Layout, ...]]:
        inputs = [Input(rows, self.columns.of_left(*RECORD)), Input(changes, self.columns.of_right(*CHANGE))]
        stage = LookUpLatest(self._shape(inputs))
        return together(self.step.name, inputs, self.tasks).then(stage), (stage.layout,)

    def of_everyone(self, rows: Flow, changes: Flow, key: tuple[str, ...]) -> tuple[Flow, Flow, Layout]:
        """The flow that keeps the table, the flow of pairs, and the table's layout. `key` is the table's own."""
        names = self.step.names
        table = ControlTable(self.step.name, tuple(names[name] for name in key), self.columns.right)
        if self.tasks > 1:
            changes = changes.over(changes.dataframe().repartition(1))
        kept = changes.named(table.layout.table).then(KeepControl(table))
        schema = pa.schema([*self.columns.both, *HIDDEN])
        paired = replace(rows.named(self.step.name), reads=(*rows.reads, table.layout.table))
        stage = PairWithEveryone(table, self.columns.of_rows, self.step.how)
        return kept, paired.then(stage, schema), table.layout

    def by_time(self, rows: Flow, records: Flow, start: Flow) -> tuple[Flow, tuple[Layout, ...]]:
        of_rows = self.columns.of_left(*RECORD)
        of_records = self.columns.of_right(*RECORD, (GONE, pa.field(GONE, pa.bool_())))
        keys = Side(tuple((name, self.columns.common[name]) for name in self.columns.on))
        inputs = [
            Input(rows, of_rows),
            Input(records, of_records),
            due_input(start, waiting(self.step.name), of_rows),
            due_input(start, expiring(self.step.name, self.columns.on), keys),
        ]
        stage = LookUpByTime(self._shape(inputs), self.step.inputs[1])
        flow = together(self.step.name, inputs, self.tasks).then(stage)
        return flow, (stage.versions, stage.waiting, stage.expiring)

    def _shape(self, inputs: list[Input]) -> LookupShape:
        return LookupShape(
            step=self.step.name,
            on=self.columns.on,
            rows=self.columns.of_rows,
            others=self.columns.others,
            how=self.step.how,
            sides=tuple(one.side for one in inputs),
            out=self.out,
            late=self.late,
        )


def due_input(start: Flow, agenda: Layout, like: Side) -> Input:
    """What has become due in an agenda of rows as this side has them. The state knows their time as `_updated`."""
    kept = [(UPDATED if field.name == EVENT_TIME else field.name, field) for field in like.schema]
    columns = (*kept, (OWN_HASH, pa.field(OWN_HASH, pa.int64())))
    schema = pa.schema([field.with_name(name) for name, field in columns])
    return Input(start.then(ReadDue(agenda, schema), schema), Side(columns))
