"""One record of a log, as people name it: `tweets/0@1200`. `trace` asks what became of it, and it is a moment, too."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hailstorm.clock.clock import Clock
from hailstorm.errors import LedgerError, WordError
from hailstorm.ledger.commit import Commit

_RECORD = re.compile(r"(?P<spout>[^/@]+)/(?P<partition>\d+)@(?P<offset>\d+)")


@dataclass(frozen=True)
class Record:
    """Where one record is."""

    spout: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.spout}/{self.partition}@{self.offset}"

    @staticmethod
    def find(text: str) -> Record | None:
        """The record that a text names; None when it names none."""
        found = _RECORD.fullmatch(text)
        return None if found is None else Record(found["spout"], int(found["partition"]), int(found["offset"]))

    @staticmethod
    def parse(text: str) -> Record:
        found = Record.find(text)
        if found is None:
            raise WordError(85, f"'{text}' is no record", hint="A record is spout/partition@offset: tweets/0@1200")
        return found

    def on(self, clock: Clock, more: int = 0) -> Clock:
        """The clock with the record's partition at its offset, and so many further."""
        row = {**clock.offsets.get(self.spout, {}), self.partition: self.offset + more}
        return Clock({**clock.offsets, self.spout: row})


def refuse_unread(record: Record, commit: Commit) -> None:
    """Raise when the commit that has passed a record has left it out."""
    begin = commit.start.get(record.spout, {}).get(str(record.partition)) if commit.rewound is None else None
    holes = commit.holes.get(record.spout, {}).get(str(record.partition), [])
    why = next((hole.reason for hole in holes if hole.start <= record.offset < hole.end), None)
    if why is not None or (begin is not None and record.offset < begin):
        reason = f" ({why})" if why else ": it was there before the topology began"
        raise LedgerError(82, f"{record} was never read{reason}", hint="hailstorm status TARGET shows what was not.")
