"""How far each sink has been delivered to, and what keeps it: `cursors/<sink>/<commit>.json`.

Delivery writes a record for every sink; for sinks that keep their cursor themselves it is a copy, some commits late.
The record with the highest commit counts, and lower ones are deleted. So a driver that was deposed and does not know
it yet cannot move a cursor back: what it writes has a lower number than what its successor wrote.
"""

from __future__ import annotations

import msgspec

from hailstorm.ledger.commit import encode, unsealed
from hailstorm.ledger.stores.store import Store


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a sink: the last commit that it got, and the error that it waits for to pass.

    `next_try` is when delivery tries again (ISO 8601); without it a sink with an error waits for a person. `ahead` says
    that this was written before the rows of its commit were delivered (at-most-once): they may still be read.
    """

    commit: int = 0
    epoch: int = 0  # of the run that wrote this
    error: str | None = None
    next_try: str | None = None
    recent: tuple[tuple[int, int], ...] = ()  # rows, and rejected ones among them, of the last commits
    ahead: bool = False

    @property
    def read(self) -> int:
        """The last commit whose rows nobody reads any more."""
        return self.commit - self.ahead


class Cursors:
    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, sink: str) -> SinkRecord:
        """The record that was stored last. A record that another process replaces meanwhile is looked for again."""
        while names := self._store.list(_folder(sink)):
            data = self._store.get(f"{_folder(sink)}/{names[-1]}")
            if data is not None:
                return unsealed(data, SinkRecord, f"{_folder(sink)}/{names[-1]}")
        return SinkRecord()

    def store(self, sink: str, record: SinkRecord) -> None:
        """Durable when it returns."""
        name = f"{record.commit:020d}.json"
        self._store.put(f"{_folder(sink)}/{name}", encode(record))
        for older in self._store.list(_folder(sink)):
            if older < name:
                self._store.delete(f"{_folder(sink)}/{older}")


def _folder(sink: str) -> str:
    return f"cursors/{sink}"
