"""The events of a process in one tick: in their order, as Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import BEGINNING, END
from hailstorm.columns import EVENT_TIME, OFFSET, PARTITION, SPOUT
from hailstorm.engine.stages.bolt import as_list, readable, row_type
from hailstorm.engine.stages.task import Task
from hailstorm.ledger.arrays import order_of
from hailstorm.ledger.runs import Positions
from hailstorm.topology.process import Event

_FIRST = -62_135_596_800_000_000  # the first microsecond of year 1


def in_order(events: pa.Table, groups: Positions, columns: tuple[str, ...]) -> Positions:
    """The order of events: by group, and in each by (time, spout, partition, offset).

    What came from no record (changes of a table) is in the order of its values: that of arrival is by chance.
    """
    by = [numbers(events, OFFSET), numbers(events, PARTITION), _spouts(events), numbers(events, EVENT_TIME), groups]
    if events.column(OFFSET).null_count:
        by.insert(0, _contents(events, columns))
    order: Positions = np.arange(events.num_rows)
    for column in by:  # the least important first: sorts are stable, and mostly there is nothing to sort
        sorted_ = column[order]
        if (sorted_[1:] < sorted_[:-1]).any():
            order = order[order_of(sorted_)]
    return order


def numbers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A column of times or numbers; nulls come before all others."""
    column = rows.column(name).combine_chunks().cast(pa.int64())
    return np.asarray(column.fill_null(BEGINNING).to_numpy(zero_copy_only=False))


def _spouts(events: pa.Table) -> npt.NDArray[np.int64]:
    encoded = events.column(SPOUT).combine_chunks().dictionary_encode()
    ranks = np.argsort(np.argsort(np.array([*encoded.dictionary.to_pylist(), ""], dtype=object)))
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(codes < 0, -1, ranks[codes])


def _contents(events: pa.Table, columns: tuple[str, ...]) -> npt.NDArray[np.int64]:
    texts = [repr(row) for row in events.select(list(columns)).to_pylist()]
    return np.unique(np.array(texts, dtype=object), return_inverse=True)[1].reshape(-1)


def event_values(events: pa.RecordBatch, columns: tuple[str, ...], watermark: int | None) -> list[Any]:
    """One `Event` for each row."""
    times = events.column(EVENT_TIME)
    lists = {name: as_list(events.column(name)) for name in columns}
    # The event time is mostly one of the columns, and need not be made twice.
    alike = next((name for name in lists if events.column(name).equals(times)), None)
    lists[EVENT_TIME] = as_list(times) if alike is None else lists[alike]
    on_time = row_type(tuple(lists), Event)
    late = None if watermark is None else pc.less(times.cast(pa.int64()), watermark).fill_null(False)
    if late is None or not pc.any(late).as_py():
        return list(map(on_time, zip(*lists.values(), strict=True)))
    too_late = type("Event", (on_time,), {"__slots__": (), "is_late": True})
    kinds = [too_late if one else on_time for one in late.to_pylist()]
    return [kind(values) for kind, values in zip(kinds, zip(*lists.values(), strict=True), strict=True)]


def readable_events(events: pa.Table, columns: tuple[str, ...], step: str, task: Task) -> pa.Table:
    """Without the rows that hold a time that Python has no value for: those are refused."""
    for name in (*columns, EVENT_TIME):
        if _may_be_unreadable(events.column(name)):
            (batch,) = events.combine_chunks().to_batches()
            events = pa.Table.from_batches([readable(batch, (name,), step, "dead-letter", task)])
    return events


def _may_be_unreadable(column: pa.ChunkedArray) -> bool:
    type_ = column.type
    if pa.types.is_nested(type_) and len(column):
        return "timestamp" in str(type_) or "date" in str(type_)
    if not pa.types.is_temporal(type_):
        return False
    ends = pc.min_max(column.cast(pa.timestamp("us")).cast(pa.int64())).as_py()
    return ends["min"] is not None and (ends["min"] < _FIRST or ends["max"] > END)
