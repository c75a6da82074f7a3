"""A user's function as a sink.

The function is called for each commit with a list of rows; for a large commit several times, with a part of them each.
A commit may come again (after a crash, or when the function failed half way), always with the same rows in the same
order: `row.key` is the same string each time, and a function that remembers the keys it has seen, or passes them on to
a service that does, acts exactly once.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hailstorm.columns import KIND, OLD
from hailstorm.errors import Location, SinkError
from hailstorm.ledger.json_value import Beyond
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Rejected
from hailstorm.sinks.values import python_rows, python_values


class Row(dict[str, Any]):
    """The columns as a dict, and beside them what delivery knows.

    `key` is `topology/sink/commit/row`, `kind` is insert, update or delete (insert for a stream), and `old` is the
    dict of values before the change, or None.
    """

    __slots__ = ("key", "kind", "old")

    def __init__(self, columns: Mapping[str, Any], key: str, kind: str = "insert", old: dict[str, Any] | None = None):
        super().__init__(columns)
        self.key, self.kind, self.old = key, kind, old


@dataclass(frozen=True)
class Call:
    """`function(rows)` is called with a list of `Row`, never an empty one.

    A row with a date or a time that Python does not have (years 1 to 9999) is a dead letter.
    To be called again later it raises an OSError (ConnectionError, TimeoutError) or TransientSinkError; any other
    exception stops the sink.
    """

    function: Callable[[list[Row]], object]
    keeps_cursor: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    _session: Session[Delivery] = field(default_factory=Session, init=False, repr=False, compare=False)

    def open(self, delivery: Delivery) -> None:
        self._session.begin(delivery)

    def cursor(self) -> Cursor | None:
        return None

    def deliver(self, parcel: Parcel) -> None:
        delivery = self._session.get()
        prefix = f"{delivery.owner}/{parcel.commit}"
        rejected: list[Rejected] = []
        for first, rows in parcel.numbered():
            called_with = []
            for number, row in enumerate(_rows(rows, prefix, first), first):
                if reason := _reason(row):
                    rejected.append(Rejected(number, reason))
                else:
                    called_with.append(row)
            if called_with:
                self._call(delivery, called_with)
        if rejected:
            delivery.reject(parcel.commit, rejected)

    def _call(self, delivery: Delivery, rows: list[Row]) -> None:
        try:
            self.function(rows)
        except (OSError, SinkError):
            raise
        except Exception as error:
            raise _failed(self, delivery, error) from error

    def close(self) -> None:
        self._session.end()

    def resolve(self, folder: Path) -> Call:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "call", "function": _name(self)}


def _rows(rows: pa.Table, prefix: str, first: int) -> Iterator[Row]:
    olds: list[Any] = [None] * rows.num_rows
    if OLD in rows.column_names:
        olds, rows = _olds(rows[OLD].combine_chunks()), rows.drop_columns([OLD])
    for number, (columns, old) in enumerate(zip(python_rows(rows), olds, strict=True), first):
        yield Row(columns, f"{prefix}/{number}", columns.pop(KIND, "insert"), old)


def _olds(rows: pa.StructArray) -> list[dict[str, Any] | None]:
    """What was before. A value there that Python does not have is its JSON: the change itself can be told."""
    fields = [field.name for field in rows.type]
    columns = [python_values(pa.chunked_array([column])) for column in rows.flatten()]
    values = zip(*columns, strict=True) if columns else [()] * len(rows)
    return [
        dict(zip(fields, row, strict=True)) if is_there else None
        for is_there, row in zip(rows.is_valid().to_pylist(), values, strict=True)
    ]


def _reason(row: Row) -> str | None:
    """Why the function cannot be given this row."""
    beyond = [f"'{name}' is {value}" for name, value in row.items() if isinstance(value, Beyond)]
    return f"{', '.join(beyond)}: Python has no dates and times outside of the years 1 to 9999" if beyond else None


def _name(call: Call) -> str:
    return str(getattr(call.function, "__qualname__", type(call.function).__qualname__))


def _failed(call: Call, delivery: Delivery, error: Exception) -> SinkError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return SinkError(
        7,
        f"sink '{delivery.sink}': {_name(call)} raised {type(error).__name__}: {error}",
        at=Location(frame.filename, frame.lineno or 0),
        hint="The rows wait in the outbox; they are delivered when the function is fixed.\n"
        "For an error that passes, raise ConnectionError or TimeoutError: then it is called again.",
    )
