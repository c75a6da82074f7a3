"""The ticks between two commits, as they were committed: what a rerun needs to make them again.

A commit that is kept says all of itself. Of commits that retention has thinned out, the ledger knows for a day where
their ticks ended; of older ones only that they were all in one interval. Then `exact` is False: what depends on where
ticks were cut cannot be had again from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hailstorm.clock.clock import Clock, Range
from hailstorm.clock.watermark import END
from hailstorm.history.beginning import began_at
from hailstorm.history.marks import Cut, cuts
from hailstorm.history.moments import Moment
from hailstorm.history.rerun import Tick
from hailstorm.ledger.commit import Commit
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live


@dataclass(frozen=True)
class Committed:
    """A commit, or several that are kept as one, as ticks."""

    commit: Commit
    ticks: tuple[Tick, ...]
    exact: bool = True

    @property
    def is_passable(self) -> bool:
        """Whether running its ticks gives what it did."""
        return not self.commit.changes_otherwise


def committed_between(ledger: Ledger, after: int, until: int) -> Iterator[Committed]:
    """The kept commits with these numbers, (after, until], in order."""
    for commit in ledger.commits(after):
        if commit.commit > until:
            return
        if commit.covers_from == commit.commit:
            yield Committed(commit, (tick_of(commit),))
        else:
            ticks = _thinned_out(ledger, commit)
            yield Committed(commit, ticks or (tick_of(commit),), exact=bool(ticks))


def ticks_to(ledger: Ledger, moment: Moment) -> tuple[Tick, ...]:
    """What leads from the base of a moment to its clock: the ticks that there were, and the beginning of one."""
    assert moment.clock is not None, "a kept commit needs no ticks"
    after = next(ledger.commits(moment.base.commit), None)
    only = None if after is None else tick_of(after).only
    ticks = _of_cuts(moment.base, moment.cuts, only)
    reached = moment.cuts[-1].clock if moment.cuts else moment.base.position()
    if not reached.covers(moment.clock):
        assert after is not None, "a clock that was reached"
        ticks = (*ticks, Tick(moment.clock, after.now, _unknown_to(reached, began_at(after)), only=only))
    return ticks


def _unknown_to(clock: Clock, other: Clock) -> Clock:
    """The partitions of the other clock that this one does not name."""
    offsets = {
        spout: {p: offset for p, offset in row.items() if clock.offset(spout, p) is None}
        for spout, row in other.offsets.items()
    }
    return Clock(offsets)


def is_cut_known(ledger: Ledger, moment: Moment) -> bool:
    """Whether `ticks_to` are cut where ticks were cut."""
    after = next(ledger.commits(moment.base.commit), None)
    return after is None or after.covers_from == after.commit or bool(_thinned_out(ledger, after))


def _thinned_out(ledger: Ledger, commit: Commit) -> tuple[Tick, ...]:
    """The ticks that a squashed commit stands for; none when they are not known, or one of them went back."""
    base = ledger.at(commit.covers_from - 1)
    return _of_cuts(base, cuts(ledger, base.commit, commit.commit), tick_of(commit).only)


def _of_cuts(base: Live, known: Sequence[Cut], only: tuple[Range, ...] | None) -> tuple[Tick, ...]:
    """Commits of which only the end is known. One that read nothing may have been a tick that did what was due."""
    ticks: list[Tick] = []
    clock, ended = base.position(), _is_end(base)
    for cut in known:
        if not cut.clock.covers(clock):
            return ()
        ends = cut.watermark == END and not ended
        ticks.append(Tick(cut.clock, cut.now, only=only, kind="complete" if ends else "tick"))
        clock, ended = cut.clock, ended or ends
    return tuple(ticks)


def _is_end(base: Live) -> bool:
    return base.watermark is not None and base.watermark.startswith("9999-12-31T23:59:59.999999")


def tick_of(commit: Commit) -> Tick:
    """A commit that stands for itself as a tick; one that stands for several as one large tick."""
    start, end = began_at(commit), Clock.from_json(commit.end)
    if commit.reason == "complete":
        return Tick(end, commit.now, start, kind="complete")
    if commit.reason not in ("tick", "rewind", "backfill") and not commit.first:
        return Tick(end, commit.now, start, kind="nothing")
    whole = (Range(s, p, start.offset(s, p) or 0, last) for s, p, last in end if start.offset(s, p) is not None)
    holes = ((Range(s, int(p), h.start, h.end)) for s, row in commit.holes.items() for p, of in row.items() for h in of)
    return Tick(end, commit.now, start, only=without(whole, holes))


def holes_of(commits: Iterable[Commit], reasons: Iterable[str]) -> tuple[Range, ...]:
    """What these commits did not read, for one of these reasons."""
    wanted = set(reasons)
    return tuple(
        Range(spout, int(partition), hole.start, hole.end)
        for commit in commits
        for spout, row in commit.holes.items()
        for partition, holes in row.items()
        for hole in holes
        if hole.reason in wanted
    )


def without(whole: Iterable[Range], holes: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges without what is in a hole, in order."""
    cut: dict[tuple[str, int], list[Range]] = {}
    for hole in holes:
        cut.setdefault((hole.spout, hole.partition), []).append(hole)
    found: list[Range] = []
    for one in whole:
        begin = one.start
        for hole in sorted(cut.get((one.spout, one.partition), []), key=lambda hole: hole.start):
            if begin < min(hole.start, one.end):
                found.append(Range(one.spout, one.partition, begin, min(hole.start, one.end)))
            begin = max(begin, hole.end)
        if begin < one.end:
            found.append(Range(one.spout, one.partition, begin, one.end))
    return tuple(found)
