"""Bolts: a user's Python over rows, or over Arrow batches.

A row on which the user's code raises is refused as a whole: nothing of what it had yielded goes on. The hidden
columns of a row go to everything that it became.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from types import GeneratorType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, LETTER_ID, OFFSET, PARTITION, SPOUT, TASK, TIME
from hailstorm.engine.stages.event_times import times_out_of_range
from hailstorm.engine.stages.given_rows import check_row, columns_of, reason_of, rows_of
from hailstorm.engine.stages.marks import without_mark
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.errors import Location, RunError
from hailstorm.halving import failing_parts
from hailstorm.spouts.cycles import without_collecting
from hailstorm.topology.exact_values import Misfit, exact_array, exact_cast
from hailstorm.topology.row import Row

# So many rows as Python objects at a time: more of them no longer fit into the processor's cache.
_ROWS_AT_ONCE = 2_000
_NOT_FOR_PEOPLE = (SPOUT, PARTITION, OFFSET, TASK, HASH, LETTER_ID)  # a letter says the first three itself
_SEVERAL = frozenset({GeneratorType, list})  # what a function mostly gives for several rows


@dataclass(frozen=True)
class RowBolt:
    step: str
    function: Callable[[Any], Any]
    columns: tuple[str, ...]  # of the input
    returns: pa.Schema
    on_error: str
    tasks: int | None  # cut batches by `_task` into so many
    event_time: str | None = None  # the column that says when a row happened; None: as the row that it was made of

    phase = "compute"
    calls_users = True

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kind = row_type(self.columns)
        for batch in batches:
            for piece in _tasks_of(batch, self.tasks):
                made = []
                for start in range(0, piece.num_rows, _ROWS_AT_ONCE):
                    with without_collecting():
                        made.append(self._run(piece.slice(start, _ROWS_AT_ONCE), kind, task))
                if made:
                    yield pa.concat_batches(made)

    def _run(self, batch: pa.RecordBatch, row_type: Any, task: Task) -> pa.RecordBatch:
        """Call the function on all rows, and look at what it gave as a whole: row by row only when that fails."""
        try:
            columns = [as_list(batch.column(name)) for name in self.columns]
        except (ValueError, OverflowError):
            batch = readable(batch, self.columns, self.step, self.on_error, task)
            columns = [as_list(batch.column(name)) for name in self.columns]
        results = self._results(batch, self.function, map(row_type, zip(*columns, strict=True)), task)
        if set(map(type, results)) <= {dict}:
            out, origin = results, np.arange(batch.num_rows)
        else:
            out, origin = self._flattened(batch, results, task)
        arrays = columns_of(out, self.returns)
        if arrays is None:
            out, origin = self._fitting(batch, out, origin, task)
            arrays = [exact_array([item.get(f.name) for item in out], f.type, f.name) for f in self.returns]
        if self.event_time is None:
            return _with_hidden(arrays, self.returns, batch, origin)
        times = arrays[self.returns.get_field_index(self.event_time)].cast(TIME)
        bad = times_out_of_range(times, self.event_time)
        if bad:
            refused = {int(origin[index]): reason for index, reason in reversed(bad.items())}
            for row, reason in sorted(refused.items()):
                refuse_row(batch, row, self.step, reason, self.on_error, task)
            keep = pa.array(np.flatnonzero(~np.isin(origin, list(refused))))
            arrays, origin, times = [array.take(keep) for array in arrays], origin[np.asarray(keep)], times.take(keep)
        return _with_hidden(arrays, self.returns, batch, origin, times)

    def _results(
        self, batch: pa.RecordBatch, call: Callable[[Any], Any], arguments: Iterable[Any], task: Task
    ) -> list[Any]:
        """What a call gave for each row; None for a row on which it raised."""
        calls = map(call, arguments)
        results: list[Any] = []
        while len(results) < batch.num_rows:
            try:
                results.extend(calls)  # up to a row that raises; the next round goes on behind it
                if len(results) < batch.num_rows:
                    raise RuntimeError("the function raised StopIteration")
            except Exception as error:
                self._refuse(batch, len(results), error, task)
                results.append(None)
        return results

    def _flattened(
        self, batch: pa.RecordBatch, results: list[Any], task: Task
    ) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any]]:
        """The rows of all results, and which input row each is from. A generator runs here, and may raise here."""
        several = set(map(type, results)) <= _SEVERAL
        lists = [made or () for made in self._results(batch, list if several else _made_of, results, task)]
        return list(chain.from_iterable(lists)), np.repeat(np.arange(len(lists)), list(map(len, lists)))

    def _fitting(
        self, batch: pa.RecordBatch, out: list[dict[str, Any]], origin: np.ndarray[Any, Any], task: Task
    ) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any]]:
        """Leave out the input rows that gave something which is not as declared."""
        bad: dict[int, Exception] = {}
        for item, index in zip(out, origin, strict=True):
            try:
                check_row(self.step, item, self.returns)
            except Exception as error:
                bad.setdefault(int(index), error)
        for index, misfit in bad.items():
            self._refuse(batch, index, misfit, task)
        keep = ~np.isin(origin, list(bad))
        return [item for item, kept in zip(out, keep, strict=True) if kept], origin[keep]

    def _refuse(self, batch: pa.RecordBatch, index: int, error: Exception, task: Task) -> None:
        refuse_row(batch, index, self.step, reason_of(error), self.on_error, task)


@dataclass(frozen=True)
class BatchBolt:
    """A function over batches. When it raises, the batch is halved until the bad rows are alone."""

    step: str
    function: Callable[[pa.RecordBatch], Any]
    columns: tuple[str, ...]
    returns: pa.Schema
    on_error: str
    tasks: int | None
    event_time: str | None = None
    timed_at: Location | None = None  # the user's line, where a step below goes by the times of rows

    phase = "compute"
    calls_users = True

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for piece in _tasks_of(batch, self.tasks):
                if piece.num_rows:
                    yield from self._run(piece, task)

    def _run(self, batch: pa.RecordBatch, task: Task) -> Batches:
        made: list[pa.RecordBatch] = []

        def attempt(part: pa.RecordBatch) -> Exception | None:
            try:
                made.extend(self._call(part))
            except RunError:  # no row is bad: it is the function that must change
                raise
            except Exception as error:  # of the user's
                return error
            return None

        for row, error in failing_parts([batch], attempt, _halves):
            refuse_row(row, 0, self.step, reason_of(error), self.on_error, task)
        yield from made

    def _call(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        result = self.function(batch.select([*self.columns, *HIDDEN.names]))
        if result is None:
            return []
        pieces: Iterable[Any] = [result] if isinstance(result, pa.RecordBatch | pa.Table) else list(result)
        made = []
        for piece in pieces:
            rows = piece.combine_chunks().to_batches() if isinstance(piece, pa.Table) else [piece]
            for row_batch in rows:
                missing = [name for name in self.returns.names if name not in row_batch.schema.names]
                if missing:
                    raise Misfit(f"'{self.step}' returned no column '{missing[0]}'; it declares {self.returns.names}")
                arrays = [exact_cast(row_batch.column(f.name), f.type, f.name) for f in self.returns]
                for column, array in zip(self.returns, arrays, strict=True):
                    if array.null_count and not column.nullable:
                        raise Misfit(f"'{column.name}' is NOT NULL, and has nulls")
                made.append(self._at_its_time(self._with_origin(arrays, row_batch, batch), batch))
        return made

    def _with_origin(self, arrays: list[pa.Array], made: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Where rows came from: what the function passed on, else by place, else unknown.

        Never a guess: where a guess depends on how batches were cut, so would every tie that it breaks.
        """

        def origin(field: pa.Field) -> pa.Array:
            if field.name in made.schema.names:
                return made.column(field.name).cast(field.type)
            by_place = made.num_rows == batch.num_rows
            return batch.column(field.name) if by_place else pa.nulls(made.num_rows, field.type)

        hidden = [origin(field) for field in HIDDEN]
        return pa.RecordBatch.from_arrays([*arrays, *hidden], names=[*self.returns.names, *HIDDEN.names])

    def _at_its_time(self, made: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.event_time is None:
            lost = made.column(EVENT_TIME).null_count and not batch.column(EVENT_TIME).null_count
            if lost and self.timed_at is not None:
                raise _lost_times(self.step, batch.num_rows, made.num_rows, self.timed_at)
            return made
        times = made.column(self.event_time).cast(TIME)
        for reason in times_out_of_range(times, self.event_time).values():
            raise Misfit(reason)
        return made.set_column(made.schema.get_field_index(EVENT_TIME), HIDDEN.field(EVENT_TIME), times)


def _lost_times(step: str, given: int, made: int, at: Location) -> RunError:
    return RunError(
        15,
        f"'{step}' made {made} rows of {given}, and does not say when they happened; a step below goes by that",
        at=at,
        hint="Pass the column `_time` of the batch on to the rows that are made of it, as batch.filter does,\n"
        "or name a column that says when: event_time=. Nothing of this tick was committed.",
    )


def _made_of(result: Any) -> list[Any]:
    """The rows of one result; None is none."""
    kind = type(result)
    if kind is dict:
        return [result]
    return [] if result is None else list(result) if kind in _SEVERAL else rows_of(result)


def _halves(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    half = batch.num_rows // 2
    return [batch.slice(0, half), batch.slice(half)] if half else []


def readable(batch: pa.RecordBatch, columns: Sequence[str], step: str, on_error: str, task: Task) -> pa.RecordBatch:
    """Without the rows that hold a time that Spark has and Python has not: those are refused."""
    unreadable: dict[int, str] = {}
    for name in columns:
        for index, value in enumerate(batch.column(name)):
            try:
                value.as_py()
            except (ValueError, OverflowError):
                text = _shown(batch.column(name).slice(index, 1))
                unreadable.setdefault(index, f"'{name}' has a time outside of the years 1 to 9999: {text}")
    for index, reason in unreadable.items():
        refuse_row(batch, index, step, reason, on_error, task)
    return batch.take(pa.array(np.setdiff1d(np.arange(batch.num_rows), list(unreadable))))


def as_list(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them. numpy is many times faster where it knows the type."""
    numeric = pa.types.is_integer(column.type) or pa.types.is_float64(column.type)
    moments = pa.types.is_timestamp(column.type) and column.type.unit == "us"
    if not (numeric or moments):
        return list(column.to_pylist())
    numbers = column.cast(pa.int64()) if moments else column
    values = (numbers.fill_null(0) if column.null_count else numbers).to_numpy(zero_copy_only=False)
    if moments:
        epoch = datetime(1970, 1, 1, tzinfo=None if column.type.tz is None else UTC)
        made: list[Any] = list(map(epoch.__add__, values.view("timedelta64[us]").tolist()))
    else:
        made = values.tolist()
    if column.null_count:
        for place in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            made[place] = None
    return made


def refuse_row(batch: pa.RecordBatch, index: int, step: str, reason: str, on_error: str, task: Task) -> None:
    """Refuse one row of a batch: as text for people, and as it is for its second chance."""
    row = batch.take(pa.array([index]))  # a copy: a slice would keep the whole batch in memory
    spout, partition, offset = (row.column(name)[0].as_py() for name in (SPOUT, PARTITION, OFFSET))
    task.refuse(step, reason, on_error, (without_mark(spout), partition, offset), _for_people(row), row)


def _for_people(row: pa.RecordBatch) -> bytes:
    shown = {name: _shown(row.column(name)) for name in row.schema.names if name not in _NOT_FOR_PEOPLE}
    return msgspec.json.encode(shown, enc_hook=str)


def _shown(column: pa.Array) -> Any:
    try:
        value = column[0].as_py(maps_as_pydicts="lossy")
    except (ValueError, OverflowError):  # a time that Python has no value for
        return column.cast(pa.string())[0].as_py() if pa.types.is_temporal(column.type) else str(column.type)
    # JSON has no number for these.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _tasks_of(batch: pa.RecordBatch, count: int | None) -> list[pa.RecordBatch]:
    """What each task of a grouping gets of the batch, by its `_task` column. A refused row keeps that number."""
    if count is None:
        return [batch]
    column = batch.column(TASK).to_numpy(zero_copy_only=False)
    return [batch.take(pa.array(np.flatnonzero(column == task))) for task in range(count)]


def _with_hidden(
    arrays: list[pa.Array],
    returns: pa.Schema,
    batch: pa.RecordBatch,
    origin: np.ndarray[Any, Any],
    times: pa.Array | None = None,
) -> pa.RecordBatch:
    """The rows with where each came from. `times`: when they happened, if not when those did."""
    hidden = [batch.column(name) for name in HIDDEN.names]
    if len(origin) != batch.num_rows or (np.diff(origin) != 1).any():
        indices = pa.array(origin)
        hidden = [column.take(indices) for column in hidden]
    if times is not None:
        hidden[HIDDEN.get_field_index(EVENT_TIME)] = times
    return pa.RecordBatch.from_arrays([*arrays, *hidden], names=[*returns.names, *HIDDEN.names])


# Type checkers want to see the names.
_named: Callable[[Sequence[str]], type[Any]] = partial(namedtuple, "places")


def row_type(columns: tuple[str, ...], kind: type[Row] = Row) -> type[Row]:
    """A tuple whose fields have names: faster than a dict, and `row.text` reads better. The attributes are those of a
    named tuple, which know their places: a property would ask the row, as `row["text"]` does."""
    names = [f"at{number}" for number in range(len(columns))]
    places = vars(_named(names))
    fields: dict[str, Any] = {column: places[name] for column, name in zip(columns, names, strict=True)}
    return type(kind.__name__, (kind,), {"__slots__": (), "_columns": columns, **fields})
