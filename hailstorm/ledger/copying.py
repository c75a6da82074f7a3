"""Copying a ledger to another store, also while a run goes on. `hailstorm copy` is the caller.

The copy is the ledger as it was at one commit, with all commits before that are kept, and has its id. Meanwhile nobody
cleans up in the original (we have the turn to), so no file that a kept commit names goes away. Files come first, then
the commits that name them, in order: whatever a crash cuts off is a whole ledger at an earlier commit, or none yet.
Copying again goes on from there: what is there already is left alone, unless keys were erased since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from hailstorm.errors import LedgerError
from hailstorm.ledger.commit import stamp_of
from hailstorm.ledger.cursors import Cursors, SinkRecord
from hailstorm.ledger.lease import Lease, cleaning_up_alone
from hailstorm.ledger.ledger import ERASED, Ledger
from hailstorm.ledger.letters import REJECTED
from hailstorm.ledger.live import Live
from hailstorm.ledger.packs import FOLDER as COMMITS
from hailstorm.ledger.pins import SNAPSHOTS, Snapshot
from hailstorm.ledger.record import HISTORY
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import Store, StoredFile, missing_file

DESCRIPTION = "hailstorm.json"
_UNFINISHED, _FINISHED = "copying.json", "copied.json"
_AT_ONCE = 8
_ROWS = ("state", "outbox", "errors", REJECTED)

Tell = Callable[[int, int], None]  # bytes that were copied, of so many


@dataclass(frozen=True)
class Copied:
    commit: int
    files: int  # that were not there yet
    bytes: int


def copy_ledger(source: Ledger, to: str, tell: Tell = lambda done, total: None) -> Copied:
    """Make, or go on with, a copy of a ledger at another address. Raises when something else is there."""
    target = open_store(to)
    _check_target(source, target, to)
    target.put(_UNFINISHED, source.id.encode())
    with cleaning_up_alone(source.store), Lease(target).held():
        live = source.newest()
        files = [(file, name) for file in source.store.files("") if (name := _kind(file.name, live)) is not None]
        rows = [file for file, kind in files if kind == "rows"]
        commits = sorted((file for file, kind in files if kind == "commits"), key=lambda file: _order(file.name))
        total = sum(file.bytes for file, _ in files)
        erased = _erasures(source.store)
        copier = _Copier(source.store, target, total, tell, same_erased=erased == _erasures(target))
        copier.copy_all(rows)
        for file in commits:  # one after another: a commit is there only when all before it are
            copier.copy(file)
        _copy_cursors(source, target, live)
        _copy_snapshots(source.store, target, live)
        for name, data in erased.items():  # after the files that they are about: until then, none of those is trusted
            target.put(name, data)
        if target.get(DESCRIPTION) is None:
            target.put(DESCRIPTION, _get(source.store, DESCRIPTION))
        found = Ledger(to).newest()
        if found != live:
            what = f"the copy at '{to}' is not as the ledger was at commit {live.commit}"
            raise LedgerError(38, what, hint="Copy it to another place.")
        target.put(_FINISHED, msgspec.json.encode(_mark(source, live.commit)))
        target.delete(_UNFINISHED)
    return Copied(live.commit, copier.files, copier.bytes)


def _check_target(source: Ledger, target: Store, to: str) -> None:
    """It is empty, or an earlier copy that has not gone its own way since."""
    if target.address == source.store.address:
        raise LedgerError(37, f"'{to}' is the ledger itself", hint="Name another place to copy it to.")
    if target.exists(DESCRIPTION):
        if not _is_earlier(Ledger(to), source, target):
            raise LedgerError(
                37,
                f"there is another ledger at '{to}', or a copy that has gone its own way",
                hint="Nothing was changed there. Name another place, or remove that one first.",
            )
    elif target.get(_UNFINISHED) not in (None, source.id.encode()) or (
        not target.exists(_UNFINISHED) and target.list("")
    ):
        raise LedgerError(
            37, f"'{to}' has files but is not a copy of this ledger", hint="Name an empty or new place to copy to."
        )


def _is_earlier(copy: Ledger, source: Ledger, target: Store) -> bool:
    """Whether a copy holds nothing that the ledger does not have, too."""
    newest = copy.newest().commit
    if copy.id != source.id or newest > source.newest().commit:
        return False
    if not set(target.list(ERASED)) <= set(source.store.list(ERASED)):
        return False  # the ledger would bring back what was erased in the copy
    mark = _mark(copy, newest)
    if source.read_commit(newest) is not None or not newest:
        return mark == _mark(source, newest)
    # The ledger does not keep that commit any more. Then the copy itself says where copying ended, or that it did not.
    data = target.get(_FINISHED)
    return target.exists(_UNFINISHED) or (data is not None and msgspec.json.decode(data) == mark)


def _mark(ledger: Ledger, number: int) -> dict[str, object]:
    commit = ledger.read_commit(number)
    return {"commit": number} | ({} if commit is None else {"epoch": commit.epoch, "nonce": commit.nonce})


def _kind(name: str, live: Live) -> str | None:
    """What a file is to a copy at this commit: rows, a part of the record of commits, or (None) nothing."""
    folder, _, rest = name.partition("/")
    stamp = stamp_of(name)
    if folder in _ROWS:
        number = int(rest.rpartition("/")[2][:20]) if stamp is None and folder == REJECTED else None
        commit = number if stamp is None else stamp.commit
        return "rows" if commit is not None and commit <= live.commit else None
    if folder in (COMMITS, "manifests"):
        return "commits" if int(rest[:20]) <= live.commit else None
    return "commits" if name == HISTORY else None


def _order(name: str) -> tuple[int, str]:
    """Packs before the commits after them; what says where they are, last."""
    kinds = (".ticks", ".pack", f"{COMMITS}/", "manifests/", "")
    return next(place for place, kind in enumerate(kinds) if name.endswith(kind) or name.startswith(kind)), name


def _copy_cursors(source: Ledger, target: Store, live: Live) -> None:
    """A sink that is past the commit has got all that the copy knows of."""
    for sink in source.store.list("cursors"):
        record = source.cursors.load(sink)
        if record != SinkRecord():
            until = min(record.commit, live.commit)
            Cursors(target).store(sink, msgspec.structs.replace(record, commit=until))


def _copy_snapshots(source: Store, target: Store, live: Live) -> None:
    for name in source.list(SNAPSHOTS):
        data = source.get(f"{SNAPSHOTS}/{name}")
        if data is not None and msgspec.json.decode(data, type=Snapshot).commit <= live.commit:
            target.put(f"{SNAPSHOTS}/{name}", data)


def _erasures(store: Store) -> dict[str, bytes]:
    return {name: _get(store, name) for name in (f"{ERASED}/{one}" for one in store.list(ERASED))}


class _Copier:
    """`same_erased`: both have lost the same keys, so a file that is there is the same one."""

    def __init__(self, source: Store, target: Store, total: int, tell: Tell, same_erased: bool) -> None:
        self._source, self._target, self._total, self._tell = source, target, total, tell
        self._same_erased = same_erased
        self._lock = threading.Lock()
        self._done = self.files = self.bytes = 0

    def copy_all(self, files: Iterable[StoredFile]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(self.copy, files):
                pass

    def copy(self, file: StoredFile) -> None:
        # Only this one file is ever replaced, and those that lose keys: all others are the same once they are there.
        is_lasting = file.name != HISTORY and self._same_erased
        is_there = is_lasting and self._target.size(file.name) == file.bytes
        if not is_there:
            self._target.put(file.name, _get(self._source, file.name))
        with self._lock:
            self._done += file.bytes
            self.files += not is_there
            self.bytes += 0 if is_there else file.bytes
            self._tell(self._done, self._total)


def _get(store: Store, name: str) -> bytes:
    data = store.get(name)
    if data is None:
        raise missing_file(name)
    return data
