"""A user's function as a sink.

The function is called once per commit with a list of rows. A commit may come again (after a crash, or when the
function failed half way), always with the same rows in the same order: `row.key` is the same string each time, and a
function that remembers the keys it has seen, or passes them on to a service that does, acts exactly once.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hailstorm.errors import Location, SinkError
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, OLD, Delivery
from hailstorm.sinks.values import python_rows


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

    To be called again later it raises an OSError (ConnectionError, TimeoutError) or TransientSinkError; any other
    exception stops the sink.
    """

    function: Callable[[list[Row]], object]
    keeps_cursor: ClassVar[bool] = False
    _session: Session[Delivery] = field(default_factory=Session, init=False, repr=False, compare=False)

    def open(self, delivery: Delivery) -> None:
        self._session.begin(delivery)

    def cursor(self) -> int | None:
        return None

    def deliver(self, commit: int, rows: pa.Table) -> None:
        delivery = self._session.get()
        prefix = f"{delivery.topology}/{delivery.sink}/{commit}"
        called_with = [_row(columns, f"{prefix}/{number}") for number, columns in enumerate(python_rows(rows))]
        if not called_with:
            return
        try:
            self.function(called_with)
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


def _row(columns: dict[str, Any], key: str) -> Row:
    kind, old = columns.pop(KIND, "insert"), columns.pop(OLD, None)
    return Row(columns, key, kind, old)


def _name(call: Call) -> str:
    return str(getattr(call.function, "__qualname__", type(call.function).__qualname__))


def _failed(call: Call, delivery: Delivery, error: Exception) -> SinkError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return SinkError(
        7,
        f"sink '{delivery.sink}': {_name(call)} raised {type(error).__name__}: {error}",
        at=Location(frame.filename, frame.lineno or 0),
        hint="The rows wait in the outbox; they are delivered when the function is mended.\n"
        "For an error that passes, raise ConnectionError or TimeoutError: then it is called again.",
    )
