"""The record: every commit that is kept, wherever its file is, and what was live at each. Read only.

`Ledger` is the caller. Commits are single files at first and in packs later (packs.py); housekeeping may move them
while somebody reads, so whoever finds one missing looks again before it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from hailstorm.errors import LedgerError
from hailstorm.ledger.commit import Commit, commit_name, decode, unsealed
from hailstorm.ledger.live import Live
from hailstorm.ledger.packs import Listing, Mark, OpenPack, Pack, list_commits
from hailstorm.ledger.stores.store import Store, missing_file
from hailstorm.ledger.sums import Sums

HISTORY = "history.json"
_TRIES = 5
_REMEMBERED = 16  # moments
_NEAR = 100  # commits: so many are read as fast as a manifest is found


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`history.json`: how far commits are packed, and the first one that is kept."""

    packed: int = 0
    first: int = 0
    sums: dict[str, Sums] = {}  # checksums of packs and of files of ticks, by name


class Record:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: OpenPack | None = None  # the last one that was read: whoever reads old commits reads several
        # What was live at commits that were asked for, each with the pack that it was in: as long as the commit is
        # where it was, it is what it was.
        self._known: dict[tuple[int, Pack | None], Live] = {}

    def history(self) -> History:
        data = self._store.get(HISTORY)
        return History() if data is None else unsealed(data, History, HISTORY)

    def newest(self) -> Live:
        """What is live at the newest commit that can be seen."""
        live = Live()
        for _ in range(_TRIES):
            listing = list_commits(self._store)
            try:
                live = self._base(listing, None)
            except FileNotFoundError:
                continue
            while (commit := self._loose(live.commit + 1)) is not None:
                live = live.after(commit)
            if not listing.loose or listing.loose[-1] <= live.commit:
                return self._remembered(live, None)
        raise missing_file(commit_name(live.commit + 1))

    def newer(self, live: Live) -> Live:
        """What is live now, where `live` was a moment ago. For those who ask all the time: reads what came since."""
        if self.history().packed > live.commit:
            return self.newest()
        while (commit := self._loose(live.commit + 1)) is not None:
            live = live.after(commit)
        return live

    def at(self, number: int) -> Live:
        """What was live at a commit, which must be kept (0 is before the first)."""
        if number == 0:
            return Live()
        for _ in range(_TRIES):
            listing = list_commits(self._store)
            pack = listing.pack_of(number)
            if pack is None and number not in listing.loose:
                raise self._not_there(number, listing)
            if (known := self._known.get((number, pack))) is not None:
                return known
            try:
                if pack is not None:
                    found = self._pack(pack).live_at(number)
                    if found is None:
                        raise self._not_there(number, listing)
                    return self._remembered(found, pack)
                live = self._base(listing, number)
            except FileNotFoundError:
                continue  # packed, or merged, since we looked
            while live.commit < number and (commit := self._loose(live.commit + 1)) is not None:
                live = live.after(commit)
            if live.commit == number:
                return self._remembered(live, None)
        raise missing_file(commit_name(number))

    def before(self, commit: Commit) -> Live:
        """What was live before a kept commit. The first pack of a ledger that came from an export begins with it."""
        number = commit.covers_from - 1
        for _ in range(_TRIES):
            packs = list_commits(self._store).packs
            try:
                base = self._pack(packs[0]).base() if packs else Live()
            except FileNotFoundError:
                continue  # merged since we looked
            return base if base.commit == number else self.at(number)
        raise missing_file(commit_name(number))

    def read(self, number: int) -> Commit | None:
        """A commit; None when there is none of this number, or it is not kept."""
        for _ in range(_TRIES):
            if number > self.history().packed:
                commit = self._loose(number)
                if commit is not None or number > self.history().packed:
                    return commit
            pack = list_commits(self._store).pack_of(number)
            if pack is None:
                return None
            try:
                return next((one for one in self._pack(pack).commits(number - 1) if one.commit == number), None)
            except FileNotFoundError:
                continue
        raise missing_file(commit_name(number))

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """The kept commits after this one, in order. Those that come meanwhile are among them."""
        while True:
            before = after
            listing = list_commits(self._store)
            for pack in listing.packs:
                if pack.last > after:
                    try:
                        found = list(self._pack(pack).commits(after))
                    except FileNotFoundError:
                        break
                    yield from found
                    after = pack.last
            else:
                while after >= listing.packed and (commit := self._loose(after + 1)) is not None:
                    yield commit
                    after = commit.commit
                if after == before or self.history().packed <= after:
                    return

    def marks(self) -> Iterator[Mark]:
        """Where the kept commits are, newest first."""
        before = None
        for _ in range(_TRIES):
            listing = list_commits(self._store)
            try:
                for number in reversed(listing.loose):
                    if before is None or number < before:
                        data = self._store.get(commit_name(number))
                        if data is None:
                            raise FileNotFoundError(commit_name(number))  # packed since we looked
                        yield decode(data, Mark, commit_name(number))
                        before = number
                for pack in reversed(listing.packs):
                    for mark in reversed(self._pack(pack).marks() if before is None or pack.first < before else []):
                        if before is None or mark.commit < before:
                            yield mark
                            before = mark.commit
            except FileNotFoundError:
                continue
            return

    def _loose(self, number: int) -> Commit | None:
        data = self._store.get(commit_name(number))
        return None if data is None else decode(data, Commit, commit_name(number))

    def _base(self, listing: Listing, number: int | None) -> Live:
        """The newest moment at or before a commit (None: the newest) that is known, or in a file as a whole."""
        newest = listing.loose[-1] if listing.loose else listing.packed
        until = newest if number is None else number
        known = [
            live
            for (commit, pack), live in list(self._known.items())
            if pack is None and until - _NEAR < commit <= until and commit in listing.loose
        ]
        if known:
            return max(known, key=lambda live: live.commit)
        names = self._store.list("manifests")
        if number is not None:
            names = [name for name in names if int(name.partition(".")[0]) <= number]
        while names and int(names[-1].partition(".")[0]) >= listing.packed:
            name = f"manifests/{names.pop()}"
            data = self._store.get(name)
            if data is not None:
                return decode(data, Live, name)
        if not listing.packs:
            return Live()
        pack = listing.packs[-1]
        found = self._known.get((pack.last, pack)) or self._pack(pack).live_at(pack.last)
        assert found is not None, "a pack keeps its last commit"
        return self._remembered(found, pack)

    def _remembered(self, live: Live, pack: Pack | None) -> Live:
        self._known.pop((live.commit, pack), None)
        self._known[live.commit, pack] = live  # as the newest; the oldest goes
        for oldest in list(self._known)[:-_REMEMBERED]:
            self._known.pop(oldest, None)
        return live

    def _pack(self, pack: Pack) -> OpenPack:
        found = self._open
        if found is None or found.pack != pack:
            found = self._open = OpenPack(self._store, pack, self.history().sums.get(pack.name))
        return found

    def _not_there(self, number: int, listing: Listing) -> LedgerError:
        newest = self.newest().commit
        if not 0 < number <= newest:
            return LedgerError(
                7, f"there is no commit {number}", hint=f"The newest is {newest}. See: hailstorm commits TARGET"
            )
        return LedgerError(
            32,
            f"commit {number} is not kept any more",
            hint=f"The nearest that are there: {' and '.join(self._nearest(number, listing))}.\n"
            "What is kept, and for how long, is the setting retention. See: hailstorm commits TARGET",
        )

    def _nearest(self, number: int, listing: Listing) -> list[str]:
        before, after = None, None
        for pack in listing.packs:
            for one in self._pack(pack).times():
                before = one if one[0] < number else before
                after = one if one[0] > number and after is None else after
        found = [_shown(*one) for one in (before, after) if one is not None]
        return found if after is not None or not listing.loose else [*found, str(listing.loose[0])]


def _shown(number: int, micros: int) -> str:
    return f"{number} ({datetime.fromtimestamp(micros / 1_000_000, UTC):%Y-%m-%d %H:%M:%S})"
