"""Moments: what a person means by WHEN, and what the ledger has of it.

    moment_of(ledger, "42")                           a commit
    moment_of(ledger, "latest-5")                     counted back from the newest
    moment_of(ledger, "before-the-deploy")            a snapshot
    moment_of(ledger, '{"tweets": {"0": 1200}}')      a clock
    moment_of(ledger, "tweets/0@1200")                just after this record was read, and nothing after it in its tick
    moment_of(ledger, "2026-11-17T10:30:00Z")         a wall time; without a zone it is UTC, and a date is its midnight

A moment is a kept commit, or lies after one: then `base` is the nearest kept commit before it, `clock` is what is
wanted, and `cuts` are the ticks between the two as they were, as far as the ledger still knows them. Every command and
the read side go through here; nothing is run here (`rerun.py` does that), and nothing is written.
"""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TypeAlias

import msgspec

from hailstorm.clock.clock import Clock
from hailstorm.errors import LedgerError, UsageError, WordError, suggestion
from hailstorm.history.beginning import live_before
from hailstorm.history.marks import Cut, Kept, cuts, newest_kept
from hailstorm.history.one_record import Record, refuse_unread
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.pins import read_snapshot, snapshot_names
from hailstorm.ledger.stores.store import Store

When: TypeAlias = "str | int | Clock | datetime | None"

_BACK = re.compile(r"latest(?:\s*-\s*(\d+))?")
_AHEAD_SECONDS = 60.0  # the machine that commits may be ahead of the one that reads


@dataclass(frozen=True)
class Back:
    """So many commits before the newest; 0 is the newest."""

    commits: int


@dataclass(frozen=True)
class Named:
    """A snapshot."""

    name: str


Parsed: TypeAlias = int | Back | Named | Clock | Record | datetime


@dataclass(frozen=True)
class Moment:
    """A kept commit (`clock` is None), or what was at `clock`, at or after the kept commit `base`.

    `cuts` are the ticks after `base` and up to `clock`, in order: a rerun that cuts where they were cut gives exactly
    what was there. Without them the rest is one piece. `remark` says what a person must know of the answer, or nothing.
    """

    base: Live
    clock: Clock | None = None
    cuts: tuple[Cut, ...] = ()
    remark: str = ""

    @property
    def is_kept(self) -> bool:
        return self.clock is None


def parse(when: When) -> Parsed:
    """What is meant, by its form alone: nothing is looked up. Raises WordError for what has no form."""
    match when:
        case None:
            return Back(0)
        case bool() | float() | date() | dict() if not isinstance(when, datetime):  # whatever its type says
            raise _not_a_moment(str(when))
        case int():
            return _number(when, str(when))
        case Clock():
            return when
        case datetime():
            return when if when.tzinfo else when.replace(tzinfo=UTC)
    text = when.strip()
    if text.isascii() and text.removeprefix("-").isdecimal():
        return _number(int(text), text)
    if found := _BACK.fullmatch(text):
        return Back(int(found[1] or 0))
    if text.startswith("{"):
        return _clock(text)
    if record := Record.find(text):
        return record
    if text[:1].isdigit():
        return _time(text)
    if not text:
        raise _not_a_moment(when)
    return Named(text)


def moment_of(ledger: Ledger, when: When) -> Moment:
    """The moment that is meant. Raises LedgerError when there is none, or it is not kept, with the nearest ones."""
    match parse(when):
        case int(number):
            return _of_commit(ledger, number)
        case Back(0):
            return Moment(ledger.newest())
        case Back(commits):
            newest = ledger.newest().commit
            if commits > newest:
                raise LedgerError(7, f"there is no latest-{commits}: latest is commit {newest}")
            return _of_commit(ledger, newest - commits)
        case Named(name):
            return Moment(ledger.at(_snapshot(ledger, name)))
        case Clock() as clock:
            return _of_clock(ledger, clock)
        case Record() as record:
            return _of_record(ledger, record)
        case datetime() as at:
            return _of_time(ledger, at)


def kept_moment(ledger: Ledger, when: When) -> Live:
    """What was live at a kept commit. Raises LedgerError for a moment between two, which names them."""
    moment = moment_of(ledger, when)
    if not moment.is_kept:
        raise not_kept(ledger, when, moment)
    return moment.base


def not_kept(ledger: Ledger, when: When, moment: Moment) -> LedgerError:
    """That a moment lies between two kept commits, and which they are."""
    _, after = newest_kept(ledger, lambda kept: kept.commit <= moment.base.commit)
    nearest = " and ".join(str(number) for number in (moment.base.commit, after and after.commit) if number)
    return LedgerError(
        41,
        f"'{shown(when)}' lies between two commits that are kept",
        hint=f"The nearest that are there: {nearest}. See: hailstorm commits TARGET\n"
        "state and diff answer it exactly, by running the rest, when TARGET is the app.",
    )


def shown(when: When) -> str:
    """As a person would type it."""
    match when:
        case None:
            return "latest"
        case Clock():
            return msgspec.json.encode(when.to_json()).decode()
        case datetime():
            return when.isoformat()
        case _:
            return str(when)


def _of_commit(ledger: Ledger, number: int) -> Moment:
    try:
        return Moment(ledger.at(number))
    except LedgerError as error:
        if error.code != "HS-LED-032":
            raise
        # Thinned out, but its tick may still be known: then it can be had again from the kept commit before it.
        base, after = newest_kept(ledger, lambda kept: kept.commit < number)
        ticks = cuts(ledger, base.commit, number)
        if not ticks or after is None or _changed_otherwise(ledger, after):
            raise
        return Moment(_base(ledger, base, after), ticks[-1].clock, ticks)


def _of_clock(ledger: Ledger, clock: Clock) -> Moment:
    newest = ledger.newest()
    head = newest.position()
    unknown = _unknown_in(clock, newest)
    if unknown or not head.covers(clock):
        # An earlier commit may have been there: before a rewind, or when there was this spout. What lies between such
        # commits is another history.
        kept, _ = newest_kept(ledger, lambda kept: _same(kept.clock, clock))
        if not kept.commit:
            raise unknown or LedgerError(
                42,
                f"the clock {shown(clock)} has not been reached",
                hint=f"The newest commit, {newest.commit}, is at {shown(head)}",
            )
        return Moment(ledger.at(kept.commit))
    base, after = newest_kept(ledger, lambda kept: clock.covers(kept.clock))
    if _same(base.clock, clock):
        return Moment(ledger.at(base.commit))
    assert after is not None, "the newest commit has reached the clock"
    _refuse_change(ledger, base, after, f"the clock {shown(clock)}")
    between = cuts(ledger, base.commit, after.commit - 1)
    live = _base(ledger, base, after)
    return Moment(live, clock, _leading(live.position(), between, clock))


def _of_record(ledger: Ledger, record: Record) -> Moment:
    """Its tick up to the record: what its partition has after it, and other partitions in this tick, is not there."""
    newest = ledger.newest()
    if unknown := _unknown_in(record.on(Clock()), newest, f"'{record}'"):
        raise unknown
    base, after = newest_kept(ledger, lambda kept: _offset(kept.clock, record) <= record.offset)
    commit = None if after is None else ledger.read_commit(after.commit)
    if after is None or commit is None:
        hint = f"The newest commit, {newest.commit}, is at {shown(newest.position())}"
        raise LedgerError(42, f"the record {record} has not been read", hint=hint)
    refuse_unread(record, commit)
    _refuse_change(ledger, base, after, f"the record {record}")
    live = _base(ledger, base, after)
    ticks = cuts(ledger, base.commit, after.commit) if commit.first else ()
    before = tuple(itertools.takewhile(lambda cut: _offset(cut.clock, record) <= record.offset, ticks))
    clock = record.on(before[-1].clock if before else live.position(), 1)
    if commit.first and not ticks and not _same(record.on(live.position()), record.on(after.clock)):
        raise LedgerError(
            32,
            f"what else had been read when {record} was is not known any more",
            hint=f"The nearest moments that are kept: {base.commit} and {after.commit}. A clock can be asked for:\n"
            f"{shown(record.on(after.clock, 1))}",
        )
    return Moment(ledger.at(after.commit)) if _same(clock, after.clock) else Moment(live, clock, before)


def _offset(clock: Clock, record: Record) -> int:
    return clock.offset(record.spout, record.partition) or 0


def _of_time(ledger: Ledger, at: datetime) -> Moment:
    micros = round(at.timestamp() * 1_000_000)
    if micros > (time.time() + _AHEAD_SECONDS) * 1_000_000:
        newest = ledger.newest()
        raise LedgerError(
            43,
            f"{at.isoformat()} is in the future",
            hint=f"The newest commit is {newest.commit}, of {newest.at}. A time without a zone is UTC.",
        )
    base, after = newest_kept(ledger, lambda kept: kept.now <= micros)
    if not base.commit:
        raise _before_history(ledger, at)
    if after is None or after.commit == base.commit + 1:
        return Moment(ledger.at(base.commit))
    known = () if _changed_otherwise(ledger, after) else cuts(ledger, base.commit, after.commit - 1)
    if not known:
        remark = f"what was between commits {base.commit} and {after.commit} is not kept: this is commit {base.commit}"
        return Moment(ledger.at(base.commit), remark=remark)
    ticks = tuple(cut for cut in known if cut.now <= micros)
    return Moment(ledger.at(base.commit), ticks[-1].clock, ticks) if ticks else Moment(ledger.at(base.commit))


def _base(ledger: Ledger, base: Kept, after: Kept) -> Live:
    """What is live where a rerun begins: at the kept commit, or before the first one."""
    commit = ledger.read_commit(after.commit)
    if base.commit or commit is None:
        return ledger.at(base.commit)
    if commit.covers_from > 1:
        raise LedgerError(
            32,
            f"what was before commit {after.commit} is not kept",
            hint=f"The ledger begins with it. The nearest that is there: {after.commit}.",
        )
    return live_before(ledger, commit)


def _refuse_change(ledger: Ledger, base: Kept, after: Kept, what: str) -> None:
    if why := _changed_otherwise(ledger, after):
        raise LedgerError(
            76,
            f"{what} lies between commits {base.commit} and {after.commit}, and so does a {why}",
            hint="Ticks that are run again do not make up for that. The nearest moments that are kept: "
            f"{base.commit} and {after.commit}.",
        )


def _changed_otherwise(ledger: Ledger, after: Kept | None) -> str:
    """What is in a kept commit besides ticks, so that moments which it stands for cannot be had by running those."""
    commit = None if after is None else ledger.read_commit(after.commit)
    return "" if commit is None else commit.changes_otherwise


def _same(one: Clock, other: Clock) -> bool:
    """An offset of 0 is the same as a partition that was not read."""
    return one.covers(other) and other.covers(one)


def _leading(base: Clock, between: tuple[Cut, ...], wanted: Clock) -> tuple[Cut, ...]:
    """The ticks from the base on that lead to the clock."""
    found: list[Cut] = []
    for cut in between:
        if not wanted.covers(cut.clock) or not cut.clock.covers(found[-1].clock if found else base):
            break
        found.append(cut)
    return tuple(found)


def _unknown_in(clock: Clock, newest: Live, what: str = "the clock") -> UsageError | None:
    """What the clock names and this ledger does not have."""
    known = newest.clock
    for spout, partition, _ in clock:
        if spout not in known:
            return UsageError(
                93,
                f"{what} names a spout '{spout}', which this ledger does not have",
                hint=f"Spouts: {', '.join(sorted(known)) or 'none yet'}. {suggestion(spout, known)}".rstrip(),
            )
        if str(partition) not in known[spout]:
            return UsageError(
                93,
                f"{what} names partition {partition} of '{spout}', of which nothing was read",
                hint=f"Partitions of '{spout}': {', '.join(sorted(known[spout], key=int)) or 'none yet'}.",
            )
    return None


def _before_history(ledger: Ledger, at: datetime) -> LedgerError:
    first = next(iter(ledger.commits()), None)
    if first is None:
        return LedgerError(7, "there is no commit yet", hint="The first run makes one: hailstorm run APP")
    return LedgerError(
        32,
        f"{at.isoformat()} is before the first commit that is kept",
        hint=f"The nearest that is there: {first.commit} ({first.at[:19].replace('T', ' ')}).\n"
        "What is kept, and for how long, is the setting retention. See: hailstorm commits TARGET",
    )


def _snapshot(ledger: Ledger, name: str) -> int:
    snapshot = read_snapshot(ledger.store, name)
    if snapshot is None:
        raise no_snapshot(
            ledger.store,
            name,
            "A moment is also a commit number, latest, latest-5, a clock (JSON), a record\n(tweets/0@1200) or a time.",
        )
    return snapshot.commit


def no_snapshot(store: Store, name: str, also: str = "") -> LedgerError:
    names = snapshot_names(store)
    known = f"Snapshots: {', '.join(names)}." if names else "There are no snapshots yet."
    hint = f"{known} {suggestion(name, names)}".rstrip()
    return LedgerError(40, f"there is no snapshot '{name}'", hint=f"{hint}\n{also}".rstrip())


def _number(number: int, text: str) -> int:
    if number < 0:
        raise _not_a_moment(text)
    return number


def _clock(text: str) -> Clock:
    try:
        found = Clock.from_json(msgspec.json.decode(text, type=dict[str, dict[str, int]]))
        if any(offset < 0 for _, _, offset in found):
            raise ValueError("an offset is negative")
        return found
    except (msgspec.DecodeError, ValueError) as error:
        raise WordError(
            92,
            f"the clock {text} is not one: {error}",
            hint="""A clock is JSON, spout to partition to next offset: '{"tweets": {"0": 1200, "1": 1187}}'""",
        ) from error


def _time(text: str) -> datetime:
    try:
        if len(text) <= 10:
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise _not_a_moment(text) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _not_a_moment(text: str) -> WordError:
    return WordError(
        91,
        f"'{text}' is not a moment",
        hint="A moment is a commit number, latest, latest-5, a snapshot's name, a clock as JSON,\n"
        "a record (tweets/0@1200), or a time: 2026-01-31T10:30:00 (UTC, unless it says its zone) or a date.",
    )
