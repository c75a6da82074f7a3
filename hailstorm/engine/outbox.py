"""The outbox as delivery sees it: which commits wait for a sink, and their rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.ledger.commit import Commit
from hailstorm.ledger.ledger import Ledger

_AT_ONCE = 100
_REMEMBERED = 256


class LedgerOutbox:
    """Delivery's view of a ledger. The negotiator tells it of commits; older ones are read from their files."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._recent: dict[int, Commit] = {}

    def remember(self, commit: Commit) -> None:
        self._recent[commit.commit] = commit
        self._recent.pop(commit.commit - _REMEMBERED, None)

    def pending(self, sink: str, after: int) -> list[tuple[int, tuple[str, ...]]]:
        head = self._ledger.head
        found: list[tuple[int, tuple[str, ...]]] = []
        for number in range(after + 1, head.outboxes.get(sink, 0) + 1):
            commit = self._commit(number)
            if commit is not None and commit.outbox.get(sink):
                found.append((number, tuple(file.path for file in commit.outbox[sink])))
                if len(found) == _AT_ONCE:
                    break
        return found

    def read(self, files: tuple[str, ...]) -> pa.Table:
        tables = [pq.read_table(self._ledger.store.path(path)) for path in files]
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0]

    def load_cursor(self, sink: str) -> int:
        return self._ledger.load_cursor(sink)

    def store_cursor(self, sink: str, commit: int) -> None:
        self._ledger.store_cursor(sink, commit)

    def newest(self) -> int:
        return self._ledger.head.commit

    def is_retry(self, commit: int) -> bool:
        found = self._commit(commit)
        return found is not None and found.reason == "retry"

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        self._ledger.store_rejected(sink, commit, letters, rows)

    def forget_rejected(self, sink: str, commit: int) -> None:
        self._ledger.forget_rejected(sink, commit)

    def _commit(self, number: int) -> Commit | None:
        return self._recent.get(number) or self._ledger.read_commit(number)
