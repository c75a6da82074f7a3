"""Marks: number, time and clock of commits, of those that are kept and of those of which only the tick is known.

`moments.py` asks. A clock may go back from one commit to the next (a rewind), so everything is looked for from the
newest commit on: the newest that fits counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hailstorm.clock.clock import Clock
from hailstorm.ledger.arrays import integers
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.packs import list_commits, ticks_name
from hailstorm.ledger.sums import Reading, Sums, opened

_NO_CLOCK = ("commit", "now", "watermark")


@dataclass(frozen=True)
class Kept:
    """A commit that is kept. Number 0 is the moment before the first."""

    commit: int = 0
    now: int = 0  # µs
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Cut:
    """Where a tick ended: what a rerun needs to cut in the same place."""

    commit: int
    now: int  # µs
    watermark: int | None  # µs
    clock: Clock


def newest_kept(ledger: Ledger, fits: Callable[[Kept], bool]) -> tuple[Kept, Kept | None]:
    """The newest kept commit that fits (number 0: none does), and the kept commit after it."""
    after = None
    for mark in ledger.marks():
        kept = Kept(mark.commit, mark.now, Clock.from_json(mark.end))
        if fits(kept):
            return kept, after
        after = kept
    return Kept(), after


def cuts(ledger: Ledger, after: int, until: int) -> tuple[Cut, ...]:
    """The ticks of these numbers, (after, until], of commits that are packed; kept or not.

    Empty unless all of them are known: a rerun that misses one would cut elsewhere.
    """
    found: dict[int, Cut] = {}
    sums = ledger.history().sums
    for first, last in list_commits(ledger.store).ticks:
        if first <= until and last > after:
            name = ticks_name(first, last)
            found |= {cut.commit: cut for cut in _read(ledger, name, sums.get(name), after, until)}
    wanted = range(after + 1, until + 1)
    return tuple(found[number] for number in wanted) if all(number in found for number in wanted) else ()


def _read(ledger: Ledger, name: str, sums: Sums | None, after: int, until: int) -> Iterator[Cut]:
    """`sums` is None when the file was written a moment ago: then its pages have checksums, and its footer has none."""
    try:
        with Reading(name), opened(ledger.store.open(name), name, sums) as file:
            table = file.read()
    except FileNotFoundError:
        return  # merged, or too old, since it was listed
    numbers = integers(table["commit"].combine_chunks())
    begin, end = np.searchsorted(numbers, [after, until], side="right").tolist()
    table = table.slice(begin, end - begin)
    clocks = [(name, *name.rpartition("/")[::2]) for name in table.column_names if name not in _NO_CLOCK]
    for row in table.to_pylist():
        offsets: dict[str, dict[int, int]] = {}
        for name, spout, partition in clocks:
            if row[name] is not None:
                offsets.setdefault(spout, {})[int(partition)] = row[name]
        yield Cut(row["commit"], row["now"], row["watermark"], Clock(offsets))
