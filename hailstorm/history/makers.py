"""The other way round: the records that made a row, within an interval of commits.

Rows carry where they came from through every step without a state. So the interval is run up to the step that keeps
the row, and of what reaches it, the rows with this key say which records they are. That is exact as long as there is no
other state in between: a row of a table was made by many records, and is asked for by its own key. A table of a log is
made of the records themselves: they are read, and what they do to the table is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval
from hailstorm.columns import EVENT_TIME, OFFSET, PARTITION, SPOUT, WINDOW_END, WINDOW_START
from hailstorm.engine.advance import Work, advance
from hailstorm.engine.place import nowhere
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.taps import tapped
from hailstorm.engine.ticks.logs import Logs
from hailstorm.errors import LedgerError, WordError
from hailstorm.history.committed import committed_between
from hailstorm.history.one_record import Record
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import read_table
from hailstorm.topology.schema import Schema
from hailstorm.topology.step import ArrowBolt, Process, Select, Sink, SourceTable, Spout, Step, Top, Where
from hailstorm.topology.topology import Topology

_ORIGINS = "origins"  # the step that is put below what the row's step reads
_COLUMNS = {"spout": SPOUT, "partition": PARTITION, "offset": OFFSET}


@dataclass(frozen=True)
class Origins:
    """A function over Arrow batches: where the rows come from that have these values, and this time."""

    values: Mapping[str, Any]
    start: datetime | None = None
    end: datetime | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        masks = [_is(batch.column(name), value) for name, value in self.values.items()]
        time = batch.column(EVENT_TIME)
        if self.start is not None:
            masks.append(pc.fill_null(pc.greater_equal(time, pa.scalar(self.start, time.type)), False))
        if self.end is not None:
            masks.append(pc.fill_null(pc.less(time, pa.scalar(self.end, time.type)), False))
        found = batch.filter(reduce(pc.and_, masks, pa.array([True] * batch.num_rows)))
        origin = [found.column(hidden) for hidden in _COLUMNS.values()]
        hidden = [found.column(name) for name in (*_COLUMNS.values(), EVENT_TIME)]
        return pa.RecordBatch.from_arrays([*origin, *hidden], names=[*_COLUMNS, *_COLUMNS.values(), EVENT_TIME])


def _is(column: pa.Array, value: Any) -> pa.Array:
    if value is None:
        return column.is_null()
    if pa.types.is_nested(column.type):
        return pa.array([one == value for one in column.to_pylist()], pa.bool_())
    return pc.fill_null(pc.equal(column, _scalar(value, column.type)), False)


@dataclass(frozen=True)
class Makers:
    """Who made a row between two commits: after `base`, up to `until`."""

    spark: SparkSession
    topology: Topology
    ledger: Ledger
    base: Live
    until: Live

    def of_key(self, step: str, key: Mapping[str, Any]) -> tuple[Record, ...]:
        """The records whose rows reached a step with this key. Of windows, `window_start` and `window_end` may be in
        it. Values may be text, as a person types them."""
        keyed, wanted = wanted_rows(self.topology, self.ledger, self.until, step, key)
        if isinstance(keyed, SourceTable):
            records = self._rows_with(self._read_as_records(keyed), keyed, keyed.name, wanted)
        else:
            records = {one for name in keyed.inputs for one in self._records(keyed, name, wanted)}
        return tuple(sorted(records, key=_order))

    def of_output(self, sink: str, row: int) -> tuple[Record, ...]:
        """The records that made a row of a sink's outbox, in the last commit of the interval."""
        step = sink_called(self.topology, sink)
        commit = self.ledger.read_commit(self.until.commit)
        files = () if commit is None else commit.outbox.get(sink, ())
        if not all(self.ledger.store.exists(file.path) for file in files):
            files = ()
        rows = [one for file in files for one in read_table(self.ledger.store, file.path).to_pylist()]
        if row >= len(rows):
            raise LedgerError(
                86,
                f"commit {self.until.commit} has no row {row} for sink '{sink}'"
                + (f": it has {len(rows)}" if rows else ""),
                hint="What was delivered is removed after a while. Keys can be asked for: trace --key STEP KEY",
            )
        source = self.topology.step(step.inputs[0])
        if source.is_table:
            return self.of_key(source.name, {name: rows[row][name] for name in source.key})
        values = {name: value for name, value in rows[row].items() if not name.startswith("_")}
        return tuple(sorted(self._records(step, source.name, Origins(values)), key=_order))

    def _records(self, step: Step, source: str, wanted: Origins) -> set[Record]:
        above = self.topology.only([source])
        other = next((one for one in above.steps if one.keeps_state or isinstance(one, Process | SourceTable)), None)
        if other is not None:
            raise LedgerError(
                87,
                f"'{step.name}' is made of '{other.name}', which has a state of its own",
                hint=f"Its rows are made of many records. Ask for one of its keys: trace APP --key {other.name} KEY",
            )
        return self._rows_with(above, step, source, wanted)

    def _read_as_records(self, table: SourceTable) -> Topology:
        """A table of a log without its state: a spout of all its records, also of those that remove their key."""
        values = {one.name: getattr(table, one.name) for one in fields(Spout)}
        return self.topology.only([table.name]).with_steps(lambda _: Spout(**values))

    def _rows_with(self, above: Topology, step: Step, source: str, wanted: Origins) -> set[Record]:
        """Run the interval up to `source`, and see which rows of it are wanted."""
        schema = Schema.parse("spout STRING, partition INT, offset BIGINT", step.at)
        above.add(
            ArrowBolt(
                name=_ORIGINS,
                at=step.at,
                inputs=(source,),
                schema=schema,
                function=wanted,
                grouping=None,
                on_error="fail",
                event_time=None,
            )
        )
        logs = Logs(above, self.ledger.newest())
        plan = compile_topology(self.spark, logs.used_by(tapped(above, [_ORIGINS])), 1)
        found: set[Record] = set()
        start, end = self.base.position(), self.until.position()
        read = committed_between(self.ledger, self.base.commit, self.until.commit)
        only = [
            part
            for one in read
            if one.commit.first or not one.commit.changes_otherwise
            for tick in one.ticks
            for part in tick.only or ()
        ]
        mine = tuple(part for part in dict.fromkeys(only) if part.spout in logs.sources)
        now = round(datetime.fromisoformat(self.until.at).timestamp() * 1_000_000)
        with nowhere(self.ledger) as place:
            work = Work(self.ledger, self.base, Interval(start, end), now, place=place, taps=(_ORIGINS,), only=mine)
            outcome = advance(self.spark, plan, work)
            for file in outcome.taps[_ORIGINS]:
                for row in read_table(open_store(place.address), file.path).to_pylist():
                    if row["offset"] is not None:
                        found.add(Record(row["spout"], row["partition"], row["offset"]))
        return found


def sink_called(topology: Topology, name: str) -> Sink:
    step = topology.step(name)
    if not isinstance(step, Sink):
        raise LedgerError(85, f"'{name}' is no sink", hint="Write SINK/COMMIT/ROW: board/42/0")
    return step


def wanted_rows(
    topology: Topology, ledger: Ledger, until: Live, step: str, key: Mapping[str, Any]
) -> tuple[Step, Origins]:
    """Who keeps the rows of a step, and those of them that have this key. Runs nothing: what is wrong with a key can be
    said before Spark starts."""
    keyed = _keeper_of(topology, topology.step(step))
    by = keyed.by if isinstance(keyed, Process) else keyed.key
    for name in key:
        if name not in by:
            raise LedgerError(
                84,
                f"'{name}' is no key column of '{keyed.name}'",
                hint=f"It is kept by {', '.join(by) or 'nothing'}.",
            )
    if isinstance(keyed, Spout) and not keyed.is_table:
        hint = "Ask what became of one of its records: trace APP SPOUT/PARTITION@OFFSET"
        raise LedgerError(84, f"'{keyed.name}' is a spout, and has no keys", hint=hint)
    types = State(ledger, until, keyed.name).key_types() if keyed.name in until.steps else {}
    window = {name: _moment(name, key[name]) for name in (WINDOW_START, WINDOW_END) if name in key}
    values = {name: value for name, value in key.items() if name not in window}
    for name in values.keys() & types.keys():
        _refuse_other_type(name, values[name], types[name])
    return keyed, Origins(values, window.get(WINDOW_START), window.get(WINDOW_END))


def _keeper_of(topology: Topology, step: Step) -> Step:
    """The step whose keys a table's rows have: a top, and what is left of a table, have those of their table."""
    while isinstance(step, Top | Where | Select) and topology.step(step.inputs[0]).is_table:
        step = topology.step(step.inputs[0])
    return step


def _refuse_other_type(name: str, value: Any, type_: pa.DataType) -> None:
    try:
        _scalar(value, type_)
    except (pa.ArrowException, OverflowError) as error:
        raise WordError(8, f"key column '{name}' is {type_}, and {value} is not") from error


def _moment(name: str, value: Any) -> datetime:
    try:
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        hint = "Write it as ISO 8601: 2026-01-01T10:00:00+00:00"
        raise WordError(8, f"key column '{name}' is a time, and {value} is not", hint=hint) from error


def _scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """A value, which may be text as a person types it, as a column has it. Nothing is rounded or cut off."""
    return pa.scalar(value).cast(type_) if isinstance(value, str | float) else pa.scalar(value, type_)


def _order(record: Record) -> tuple[str, int, int]:
    return record.spout, record.partition, record.offset
