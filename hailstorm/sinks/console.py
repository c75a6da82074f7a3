"""Rows for a person to watch: a live table in a terminal, JSON lines anywhere else.

In a terminal the sink prints nothing by itself, because the run command owns the screen: its live display asks for
`renderable()` and draws it above the progress line. Elsewhere (a pipe, a file) every change is one line of JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hailstorm.columns import KIND, OLD
from hailstorm.errors import SinkError
from hailstorm.sinks.json_rows import json_rows, json_text
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel
from hailstorm.sinks.values import plain_rows

_RANK = "rank"  # what `top` adds: its rows are shown in this order


@dataclass
class _Board:
    """What is on the screen: rows by key (tables) or by order of arrival (streams).

    Another thread draws while delivery writes, so `shown` is replaced as a whole and never changed.
    """

    delivery: Delivery
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)
    shown: tuple[dict[str, Any], ...] = ()
    commit: int = 0
    arrived: int = 0


@dataclass(frozen=True)
class Console:
    """Shows at most `limit` rows: of a `top` the first ones, of other tables and of streams the latest ones."""

    limit: int = 20
    title: str | None = None
    terminal: Terminal | None = field(default=None, compare=False, repr=False)
    keeps_cursor: ClassVar[bool] = False
    _session: Session[_Board] = field(default_factory=Session, init=False, repr=False, compare=False)

    def open(self, delivery: Delivery) -> None:
        if not self._session.is_open or self._session.get().delivery != delivery:
            self._session.begin(_Board(delivery))

    @property
    def forgets(self) -> bool:
        """A board does; lines that were printed stay with whoever has read them."""
        return self._is_terminal()

    def cursor(self) -> Cursor | None:
        return None

    def deliver(self, parcel: Parcel) -> None:
        board = self._session.get()
        if parcel.commit <= board.commit:
            return
        if parcel.whole:
            board.rows.clear()
        for rows in parcel.pieces():
            changes = rows.drop_columns([OLD]) if OLD in rows.column_names else rows
            self._update(board, changes)
            if not self._is_terminal():
                self._print(board.delivery.sink, parcel.commit, changes)
        board.commit = parcel.commit

    def close(self) -> None:
        """The last rows stay, so that they can be drawn once more when the run has ended."""

    def resolve(self, folder: Path) -> Console:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "console", "limit": self.limit, "title": self.title}

    def renderable(self) -> RenderableType:
        """The table as it is now. May be called from any thread, also before the sink is open."""
        if not self._session.is_open:
            return Text("")
        board = self._session.get()
        table = Table(title=self.title or board.delivery.sink, caption=f"commit {board.commit}")
        for column in board.delivery.schema:
            is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
            table.add_column(Text(column.name), justify="right" if is_number else "left")
        for row in board.shown:
            table.add_row(*(Text(_shown(row[name])) for name in board.delivery.schema.names))
        return table

    def _update(self, board: _Board, changes: pa.Table) -> None:
        keys = json_rows(changes.select(board.delivery.key)).to_pylist()
        for row, of_table in zip(plain_rows(changes), keys, strict=True):
            board.arrived += 1
            kind = row.get(KIND)
            key = of_table if kind else board.arrived
            board.rows.pop(key, None)  # what changed last goes to the end
            ranked_out = kind and _RANK in row and row[_RANK] is not None and row[_RANK] > self.limit
            if kind != "delete" and not ranked_out:
                board.rows[key] = row
        while len(board.rows) > self.limit:
            del board.rows[next(iter(board.rows))]
        latest_first = reversed(board.rows.values())
        if board.delivery.is_table and _RANK in board.delivery.schema.names:
            board.shown = tuple(sorted(latest_first, key=lambda row: (row[_RANK] is None, row[_RANK])))
        else:
            board.shown = tuple(latest_first)

    def _is_terminal(self) -> bool:
        return self.terminal.is_terminal if self.terminal is not None else sys.stdout.isatty()

    def _print(self, sink: str, commit: int, changes: pa.Table) -> None:
        about = {"_sink": pa.repeat(sink, changes.num_rows), "_commit": pa.repeat(commit, changes.num_rows)}
        lines = json_rows(pa.table(about | dict(zip(changes.column_names, changes.columns, strict=True)))).to_pylist()
        stream = self.terminal.file if self.terminal is not None else sys.stdout
        try:
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()
        except BrokenPipeError as error:
            raise SinkError(1, f"nobody reads the output of sink '{sink}' any more") from error


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json_text(value)
