"""The other way round: the records that made a row, within an interval of commits.

Rows carry where they came from through every step without a state. So where there is no other state above the step that
keeps the row, the interval is run up to it at once, and of what reaches it, the rows with this key say which records
they are. A table of a log is made of the records themselves: they are read, and what they do to the table is left out.

Below a state the ticks of the interval are run again one by one, and what reached each step with state is seen
(witnesses.py). From the row that is asked for, the rows that it was made of are followed up from step to step
(made_of.py), until they are records. What was read before the interval is not found.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval
from hailstorm.columns import EVENT_TIME, OFFSET, PARTITION, SPOUT, TIME, WINDOW_END, WINDOW_START
from hailstorm.engine.advance import Work, advance
from hailstorm.engine.place import nowhere
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.stages.marks import row_texts, texts
from hailstorm.engine.taps import tapped
from hailstorm.engine.ticks.logs import Logs
from hailstorm.errors import LedgerError, WordError
from hailstorm.history import made_of
from hailstorm.history.committed import committed_between
from hailstorm.history.made_of import Ask, Given, keeper_of
from hailstorm.history.one_record import Record
from hailstorm.history.rerun import Tell, silent
from hailstorm.history.witnesses import OWN, Seen, Witnesses, seen_in, witness, witnessed
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.same_value import same_value
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import read_table
from hailstorm.topology.schema import Schema
from hailstorm.topology.stateless import ArrowBolt
from hailstorm.topology.step import Step
from hailstorm.topology.topology import Topology

_ORIGINS = "trace-origins"  # the step that is put below what the row's step reads
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
        return pa.array([same_value(one, value) for one in column.to_pylist()], pa.bool_())
    scalar = _scalar(value, column.type)
    is_nan = pa.types.is_floating(column.type) and math.isnan(scalar.as_py())
    return pc.fill_null(pc.is_nan(column) if is_nan else pc.equal(column, scalar), False)


class MadeOf(tuple[Record, ...]):
    """The records that made a row, in order, of those that were read after commit `after`, up to commit `until`."""

    after: int
    until: int

    @staticmethod
    def within(records: Iterable[Record], after: int, until: int) -> MadeOf:
        found = MadeOf(records)
        found.after, found.until = after, until
        return found


@dataclass(frozen=True)
class Makers:
    """Who made a row between two commits: after `base`, up to `until`."""

    spark: SparkSession
    topology: Topology
    ledger: Ledger
    base: Live
    until: Live
    tell: Tell = silent

    def of_key(self, step: str, key: Mapping[str, Any]) -> tuple[Record, ...]:
        """The records whose rows reached a step with this key. Of windows, `window_start` and `window_end` may be in
        it. Values may be text, as a person types them."""
        keyed, wanted = wanted_rows(self.topology, self.ledger, self.until, step, key)
        if not keyed.inputs:
            return _sorted(self._rows_with(self._records_of(keyed.name), keyed, keyed.name, wanted))
        if not self._has_state_above(keyed):
            return _sorted(
                one for name in keyed.inputs for one in self._rows_with(self._above(name), keyed, name, wanted)
            )
        with self.witnessing(keyed.name) as walk:
            return walk.of_key(keyed.name, self.texts_of(keyed, key))

    def of_output(self, sink: str, row: int) -> tuple[Record, ...]:
        """The records that made a row of a sink's outbox, in the last commit of the interval."""
        step = sink_called(self.topology, sink)
        commit = self.ledger.read_commit(self.until.commit)
        files = () if commit is None else commit.outbox.get(sink, ())
        if not all(self.ledger.store.exists(file.path) for file in files):
            files = ()
        rows = [read_table(self.ledger.store, file.path) for file in files]
        place, found = row, None
        for table in rows:
            if place < table.num_rows:
                found = table.slice(place, 1)
                break
            place -= table.num_rows
        if found is None:
            count = sum(table.num_rows for table in rows)
            raise LedgerError(
                86,
                f"commit {self.until.commit} has no row {row} for sink '{sink}'"
                + (f": it has {count}" if rows else ""),
                hint="What was delivered is removed after a while. Keys can be asked for: trace --key STEP KEY",
            )
        source = self.topology.step(step.inputs[0])
        if source.is_table:
            key = made_of.key_of(keeper_of(self.topology, source))
            return self.of_key(source.name, {name: found.column(name)[0].as_py() for name in key})
        public = [name for name in found.column_names if not name.startswith("_")]
        if not self._has_state_above(step):
            values = {name: found.column(name)[0].as_py() for name in public}
            return _sorted(self._rows_with(self._above(source.name), step, source.name, Origins(values)))
        with self.witnessing(sink) as walk:
            last = len(walk.witnesses.ticks) - 1
            return walk.of({(sink, 0): {Ask.of(row_texts(found, public)[0], since=last)}})

    def _has_state_above(self, step: Step) -> bool:
        return any(one.keeps_state for one in self.topology.only(step.inputs).steps)

    def _above(self, source: str) -> Topology:
        return self.topology.only([source]).with_steps(lambda step: step)

    @contextlib.contextmanager
    def witnessing(self, *steps: str) -> Iterator[Walk]:
        """Run the interval again up to what these steps read, for any number of questions."""
        with witnessed(self.spark, self.topology, self.ledger, self.base, self.until, steps, self.tell) as witnesses:
            yield Walk(self.topology, witnesses, self._records_seen)

    def texts_of(self, step: Step, key: Mapping[str, Any]) -> Mapping[str, str]:
        """A key of a step as texts. Values may be text, as a person types them."""
        types = State(self.ledger, self.until, step.name).key_types() if step.name in self.until.steps else {}
        return {name: _text(name, value, types.get(name)) for name, value in key.items()}

    def _records_of(self, table: str) -> Topology:
        """A table of a log without its state."""
        return self.topology.only([table]).of_records()

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
        return {
            Record(row["spout"], row["partition"], row["offset"])
            for table in self._tapped(above)
            for row in table.to_pylist()
            if row["offset"] is not None
        }

    def _records_seen(self, table: Step) -> Iterator[Seen]:
        """The records of a table of a log, as it reads them."""
        above = self._records_of(table.name)
        above.add(witness(table, replace(table, is_table=False), _ORIGINS))  # they are no changes
        for found in self._tapped(above):
            yield from seen_in(found, 0)

    def _tapped(self, above: Topology) -> Iterator[pa.Table]:
        """Run the interval at once, and give what reached the step that was put below."""
        logs = Logs(above, self.ledger.newest())
        plan = compile_topology(self.spark, logs.used_by(tapped(above, [_ORIGINS])), 1)
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
                yield read_table(open_store(place.address), file.path)


_Asks = dict[tuple[str, int], set[Ask]]  # by step, and place among its inputs; OWN: by the key of the step


@dataclass(frozen=True)
class Walk:
    """Up from rows that are asked for, to the records that they were made of, through what was seen."""

    topology: Topology
    witnesses: Witnesses
    records_of: Callable[[Step], Iterable[Seen]]  # of a table of a log

    def of_key(self, step: str, key: Mapping[str, str]) -> tuple[Record, ...]:
        """Who made this key of a step, which may be a part of its key."""
        return self.of({(step, OWN): {Ask.of(key)}})

    def of(self, asks: _Asks) -> tuple[Record, ...]:
        """Who made what is asked for. All that is asked of a step is known before the step is looked at."""
        found: set[Record] = set()
        for step in reversed(self.topology.steps):
            for ask in asks.pop((step.name, OWN), ()):
                if not step.inputs:
                    asks.setdefault((step.name, 0), set()).add(ask)
                    continue
                for place, above in self._of_key(step, ask):
                    self._ask(asks, step, place, above)
            for place in range(max(len(step.inputs), 1)):
                for seen in self._matching(step, place, asks.pop((step.name, place), set())):
                    self._follow(asks, step, place, seen, found)
        return _sorted(found)

    def _of_key(self, step: Step, ask: Ask) -> Iterator[tuple[int, Ask]]:
        yield from made_of.of_key(self.topology, step, ask)
        if made_of.joins_foreign(step):
            for seen in self._matching(step, OWN, {ask}):
                for row in (seen.row, {**seen.row, **(seen.old or {})}):
                    yield 1, Ask.of(dict(made_of.right_key(step, row)), seen.tick)

    def _ask(self, asks: _Asks, step: Step, place: int, ask: Ask) -> None:
        """Of an input: its rows or, of a table that was not seen, its keys."""
        if made_of.is_witnessed(self.topology, step, place):
            asks.setdefault((step.name, place), set()).add(ask)
        else:
            name, own, asked = made_of.ask_of_keeper(self.topology, self.topology.step(step.inputs[place]), ask)
            asks.setdefault((name, own), set()).add(asked)

    def _follow(self, asks: _Asks, step: Step, place: int, seen: Seen, found: set[Record]) -> None:
        """From a row that reached a step to what it was made of."""
        source = self.topology.step(step.inputs[place]) if step.inputs else None
        if source is not None and source.is_table:
            name, own, ask = made_of.ask_of_keeper(self.topology, source, Ask.of(seen.row, seen.tick))
            asks.setdefault((name, own), set()).add(ask)
        elif seen.mark is not None:
            given = Given.of(seen.mark.row, seen.mark.time, seen.tick, seen.record)
            for name, above, ask in made_of.of_given(self.topology, seen.mark.step, given):
                asks.setdefault((name, above), set()).add(ask)
        elif seen.record is not None:
            found.add(seen.record)

    def _matching(self, step: Step, place: int, asks: set[Ask]) -> Iterator[Seen]:
        """What reached a step, as far as it is asked for."""
        if not asks:
            return
        by_columns: dict[tuple[str, ...], dict[tuple[str, ...], list[Ask]]] = {}
        for ask in asks:
            columns, values = tuple(name for name, _ in ask.values), tuple(text for _, text in ask.values)
            by_columns.setdefault(columns, {}).setdefault(values, []).append(ask)
        for seen in self._seen(step, place):
            rows = [seen.row] if seen.old is None else [seen.row, {**seen.row, **seen.old}]
            if any(
                ask.takes(seen.time, seen.tick, seen.record)
                for columns, wanted in by_columns.items()
                for row in rows
                for ask in wanted.get(tuple(row[name] for name in columns), ())
            ):
                yield seen

    def _seen(self, step: Step, place: int) -> Iterable[Seen]:
        if step.inputs:
            return self.witnesses.seen(step.name, place)
        records = self.records_of(step)
        return (replace(one, tick=self.witnesses.tick_of(one.record)) for one in records if one.record is not None)


def sink_called(topology: Topology, name: str) -> Step:
    step = topology.step(name)
    if step.gives_rows:
        raise LedgerError(85, f"'{name}' is no sink", hint="Write SINK/COMMIT/ROW: board/42/0")
    return step


def wanted_rows(
    topology: Topology, ledger: Ledger, until: Live, step: str, key: Mapping[str, Any]
) -> tuple[Step, Origins]:
    """Who keeps the rows of a step, and those of them that have this key. Runs nothing: what is wrong with a key can be
    said before Spark starts."""
    keyed = keeper_of(topology, topology.step(step))
    by = made_of.key_of(keyed)
    for name in key:
        if name not in by:
            raise LedgerError(
                84,
                f"'{name}' is no key column of '{keyed.name}'",
                hint=f"It is kept by {', '.join(by) or 'nothing'}.",
            )
    if not keyed.inputs and not keyed.is_table:
        hint = "Ask what became of one of its records: trace APP SPOUT/PARTITION@OFFSET"
        raise LedgerError(84, f"'{keyed.name}' is a spout, and has no keys", hint=hint)
    types = State(ledger, until, keyed.name).key_types() if keyed.name in until.steps else {}
    window = {name: _moment(name, key[name]) for name in (WINDOW_START, WINDOW_END) if name in key}
    values = {name: value for name, value in key.items() if name not in window}
    for name in values.keys() & types.keys():
        _refuse_other_type(name, values[name], types[name])
    return keyed, Origins(values, window.get(WINDOW_START), window.get(WINDOW_END))


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


def _text(name: str, value: Any, type_: pa.DataType | None) -> str:
    """A value of a key as text, as marks have it."""
    if name in (WINDOW_START, WINDOW_END):
        value, type_ = _moment(name, value), TIME
    scalar = pa.scalar(value) if type_ is None else _scalar(value, type_)
    (text,) = texts(pa.array([scalar.as_py()], scalar.type))
    return text


def _sorted(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(sorted(set(records), key=_order))


def _order(record: Record) -> tuple[str, int, int]:
    return record.spout, record.partition, record.offset
