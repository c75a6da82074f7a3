"""The outbox as delivery sees it: which commits wait for a sink, and their rows, in pieces."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.columns import KIND, OLD
from hailstorm.engine.tolerance import Recent
from hailstorm.errors import SinkError
from hailstorm.ledger.commit import RESENT, Commit
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.lease import is_taken_over
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.stores.store import Store, missing_file
from hailstorm.ledger.sums import Reading

_AT_ONCE = 100
_REMEMBERED = 256
_PIECE_BYTES = 32 << 20
_PIECE_ROWS = 1_000_000
_HELD_BYTES = 16 << 20


@dataclass(frozen=True)
class Entry:
    """What one commit has for a sink: files of changes (or of a stream's rows), or of a whole table."""

    commit: int
    rows: int
    files: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True)
class Beginning:
    """What the ledger knows of a sink before it is opened. Numbers of commits; 0 for none."""

    since: int = 0  # from this one on its outbox holds all that its step gave
    last: int = 0  # the last one with rows for it
    whole: int = 0  # the last one that has the whole table for it
    resent: int = 0  # the same, when a person asked for it
    first_name: str = ""  # of a sink that was renamed: by it the target knows it


class Outbox(Protocol):
    """What delivery needs of a ledger. Called from several threads at once, never twice at once for one sink."""

    @property
    def ledger(self) -> str:
        """The ledger's id."""

    def is_ours(self) -> bool:
        """Whether no other driver has committed since, nor is about to. Reads the store."""

    def beginning(self, sink: str) -> Beginning: ...

    def pending(self, sink: str, after: int) -> list[Entry]:
        """The first commits after this one that have something for the sink, in order; a bounded number of them.

        The whole table makes what came before it needless: then the list begins with that.
        """

    def has_all(self, sink: str, after: int, until: int) -> bool:
        """Whether everything that these commits had for the sink, (after, until], can still be read."""

    def pieces(self, entry: Entry) -> Iterator[pa.Table]:
        """The rows of an entry, some megabytes at a time, always in the same order: idempotency keys count them."""

    def load_cursor(self, sink: str) -> int:
        """The cursor that was stored last, or 0."""

    def recent(self, sink: str) -> Recent:
        """What was counted of rejected rows when a cursor was stored last."""

    def store_cursor(self, sink: str, commit: int, recent: Recent, ahead: bool = False) -> None:
        """Durable when it returns. For a sink that keeps its own cursor this is a copy, some commits late. `ahead`: the
        rows of this commit are read afterwards, and must stay until the next call."""

    def store_health(self, sink: str, error: str | None, next_try: datetime | None) -> None:
        """What keeps the sink, for those who read the ledger; without `next_try` it has stopped. None: nothing."""

    def waiting(self, sink: str, after: int) -> tuple[int, int]:
        """How many commits, and how many rows in them, there are for the sink after this commit."""

    def newest(self) -> int:
        """The newest commit's number, or 0."""

    def is_retry(self, commit: int) -> bool:
        """Whether this commit gives dead letters their second chance."""

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        """Keep rows as dead letters, each with its reason and its content for people. Durable when it returns;
        replaces an earlier call for the same commit."""

    def forget_rejected(self, sink: str, commit: int) -> None:
        """Take an earlier call for this commit back, if there was one."""


class LedgerOutbox:
    """Delivery's view of a ledger. The negotiator tells it of commits; older ones are read from their files."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._recent: dict[int, Commit] = {}
        self._held: OrderedDict[str, bytes] = OrderedDict()  # rows of files, as Arrow's stream
        self._held_bytes = 0
        self._holding = threading.Lock()

    @property
    def ledger(self) -> str:
        return self._ledger.id

    def is_ours(self) -> bool:
        return self._ledger.newest().epoch <= self._ledger.epoch and not is_taken_over(self._ledger.store)

    def remember(self, commit: Commit) -> None:
        self._recent[commit.commit] = commit
        self._recent.pop(commit.commit - _REMEMBERED, None)

    def hold(self, rows: Mapping[str, bytes]) -> None:
        """Keep the rows of files that are about to be committed, for who delivers them soon. The oldest make room."""
        with self._holding:
            for name, stream in rows.items():
                self._held_bytes += len(stream) - len(self._held.get(name, b""))
                self._held[name] = stream
            while self._held_bytes > _HELD_BYTES:
                self._held_bytes -= len(self._held.popitem(last=False)[1])

    def beginning(self, sink: str) -> Beginning:
        head = self._ledger.head
        shape, whole = head.sinks.get(sink), head.wholes.get(sink, 0)
        commit = self._commit(whole) if whole else None
        resent = whole if commit is not None and commit.whole.get(sink) == RESENT else 0
        last = head.outboxes.get(sink, 0)
        if shape is None:
            return Beginning(0, last, whole, resent)
        return Beginning(shape.since, last, whole, resent, shape.formerly[0].name if shape.formerly else "")

    def pending(self, sink: str, after: int) -> list[Entry]:
        found: list[Entry] = []
        for entry in self._entries(sink, after):
            found.append(entry)
            if len(found) == _AT_ONCE:
                break
        return found

    def has_all(self, sink: str, after: int, until: int) -> bool:
        for commit in self._commits(after):
            if commit.commit > until:
                break
            files = commit.outbox.get(sink, ())
            # One that says how far a sink was under another name had nothing for it itself.
            is_cleared = not files and commit.outboxes.get(sink, 0) >= max(after + 1, commit.covers_from)
            if is_cleared or not all(self._ledger.store.exists(file.path) for file in files):
                return False
        return True

    def pieces(self, entry: Entry) -> Iterator[pa.Table]:
        with self._holding:
            held = [self._held.get(name) for name in entry.files]
        streams = [rows for rows in held if rows is not None]
        if streams and len(streams) == len(held):
            return in_pieces(batch for rows in streams for batch in pa.ipc.open_stream(rows))
        return read_pieces(self._ledger.store, entry.files)

    def load_cursor(self, sink: str) -> int:
        return self._ledger.cursors.load(sink).commit

    def recent(self, sink: str) -> Recent:
        return self._ledger.cursors.load(sink).recent

    def store_cursor(self, sink: str, commit: int, recent: Recent, ahead: bool = False) -> None:
        epoch = self._ledger.head.epoch
        self._ledger.cursors.store(sink, SinkRecord(commit=commit, epoch=epoch, recent=recent, ahead=ahead))

    def store_health(self, sink: str, error: str | None, next_try: datetime | None) -> None:
        before = self._ledger.cursors.load(sink)
        when = None if next_try is None else next_try.isoformat(timespec="seconds")
        now = msgspec.structs.replace(before, epoch=self._ledger.head.epoch, error=error, next_try=when)
        if (now.error, now.next_try) != (before.error, before.next_try):
            self._ledger.cursors.store(sink, now)

    def waiting(self, sink: str, after: int) -> tuple[int, int]:
        entries = list(self._entries(sink, after))
        return len(entries), sum(entry.rows for entry in entries)

    def newest(self) -> int:
        return self._ledger.head.commit

    def is_retry(self, commit: int) -> bool:
        found = self._commit(commit)
        return found is not None and found.reason == "retry" and not found.first

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        self._ledger.store_rejected(sink, commit, letters, rows)

    def forget_rejected(self, sink: str, commit: int) -> None:
        self._ledger.forget_rejected(sink, commit)

    def _entries(self, sink: str, after: int) -> Iterator[Entry]:
        head = self._ledger.head
        first, last = max(after, head.wholes.get(sink, 0) - 1), head.outboxes.get(sink, 0)
        for commit in self._commits(first) if last > first else ():
            if commit.commit > last:
                return
            files, whole = commit.outbox.get(sink, ()), sink in commit.whole
            if files or whole:
                rows = sum(file.rows for file in files)
                yield Entry(commit.commit, rows, tuple(file.path for file in files), whole)

    def _commits(self, after: int) -> Iterator[Commit]:
        """The commits after this one, in order. Those that are remembered need not be read, until one is forgotten that
        is wanted next: a slow reader is overtaken by those who make commits."""
        number = after + 1
        while (commit := self._recent.get(number)) is not None:
            yield commit
            number += 1
        if number <= self._ledger.head.commit:
            yield from self._ledger.commits(number - 1)

    def _commit(self, number: int) -> Commit | None:
        return self._recent.get(number) or self._ledger.read_commit(number)


def read_pieces(store: Store, files: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of Parquet files, in tables of about 32 MB; one row may be larger. Small files share a table."""
    return in_pieces(_batches(store, files))


def in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    for batch in batches:
        piece = pa.Table.from_batches([batch])
        if held and not _fits(held, piece):
            yield pa.concat_tables(held)
            held = []
        held.append(piece)
    if held:
        yield pa.concat_tables(held)


def _fits(held: list[pa.Table], piece: pa.Table) -> bool:
    rows: int = sum(table.num_rows for table in held) + piece.num_rows
    size: int = sum(table.nbytes for table in held) + piece.nbytes
    return bool(held[0].schema == piece.schema) and rows <= _PIECE_ROWS and size <= _PIECE_BYTES


def _batches(store: Store, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        try:
            source = store.open(path)
        except FileNotFoundError as error:
            raise missing_file(path) from error
        # With a buffer a column is read page by page; else all of it would be in memory at once.
        checked = partial(pq.ParquetFile, source, buffer_size=1 << 20, page_checksum_verification=True)
        with source, Reading(path), checked() as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                size = group.total_byte_size / max(1, group.num_rows)
                rows = max(1, min(_PIECE_ROWS, int(_PIECE_BYTES / max(1.0, size))))
                yield from file.iter_batches(rows, row_groups=[number], use_threads=False)


def fitting(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns, and the hidden ones of changes. A column that was added since is null."""
    known = set(rows.column_names)
    wanted = pa.schema([*schema, *(rows.schema.field(name) for name in (KIND, OLD) if name in known)])
    try:
        columns = [
            rows[one.name].cast(one.type) if one.name in known else pa.nulls(rows.num_rows, one.type) for one in wanted
        ]
    except pa.ArrowException as error:
        raise SinkError(
            10,
            f"rows that wait in the outbox do not fit the columns of their step any more: {error}",
            hint="The step before the sink has other types now. Bring the old types back until they are delivered.",
        ) from error
    return pa.table(columns, schema=wanted)
