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
                yield self._run(piece, row_type, task)

    def _run(self, batch: pa.RecordBatch, row_type: Any, task: Task) -> pa.RecordBatch:
        function, out, counts = self.function, [], np.zeros(batch.num_rows, dtype=np.int64)
        columns = [batch.column(name).to_pylist() for name in self.columns]
        bad: set[int] = set()
        known = set(self.returns.names)
        required = [column.name for column in self.returns if not column.nullable]
        for index, row in enumerate(map(row_type, zip(*columns, strict=True))):
            try:
                result = function(row)
                if result is None:
                    continue
                made = [result] if isinstance(result, dict) else list(result)
                for item in made:
                    if not item.keys() <= known:
                        raise ValueError(_unknown(self.step, item, self.returns))
                    for name in required:
                        if item.get(name) is None:
                            raise ValueError(f"'{name}' is NOT NULL, and is null or missing")
            except Exception as error:
                self._refuse(batch, index, error, task)
                bad.add(index)
                continue
            counts[index] = len(made)
            out += made
        origin = np.repeat(np.arange(batch.num_rows), counts)
        try:
            arrays = [pa.array([item.get(f.name) for item in out], f.type) for f in self.returns]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
            out, origin = self._convertible(batch, out, origin, task)
            arrays = [pa.array([item.get(f.name) for item in out], f.type) for f in self.returns]
        return _with_hidden(arrays, self.returns, batch, origin)

    def _convertible(
        self, batch: pa.RecordBatch, out: list[dict[str, Any]], origin: np.ndarray[Any, Any], task: Task
    ) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any]]:
        """Leave out the input rows that gave something which is not of the declared type."""
        bad: dict[int, Exception] = {}
        for item, index in zip(out, origin, strict=True):
            for column in self.returns:
                try:
                    pa.scalar(item.get(column.name), column.type)
                except Exception as error:
                    bad.setdefault(int(index), TypeError(f"'{column.name}' is declared {column.type}: {error}"))
        for index, misfit in bad.items():
            self._refuse(batch, index, misfit, task)
        keep = ~np.isin(origin, list(bad))
        return [item for item, kept in zip(out, keep, strict=True) if kept], origin[keep]

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


def refuse_row(batch: pa.RecordBatch, index: int, step: str, reason: str, on_error: str, task: Task) -> None:
    row = {name: value[0] for name, value in batch.slice(index, 1).to_pydict().items()}
    origin = (row.get("_spout"), row.get("_partition"), row.get("_offset"))
    public = {name: value for name, value in row.items() if name not in HIDDEN.names and name != "_task"}
    raw = msgspec.json.encode({**public, "_time": row.get("_time")}, enc_hook=str)
    task.refuse(step, reason, on_error, origin, raw)


def _with_hidden(
    arrays: list[pa.Array], returns: pa.Schema, batch: pa.RecordBatch, origin: np.ndarray[Any, Any]
) -> pa.RecordBatch:
    indices = pa.array(origin)
    hidden = [batch.column(name).take(indices) for name in HIDDEN.names]
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
