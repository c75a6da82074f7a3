"""Rows that a sink rejects: which become dead letters, and when they are too many.

A courier owns one. The count goes over the last hundred rows or more, across deliveries and restarts; after a second
chance it begins again, because somebody has seen to the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from hailstorm.engine.delivery.outbox import Entry, Outbox
from hailstorm.engine.tolerance import Recent, Tolerance, total
from hailstorm.errors import SinkError
from hailstorm.sinks.json_rows import json_rows
from hailstorm.sinks.sink import Parcel, Rejected
from hailstorm.topology import ends
from hailstorm.topology.settings import Settings


class Rejections:
    """`begin` before every attempt, `reject` in it at most once per commit, `end` after it when it has succeeded."""

    def __init__(
        self, sink: ends.Sink, outbox: Outbox, settings: Settings, pieces: Callable[[Entry], Iterator[pa.Table]]
    ) -> None:
        self._step, self._outbox, self._settings, self._pieces = sink, outbox, settings, pieces
        self._tolerance = Tolerance.of(settings)
        self.recent = self._tolerance.begun(outbox.recent(sink.name))
        self._entries: dict[int, Entry] = {}  # what is being delivered, by commit
        self._counted: dict[int, int] = {}  # rows of it that this attempt has rejected

    def begin(self, entries: Sequence[Entry]) -> int:
        """How many rows an attempt has rejected that failed afterwards: this one counts its own."""
        taken_back = sum(self._counted.values())
        for commit in self._counted:
            self._outbox.forget_rejected(self._step.name, commit)
        self._entries, self._counted = {entry.commit: entry for entry in entries}, {}
        return taken_back

    def end(self) -> None:
        self.recent, self._entries, self._counted = self._before(None), {}, {}

    def reject(self, commit: int, rejected: Sequence[Rejected]) -> None:
        """Make dead letters of rows, durably. Raises SinkError when they are too many."""
        entry = self._entries[commit]
        if len(rejected) > self.most(commit, entry.rows):
            raise SinkError(
                13,
                f"sink '{self._step.name}' rejects {self._too_many(len(rejected), entry)}, "
                f"more than {self._settings.error_limit:.0%}: that is no bad row but a bad target or topology",
                at=self._step.at,
                hint=f"The first reason: {rejected[0].reason}\n"
                "The rows wait in the outbox until it is fixed. How many are too many: --set error_limit=20%",
            )
        reasons = {one.row: one.reason for one in rejected}
        found = []
        for first, piece in Parcel(commit, entry.rows, partial(self._pieces, entry)).numbered():
            inside = [row - first for row in sorted(reasons) if first <= row < first + piece.num_rows]
            if inside:
                found.append(piece.take(pa.array(inside, pa.int64())))
        rows = pa.concat_tables(found)
        contents = (content.encode() for content in json_rows(rows).to_pylist())
        letters = [(reasons[row], content) for row, content in zip(sorted(reasons), contents, strict=True)]
        self._outbox.store_rejected(self._step.name, commit, letters, rows)
        self._counted[commit] = len(rejected)

    def most(self, commit: int, rows: int) -> int:
        """Rows that get a second chance may all fail again: that says nothing new about the target."""
        return rows if self._outbox.is_retry(commit) else self._tolerance.most(self._before(commit), rows)

    def _too_many(self, rejected: int, entry: Entry) -> str:
        if rejected > self._tolerance.most((), entry.rows):
            return f"{rejected} of {entry.rows} rows of commit {entry.commit}"
        rows, bad = total(self._tolerance.after(self._before(entry.commit), entry.rows, rejected))
        return f"{bad} of its last {rows} rows"

    def _before(self, commit: int | None) -> Recent:
        """What is counted before a commit of those that are delivered together; None: after all of them."""
        recent = self.recent
        for entry in self._entries.values():
            if entry.commit == commit:
                break
            is_retry = self._outbox.is_retry(entry.commit)
            recent = () if is_retry else self._tolerance.after(recent, entry.rows, self._counted.get(entry.commit, 0))
        return recent
