"""Vacuum: the ledger cleans up after itself, a bounded piece of work at a time.

Commits are packed, and packs are thinned and merged as retention asks for (topology/retention.py); the files that only
forgotten moments needed go with them. Outbox files go once their sink is past them, and files that no commit names
after a while. Housekeeping calls `work` beside ticks; `hailstorm vacuum` calls it until nothing is left to do.

Crash-safe, because everything is done in this order: write what is kept, then say so (`history.json`), then delete.
What a crash leaves is replaced by what was written, and goes the next time. One process at a time does it (a turn);
one that lost its turn while it slept can only write packs that are replaced already.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from hailstorm.faults import fault
from hailstorm.ledger.commit import Commit, Run, commit_name, decode, encode, stamp_of
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.delta.moments import files_of_forgotten
from hailstorm.ledger.history_limit import HistoryLimit
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.letters import REJECTED
from hailstorm.ledger.live import Live
from hailstorm.ledger.packs import (
    Listing,
    OpenPack,
    Pack,
    list_commits,
    merged_ticks,
    ticks_name,
    ticks_table,
    write_pack,
    write_ticks,
)
from hailstorm.ledger.pins import held_commits
from hailstorm.ledger.record import HISTORY, History
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.squashing import is_waiting, thinned, without_delivered
from hailstorm.ledger.stores.store import read_table
from hailstorm.ledger.sums import Sums, sums_of
from hailstorm.topology.retention import Retention

KEEP_LOOSE = 100  # commits that stay files of their own: the newest, which everybody reads
PACK = 1_000  # commits in a pack
MERGE = 8  # packs, or files of ticks, that are merged at once
TICKS_SECONDS = 86_400.0
LARGEST_TICKS = 1_000_000  # commits in one file of ticks
GRACE_SECONDS = 3_600.0  # how long a file that no commit names may still be in somebody's hands
SWEEP_SECONDS = 600.0
_AT_ONCE = 500  # commits that a sweep looks at in one piece of work


@dataclass
class Cleared:
    """What has gone so far."""

    files: int = 0
    commits: int = 0


class Vacuum:
    """`work` until it gives False. `limit` is that of history, in bytes; `now` gives seconds since 1970."""

    def __init__(
        self, ledger: Ledger, retention: Retention, limit: int | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._ledger, self._store, self._now = ledger, ledger.store, now
        self._limit = HistoryLimit(retention, limit)
        self._times: dict[Pack, list[tuple[int, int]]] = {}
        self._forced: dict[Pack, set[int]] = {}  # commits that wait for a sink, and so could not go
        self._end: Live | None = None  # what is live at the end of the last pack
        self._sweeping: Iterator[bool] = iter(())
        self._moments: set[tuple[str, int]] = set()  # versions of earlier commits that are known to be theirs
        self._next_sweep = 0.0
        self.cleared = Cleared()

    def work(self, whole: bool = False) -> bool:
        """One piece of work; whether there was any. `whole`: also what is hardly worth it, and all of a sweep."""
        self._limit.look(self._store, self._ledger.head, self._now())
        listing = list_commits(self._store)
        self._delete(listing.replaced)
        packed = self._pack(listing, whole)
        if self._retention.keeps_all:
            return packed
        self._clear_outboxes()
        self._clear_manifests(listing)
        return packed or self._merge_ticks(listing) or self._thin(listing, whole) or self._sweep(whole)

    @property
    def _retention(self) -> Retention:
        return self._limit.current

    # Packs

    def _pack(self, listing: Listing, whole: bool) -> bool:
        """Put the oldest single commits into a pack."""
        newest = listing.loose[-1] if listing.loose else 0
        numbers = [number for number in listing.loose if number <= newest - KEEP_LOOSE][:PACK]
        # What is not in a pack cannot be thinned out: where history must be short, packs are small.
        if len(numbers) < (1 if whole else max(1, (PACK // 2) >> self._limit.halvings)):
            return False
        commits = [self._read(number) for number in numbers]
        base = self._live_at(listing.packed, listing)
        write_ticks(self._store, ticks_table(commits))
        self._replace(Pack(numbers[0], numbers[-1]), base, commits, [commit_name(number) for number in numbers])
        return True

    def _thin(self, listing: Listing, whole: bool) -> bool:
        """Let the commits of some packs go that retention does not keep, and merge packs that have become small."""
        self._times = {pack: self._times.get(pack) or self._opened(pack).times() for pack in listing.packs}
        self._forced = {pack: waiting for pack, waiting in self._forced.items() if pack in self._times}
        held = held_commits(self._store)
        for group in self._groups(listing.packs, held):
            before = sum(len(self._times[pack]) for pack in group)
            after = sum(self._kept(pack, held) for pack in group)
            worth = len(group) >= MERGE or before >= 2 * after
            if worth or (whole and (len(group) > 1 or before > after)):
                opened = [self._opened(pack) for pack in group]
                commits = [commit for pack in opened for commit in pack.commits()]
                generation = max(pack.generation for pack in group) + 1
                pack = Pack(group[0].first, group[-1].last, generation)
                self._replace(pack, opened[0].base(), commits, [one.name for one in group])
                return True
        return False

    def _groups(self, packs: Sequence[Pack], held: set[int]) -> Iterator[list[Pack]]:
        """Packs that follow each other and make one of the usual size."""
        group: list[Pack] = []
        entries = kept = 0
        for pack in packs:
            here, stay = len(self._times[pack]), self._kept(pack, held)
            if group and (kept + stay > PACK or entries + here > 4 * PACK or len(group) == 8 * MERGE):
                yield group
                group, entries, kept = [], 0, 0
            group.append(pack)
            entries, kept = entries + here, kept + stay
        if group:
            yield group

    def _kept(self, pack: Pack, held: set[int]) -> int:
        times = self._times[pack]
        stay = self._retention.kept(times, self._micros()) | {times[-1][0]} | self._forced.get(pack, set())
        return len(stay | (held & {number for number, _ in times}))

    def _replace(self, pack: Pack, base: Live, commits: Sequence[Commit], old: Sequence[str]) -> None:
        """Write a pack of what is kept of these commits, and delete the old files and what nobody needs any more."""
        passed = outboxes_done_with(self._ledger, self._ledger.head)
        commits = commits if self._retention.keeps_all else [without_delivered(one, passed) for one in commits]
        waiting = {commit.commit for commit in commits if is_waiting(commit, passed)}
        by_age = self._retention.kept([(commit.commit, commit.now) for commit in commits], self._micros())
        held = held_commits(self._store)
        while True:
            kept, dropped = thinned(commits, by_age | waiting | held)
            if not write_pack(self._store, pack, base, kept):
                return  # somebody else has taken over
            fault("during-packing")
            pins = held_commits(self._store)
            if pins <= held:
                break
            # A reader that pinned a commit meanwhile has looked for it after that, and found it: it must stay.
            held |= pins
            pack = Pack(pack.first, pack.last, pack.generation + 1)
        self._forced[pack] = waiting
        self._end = None
        self._write_history()
        self._delete(old)
        fault("during-vacuum")
        self._delete(dropped)
        self.cleared.commits += len(commits) - len(kept)

    def _write_history(self) -> None:
        listing = list_commits(self._store)
        first = self._opened(listing.packs[0]).times()[0][0]
        known = self._ledger.history().sums
        names = [*(pack.name for pack in listing.packs), *(ticks_name(*one) for one in listing.ticks)]
        sums = {name: known.get(name) or self._sums(name) for name in names}
        self._store.put(HISTORY, encode(History(packed=listing.packed, first=first, sums=sums)))

    def _opened(self, pack: Pack) -> OpenPack:
        """A pack that is what was written: what is made of it lasts longer than it."""
        return OpenPack(self._store, pack, self._ledger.history().sums.get(pack.name))

    def _sums(self, name: str) -> Sums:
        data = self._store.get(name)
        assert data is not None, name
        return sums_of(data)

    def _live_at(self, number: int, listing: Listing) -> Live:
        """What is live at the end of the last pack."""
        if self._end is None or self._end.commit != number:
            found = self._opened(listing.packs[-1]).live_at(number) if listing.packs else Live()
            assert found is not None, "a pack keeps its last commit"
            self._end = found
        return self._end

    def _read(self, number: int) -> Commit:
        data = self._store.get(commit_name(number))
        assert data is not None, number
        return decode(data, Commit, commit_name(number))

    # What is not needed any more

    def _clear_outboxes(self) -> None:
        """Outbox files that nobody needs any more."""
        for sink, until in outboxes_done_with(self._ledger, self._ledger.head).items():
            names = ((name, stamp_of(name)) for name in self._store.list(f"outbox/{sink}"))
            self._delete(f"outbox/{sink}/{name}" for name, stamp in names if stamp and stamp.commit <= until)

    def _clear_manifests(self, listing: Listing) -> None:
        """Packs have what is live at their commits; of the others the newest two must stay."""
        names = self._store.list("manifests")[:-2]
        self._delete(f"manifests/{name}" for name in names if int(name.partition(".")[0]) < listing.packed)

    def _merge_ticks(self, listing: Listing) -> bool:
        """Files of ticks become fewer and larger, and what is older than a day goes."""
        since = self._micros() - round(TICKS_SECONDS * 1e6)
        ticks = sorted(listing.ticks, key=lambda one: (one[0], -one[1]))
        parts = [b for a, b in itertools.pairwise(ticks) if a[0] <= b[0] and b[1] <= a[1]]
        self._delete(ticks_name(*part) for part in parts)  # of a merger that was killed
        ticks = [one for one in ticks if one not in parts]
        gone = [one for one in ticks[:1] if self._last_time(one) < since]
        self._delete(ticks_name(*one) for one in gone)
        ticks = ticks[len(gone) :]
        for level in range(8):
            size = PACK * MERGE**level
            small = [one for one in ticks if one[1] - one[0] < size]
            if len(small) >= MERGE and size < LARGEST_TICKS:
                merging = small[:MERGE]
                sums = self._ledger.history().sums
                names = [ticks_name(*one) for one in merging]
                table = merged_ticks((read_table(self._store, name, sums=sums.get(name)) for name in names), since)
                written = write_ticks(self._store, table)
                self._delete(set(names) - {written})
                self._write_history()
                return True
        return bool(gone)

    def _last_time(self, ticks: tuple[int, int]) -> int:
        metadata = pq.read_metadata(self._store.open(ticks_name(*ticks)))
        return int(metadata.row_group(metadata.num_row_groups - 1).column(1).statistics.max)

    def _sweep(self, whole: bool) -> bool:
        """A piece of looking for files that no commit names. Begins again every ten minutes."""
        if next(self._sweeping, False):
            return True
        if self._now() < self._next_sweep:
            return False
        self._next_sweep = self._now() + SWEEP_SECONDS
        self._sweeping = self._orphans()
        if whole:
            for _ in self._sweeping:
                pass
        return not whole

    def _orphans(self) -> Iterator[bool]:
        """Delete files of commits that were never made: of failed attempts, and of runs that were killed.

        A file may be in flight while its epoch is the newest and its commit is to come, or while it is young: merged
        runs are named by a later commit than their names say.
        """
        head, old = self._ledger.newest(), self._now() - GRACE_SECONDS
        unnamed = {
            file.name
            for folder in ("state", "errors")
            for file in self._store.files(folder)
            if (stamp := stamp_of(file.name)) is not None
            and (stamp.epoch < head.epoch or (stamp.commit <= head.commit and file.modified < old))
        }
        unnamed -= set(files_of(head.runs, (file.path for file in head.dead_letters)))
        commits = self._ledger.commits()
        while unnamed and (some := list(itertools.islice(commits, _AT_ONCE))):
            for commit in some:
                added = {step: change.added for step, change in commit.state.items()}
                unnamed.difference_update(files_of(added, (file.path for file in commit.dead_letters)))
            yield True
        self._delete(unnamed)
        for sink in self._store.list(REJECTED):
            retried = head.retried.get(sink, 0)
            names = self._store.list(f"{REJECTED}/{sink}")
            self._delete(f"{REJECTED}/{sink}/{name}" for name in names if int(name[:20]) <= retried)
        self._delete(files_of_forgotten(self._ledger, self._moments))
        self.cleared.files += self._store.discard_unfinished("", old)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._store.delete(name)
            self.cleared.files += 1
            fault("during-deletion")

    def _micros(self) -> int:
        return round(self._now() * 1_000_000)


def passed_by_sinks(ledger: Ledger) -> dict[str, int]:
    """The last commit that each sink is known to have got."""
    return {sink: record.commit for sink, record in _records(ledger)}


def read_by_sinks(ledger: Ledger) -> dict[str, int]:
    """The last commit of which each sink reads no rows any more: those of a cursor that is ahead are on their way."""
    return {sink: record.read for sink, record in _records(ledger)}


def _records(ledger: Ledger) -> Iterator[tuple[str, SinkRecord]]:
    for sink in {*ledger.store.list("outbox"), *ledger.store.list("cursors")}:
        yield sink, ledger.cursors.load(sink)


def outboxes_done_with(ledger: Ledger, live: Live) -> dict[str, int]:
    """The last commit whose outbox is not needed any more, by sink."""
    read = read_by_sinks(ledger)
    return {sink: min([passed, *_open_letters(ledger, live, sink)]) for sink, passed in read.items()}


def _open_letters(ledger: Ledger, live: Live, sink: str) -> list[int]:
    """The commits of which a sink's target rejected rows whose retry must know which keys have changed since: from the
    first of them on its outboxes stay, and the commits that name them.

    A row of a stream has no key. One from before the sink got its whole table is out of date.
    """
    shape = live.sinks.get(sink)
    if shape is not None and not shape.is_table:
        return []
    settled = max(live.retried.get(sink, 0), live.wholes.get(sink, 0) - 1)
    rejected = (int(name[:20]) for name in ledger.store.list(f"{REJECTED}/{sink}"))
    return [number for number in rejected if number > settled]


def files_of(runs: Mapping[str, Iterable[Run]], letters: Iterable[str]) -> Iterator[str]:
    for step, of_step in runs.items():
        yield from (run_name(step, run.id) for run in of_step)
    yield from letters


def would_go(ledger: Ledger, retention: Retention, now: float) -> tuple[set[str], int]:
    """What a vacuum would delete of files that commits name, and how many commits it would forget."""
    if retention.keeps_all:
        return set(), 0
    newest = ledger.newest()
    passed = outboxes_done_with(ledger, newest)
    commits = [one for one in ledger.commits() if one.commit <= newest.commit - KEEP_LOOSE]
    outboxes = {
        file.path
        for one in ledger.commits()
        for sink, files in one.outbox.items()
        if one.commit <= passed.get(sink, 0)
        for file in files
    }
    lighter = [without_delivered(commit, passed) for commit in commits]
    waiting = {commit.commit for commit in lighter if is_waiting(commit, passed)}
    by_age = retention.kept([(commit.commit, commit.now) for commit in commits], round(now * 1e6))
    kept, dropped = thinned(lighter, by_age | waiting | held_commits(ledger.store))
    return dropped | outboxes, len(commits) - len(kept)
