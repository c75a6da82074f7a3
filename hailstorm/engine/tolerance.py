"""How many bad rows are borne: one rule for the rows of ticks and for the rows that sinks get.

More than `limit` of the last `rows` rows, or somewhat more of them, is no accident but a bug, and what is under way is
not kept. It is counted across ticks and commits, so that a trickle of rows is judged, too; and a tick or commit that is
large enough by itself is judged by itself, so that a good past hides nothing. What was counted is a small value
(`Recent`) in the ledger: a restart changes nothing. `Attempts` judges ticks, and couriers judge sinks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hailstorm.topology.settings import Settings

Recent = tuple[tuple[int, int], ...]  # (rows, bad rows) of the last ticks, oldest first; short ones are one entry

_ANY = sys.maxsize
_PARTS = 10  # a window has about so many entries, however small the ticks are


@dataclass(frozen=True)
class Tolerance:
    limit: float
    rows: int

    @staticmethod
    def of(settings: Settings) -> Tolerance:
        return Tolerance(settings.error_limit, settings.error_limit_rows)

    def most(self, recent: Recent, rows: int) -> int:
        """How often so many further rows may fail. (A row can fail more than once, where copies of it are made.)"""
        alone = int(self.limit * rows) if rows >= self.rows else _ANY
        seen, bad = total(self.after(recent, rows, 0))
        together = int(self.limit * seen) - bad if seen >= self.rows else _ANY
        return max(0, min(alone, together))

    def after(self, recent: Recent, rows: int, bad: int) -> Recent:
        """With further rows, and without what is older than the last `self.rows`."""
        if not rows:
            return recent
        if recent and recent[-1][0] * _PARTS < self.rows:
            entries = [*recent[:-1], (recent[-1][0] + rows, recent[-1][1] + bad)]
        else:
            entries = [*recent, (rows, bad)]
        while total(tuple(entries[1:]))[0] >= self.rows:
            del entries[0]
        return tuple(entries)

    def begun(self, recent: Recent) -> Recent:
        """What a run begins with. More bad rows than it bears were allowed by somebody, who need not say so again."""
        seen, bad = total(recent)
        return () if seen >= self.rows and bad > self.limit * seen else recent


def total(recent: Recent) -> tuple[int, int]:
    """All rows, and the bad ones among them."""
    return sum(rows for rows, _ in recent), sum(bad for _, bad in recent)
