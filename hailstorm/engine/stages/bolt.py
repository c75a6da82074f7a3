"""Bolts: a user's Python over rows, or over Arrow batches.

A row on which the user's code raises is refused as a whole: nothing of what it had yielded goes on. The hidden
columns of a row go to everything that it became.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.read import HIDDEN, tasks_of
from hailstorm.spouts.cycles import without_collecting

# So many rows as Python objects at a time: more of them no longer fit into the processor's cache.
_ROWS_AT_ONCE = 2_000


@dataclass(frozen=True)
class RowBolt:
    step: str
    function: Callable[[Any], Any]
    columns: tuple[str, ...]  # of the input
    returns: pa.Schema
    on_error: str
    tasks: int | None  # cut batches by `_task` into so many

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        row_type = _row_type(self.step, self.columns)
        for batch in batches:
            for piece in [batch] if self.tasks is None else tasks_of(batch, self.tasks):
                made = []
                for start in range(0, piece.num_rows, _ROWS_AT_ONCE):
                    with without_collecting():
                        made.append(self._run(piece.slice(start, _ROWS_AT_ONCE), row_type, task))
                if made:
                    yield pa.concat_batches(made)

    def _run(self, batch: pa.RecordBatch, row_type: Any, task: Task) -> pa.RecordBatch:
        """Call the function on all rows, and look at what it gave as a whole: row by row only when that fails."""
        results = self._results(batch, row_type, task)
        if set(map(type, results)) <= {dict}:
            out, origin = results, np.arange(batch.num_rows)
        else:
            out, origin = self._flattened(batch, results, task)
        arrays = self._converted(out)
        if arrays is None:
            out, origin = self._fitting(batch, out, origin, task)
            arrays = [pa.array([item.get(f.name) for item in out], f.type) for f in self.returns]
        return _with_hidden(arrays, self.returns, batch, origin)

    def _results(self, batch: pa.RecordBatch, row_type: Any, task: Task) -> list[Any]:
        """What the function gave for each row; None for a row on which it raised."""
        columns = [as_list(batch.column(name)) for name in self.columns]
        calls = map(self.function, map(row_type, zip(*columns, strict=True)))
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
        out: list[dict[str, Any]] = []
        counts = [0] * len(results)
        for index, result in enumerate(results):
            if result is None:
                continue
            try:
                made = [result] if isinstance(result, dict) else list(result)
            except Exception as error:
                self._refuse(batch, index, error, task)
                continue
            out += made
            counts[index] = len(made)
        return out, np.repeat(np.arange(len(results)), counts)

    def _converted(self, out: list[dict[str, Any]]) -> list[pa.Array] | None:
        """The columns of what came out. None when anything of it is not as declared."""
        names, width = set(self.returns.names), len(self.returns)
        try:
            if all(len(item) == width for item in out):  # then what has every declared name has no other
                arrays = [pa.array([item[f.name] for item in out], f.type) for f in self.returns]
            elif all(item.keys() <= names for item in out):
                arrays = [pa.array([item.get(f.name) for item in out], f.type) for f in self.returns]
            else:
                return None
        except Exception:  # what a function gives may be of any type, and fail in any way
            return None
        missing = any(array.null_count and not f.nullable for f, array in zip(self.returns, arrays, strict=True))
        return None if missing else arrays

    def _fitting(
        self, batch: pa.RecordBatch, out: list[dict[str, Any]], origin: np.ndarray[Any, Any], task: Task
    ) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any]]:
        """Leave out the input rows that gave something which is not as declared."""
        bad: dict[int, Exception] = {}
        for item, index in zip(out, origin, strict=True):
            try:
                self._check(item)
            except Exception as error:
                bad.setdefault(int(index), error)
        for index, misfit in bad.items():
            self._refuse(batch, index, misfit, task)
        keep = ~np.isin(origin, list(bad))
        return [item for item, kept in zip(out, keep, strict=True) if kept], origin[keep]

    def _check(self, item: Any) -> None:
        if not item.keys() <= set(self.returns.names):
            raise ValueError(_unknown(self.step, item, self.returns))
        for column in self.returns:
            value = item.get(column.name)
            if value is None and not column.nullable:
                raise ValueError(f"'{column.name}' is NOT NULL, and is null or missing")
            try:
                pa.scalar(value, column.type)
            except Exception as error:
                raise TypeError(f"'{column.name}' is declared {column.type}: {error}") from error

    def _refuse(self, batch: pa.RecordBatch, index: int, error: Exception, task: Task) -> None:
        refuse_row(batch, index, self.step, _reason(error), self.on_error, task)


@dataclass(frozen=True)
class BatchBolt:
    """A function over batches. When it raises, the batch is halved until the bad rows are alone."""

    step: str
    function: Callable[[pa.RecordBatch], Any]
    columns: tuple[str, ...]
    returns: pa.Schema
    on_error: str
    tasks: int | None

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for piece in [batch] if self.tasks is None else tasks_of(batch, self.tasks):
                if piece.num_rows:
                    yield from self._run(piece, task)

    def _run(self, batch: pa.RecordBatch, task: Task) -> Batches:
        try:
            yield from self._call(batch)
        except Exception as error:
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                yield from self._run(batch.slice(0, half), task)
                yield from self._run(batch.slice(half), task)
            else:
                refuse_row(batch, 0, self.step, _reason(error), self.on_error, task)

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
                    raise ValueError(
                        f"'{self.step}' returned no column '{missing[0]}'; it declares {self.returns.names}"
                    )
                arrays = [row_batch.column(f.name).cast(f.type) for f in self.returns]
                for column, array in zip(self.returns, arrays, strict=True):
                    if array.null_count and not column.nullable:
                        raise ValueError(f"'{column.name}' is NOT NULL, and has nulls")
                made.append(self._with_origin(arrays, row_batch, batch))
        return made

    def _with_origin(self, arrays: list[pa.Array], made: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Where rows came from: what the function passed on, else by place, else unknown.

        Never a guess: where a guess depends on how batches were cut, so would every tie that it breaks.
        """
        if all(name in made.schema.names for name in HIDDEN.names):
            hidden = [made.column(f.name).cast(f.type) for f in HIDDEN]
        elif made.num_rows == batch.num_rows:
            hidden = [batch.column(name) for name in HIDDEN.names]
        else:
            hidden = [pa.nulls(made.num_rows, f.type) for f in HIDDEN]
        return pa.RecordBatch.from_arrays([*arrays, *hidden], names=[*self.returns.names, *HIDDEN.names])


def as_list(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them. numpy is many times faster where it knows the type."""
    numeric = pa.types.is_integer(column.type) or pa.types.is_float64(column.type)
    if numeric and not column.null_count:
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    else:
        values = column.to_pylist()
    return values


def refuse_row(batch: pa.RecordBatch, index: int, step: str, reason: str, on_error: str, task: Task) -> None:
    row = {name: value[0] for name, value in batch.slice(index, 1).to_pydict().items()}
    origin = (row.get("_spout"), row.get("_partition"), row.get("_offset"))
    public = {name: value for name, value in row.items() if name not in HIDDEN.names and name != "_task"}
    raw = msgspec.json.encode({**public, "_time": row.get("_time")}, enc_hook=str)
    task.refuse(step, reason, on_error, origin, raw)


def _with_hidden(
    arrays: list[pa.Array], returns: pa.Schema, batch: pa.RecordBatch, origin: np.ndarray[Any, Any]
) -> pa.RecordBatch:
    hidden = [batch.column(name) for name in HIDDEN.names]
    if len(origin) != batch.num_rows or (np.diff(origin) != 1).any():
        indices = pa.array(origin)
        hidden = [column.take(indices) for column in hidden]
    return pa.RecordBatch.from_arrays([*arrays, *hidden], names=[*returns.names, *HIDDEN.names])


def _row_type(step: str, columns: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """A tuple whose fields have names: faster than a dict, and `row.text` reads better."""

    def missing(row: Any, name: str) -> Any:
        raise AttributeError(f"the row has no '{name}'; it has: {', '.join(columns)}")

    fields: dict[str, Any] = {name: property(itemgetter(i)) for i, name in enumerate(columns)}
    as_dict = lambda row: dict(zip(columns, row, strict=True))  # noqa: E731 - one line in a class body built by hand
    return type("Row", (tuple,), {"__slots__": (), "__getattr__": missing, "asdict": as_dict, **fields})


def _unknown(step: str, item: Any, returns: pa.Schema) -> str:
    extra = sorted(set(item) - set(returns.names))
    return f"'{step}' gave '{extra[0]}', which it does not declare; it returns: {', '.join(returns.names)}"


def _reason(error: Exception) -> str:
    """`ValueError: bad (app.py:12)`: the innermost line of the user's, not of ours."""
    where = traceback.extract_tb(error.__traceback__)
    user = [frame for frame in where if "/hailstorm/engine/" not in frame.filename]
    place = f" ({user[-1].filename.rpartition('/')[2]}:{user[-1].lineno})" if user else ""
    return f"{type(error).__name__}: {error}{place}"
