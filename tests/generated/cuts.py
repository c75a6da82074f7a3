"""The same input, cut into the same ticks once more.

What most kinds of steps give depends on where ticks were cut: windows that leave out what is late, `distinct`, joins of
streams, look-ups, processes. What is compared with another run of such a topology must have been cut alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hailstorm.clock.clock import Clock
from hailstorm.engine.taps import tap_of
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.generated.batch import Row
from tests.generated.cases import Advance, Case, Crash, Event, Feed, Restart
from tests.generated.oracle import epochs


def clocks_after(driver: Driver, commit: int) -> list[Clock]:
    """Up to where the ticks after a commit have read."""
    return [Clock.from_json(one.end) for one in driver.ledger.commits(commit) if one.reason == "tick"]


def read_again(driver: Driver, clocks: Iterable[Clock]) -> None:
    """Read what is in the logs up to each of these clocks, as if it had come then."""
    negotiator = driver._negotiator
    for clock in clocks:
        while not negotiator.position().covers(clock) or negotiator.due():
            negotiator.tick(clock)


def flowed(driver: Driver, step: str, after: int) -> list[Row]:
    """What came out of a step in the commits after this one."""
    files = [file for commit in driver.ledger.commits(after) for file in commit.outbox.get(tap_of(step), ())]
    return [row for file in files for row in read_table(driver.ledger.store, file.path).to_pylist()]


def in_one_tick(events: Sequence[Event]) -> tuple[Event, ...]:
    """The same, with all that these events have read in one tick."""
    last = max((place for place, event in enumerate(events) if isinstance(event, Advance | Crash)), default=-1)
    read, unread = events[: last + 1], events[last + 1 :]
    return (*_feeds(read), Advance(), *_feeds(unread))


def one_by_one(case: Case) -> Case:
    """The same records, each in a tick of its own."""
    singles = [replace(feed, rows=(row,)) for feed in _feeds(case.events) for row in feed.rows]
    return replace(case, events=tuple(event for feed in singles for event in (feed, Advance())))


def undisturbed(events: Iterable[Event]) -> Iterator[Event]:
    """The same input in the same ticks, without crashes and restarts."""
    for event in events:
        if isinstance(event, Crash):
            yield Advance()
        elif not isinstance(event, Restart):
            yield event


def is_as_late_in_one_tick(case: Case, events: Sequence[Event]) -> bool:
    """Whether watermarks come to the same in one tick. They do not, when a partition is new that is behind the others:
    a watermark never goes back."""
    many, one = (epochs(replace(case, events=tuple(some)))[1].now for some in (events, in_one_tick(events)))
    return many == one


def _feeds(events: Iterable[Event]) -> Iterator[Feed]:
    return (event for event in events if isinstance(event, Feed))
