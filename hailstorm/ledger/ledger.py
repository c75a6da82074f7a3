"""The ledger: opening one, and the one atomic step that moves it on.

The negotiator is the only writer of commits; `reader.py` is the read side that everybody else uses, also while a
run goes on. `docs/ledger-format.md` describes every file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from hailstorm.errors import FencedError, LedgerError
from hailstorm.faults import fault
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.commit import FORMAT, Commit, Stamp, commit_name, decode, encode
from hailstorm.ledger.cursors import Cursors
from hailstorm.ledger.letters import LETTER, REJECTED, encode_rejected
from hailstorm.ledger.live import Live
from hailstorm.ledger.packs import Mark
from hailstorm.ledger.pins import pinned
from hailstorm.ledger.record import History, Record
from hailstorm.ledger.stores import cache_folder, is_folder, open_store, remove_older_copies
from hailstorm.ledger.sums import Reading, opened

MANIFEST_EVERY = 100
ERASED = "erased"  # a file per erasure (history/erase.py): whoever takes the files elsewhere takes these along


class Origin(msgspec.Struct, frozen=True):
    """Of a ledger that came from an export: the snapshot that it was."""

    ledger: str
    commit: int
    snapshot: str


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """`hailstorm.json`: what this folder is."""

    format: int = FORMAT
    id: str
    created: str
    buckets: int = 256
    host: str
    origin: Origin | None = None
    sealed: bool = False  # every commit and manifest of it has a checksum


class Ledger:
    """A ledger, with this machine's cache of it. `head` is what is live now, as far as this process knows.

    `address` is a folder, or that of an object store. `id` is the ledger's own, for ever: a copy has it, too.
    """

    def __init__(self, address: str | Path, create: bool = False) -> None:
        self.address = str(address)
        self.store = open_store(address)
        self.cursors = Cursors(self.store)
        self._record = Record(self.store)
        self.id = self._open(create)
        self.forget_copies()
        self.head = self.newest()
        self.epoch = self.head.epoch + 1  # of the commits that this process makes, if it makes any

    @property
    def root(self) -> Path:
        """The folder of a ledger that is in one."""
        assert is_folder(self.address), self.address
        return Path(self.address)

    def forget_copies(self) -> None:
        """Begin with a cache that knows of all erasures: copies from before one of them are not believed any more."""
        marks = sorted((file.name, file.bytes, file.modified) for file in self.store.files(ERASED))
        erased = f".{hashlib.sha256(repr(marks).encode()).hexdigest()[:8]}" if marks else ""
        self.copies = self.id + erased  # what tells them from those of others, on any machine
        remove_older_copies(self.address, self.copies)
        self.cache = RunCache(self.store, cache_folder(self.address, self.copies), self.copies)

    @property
    def stamp(self) -> Stamp:
        """For files that the next commit, or a later one, will name."""
        return Stamp(self.head.commit + 1, self.epoch)

    def _open(self, create: bool) -> str:
        """The id of the ledger, which is made when it may be and there is none."""
        if is_folder(self.address) and self.root.exists() and not self.root.is_dir():
            raise LedgerError(
                3,
                f"the ledger '{self.address}' is a file",
                hint="A ledger is a folder: name another path with --ledger.",
            )
        try:
            described = self.store.get("hailstorm.json")
            if described is None:
                if not create:
                    raise LedgerError(
                        4,
                        f"there is no ledger at '{self.address}'",
                        hint="A ledger is made by the first run: hailstorm run APP --ledger PATH",
                    )
                # A start that was killed here may have left a temporary file, whose name begins with a dot.
                if self.store.list(""):
                    raise LedgerError(
                        5,
                        f"'{self.address}' has files but is not a ledger",
                        hint="Name an empty or new folder with --ledger.",
                    )
                self.store.put_if_absent("hailstorm.json", encode(new_description()))
                described = self.store.get("hailstorm.json")
        except OSError as error:
            raise LedgerError(
                6,
                f"the ledger '{self.address}' cannot be opened: {error.strerror}",
                hint="Check the path and its rights, or name another with --ledger.",
            ) from error
        assert described is not None
        return decode(described, Description, "hailstorm.json").id

    def newest(self) -> Live:
        """What is live at the newest commit that can be seen."""
        return self._record.newest()

    def catch_up(self) -> Live:
        """What others have committed since this ledger was opened, or caught up, is in its head from now on."""
        self.head = self._record.newer(self.head)
        self.epoch = self.head.epoch + 1
        return self.head

    def at(self, number: int) -> Live:
        """What was live at a commit, which must exist and be kept (0 is before the first)."""
        return self._record.at(number)

    def before(self, commit: Commit) -> Live:
        """What was live before a kept commit. Before the first one of an import, its files may not be there."""
        return self._record.before(commit)

    @contextlib.contextmanager
    def pinned(self, number: int) -> Iterator[None]:
        """Hold a commit and its files meanwhile, also when retention lets it go. Raises when it is gone already."""
        with pinned(self.store, number):
            self.at(number)
            yield

    def history(self) -> History:
        """How far commits are packed, and the first that is kept."""
        return self._record.history()

    def read_commit(self, number: int) -> Commit | None:
        """None when there is no such commit, or it is not kept."""
        return self._record.read(number)

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """The kept commits after this one, in order. What was thinned out is in the next one that is kept."""
        return self._record.commits(after)

    def marks(self) -> Iterator[Mark]:
        """Where the kept commits are, newest first."""
        return self._record.marks()

    def commit(self, commit: Commit, unsynced: Sequence[str] = ()) -> Live:
        """Make it happen: atomically, for all steps, outboxes and dead letters together, or not at all.

        `unsynced` are those of its files that a power cut might still take."""
        for step, change in commit.state.items():
            # Merged runs that replace what is not live any more would bring back rows that were deleted since.
            live = {run.id for run in self.head.runs.get(step, ())}
            assert live.issuperset(change.removed), (commit.commit, step)
        fault("before-commit")
        try:
            made = self.store.put_if_absent(commit_name(commit.commit), encode(commit), unsynced)
        except OSError as error:
            raise cannot_write(error) from error
        if made and self._record.history().packed >= commit.commit:
            # Others have made it long ago, and it is in a pack by now: that is why its place was free.
            self.store.delete(commit_name(commit.commit))
            made = False
        theirs = None if made else self.read_commit(commit.commit)
        # Ours all the same when the answer to an earlier try was lost on its way.
        if not made and (theirs is None or (theirs.epoch, theirs.nonce) != (commit.epoch, commit.nonce)):
            raise FencedError(
                8,
                f"another driver has made commit {commit.commit}"
                + (f" (epoch {theirs.epoch}, ours {commit.epoch})" if theirs else ""),
                hint="This run stops, and nothing is lost: the other one goes on. Stop it first to run here.",
            )
        fault("after-commit")
        self.head = self.head.after(commit)
        return self.head

    def write_manifest(self, live: Live) -> None:
        fault("during-manifest")
        self.store.put(f"manifests/{live.commit:020d}.json", encode(live))

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        """Dead letters of a sink: rows of a commit that its target refused, each with the reason.

        Not part of a commit: delivery writes them, after the commit that they come from, and the same again when that
        commit is delivered again.
        """
        self.store.put(_rejected_name(sink, commit), encode_rejected(sink, letters, rows))

    def forget_rejected(self, sink: str, commit: int) -> None:
        self.store.delete(_rejected_name(sink, commit))

    def rejected(self, live: Live | None = None) -> Iterator[pa.Table]:
        """The dead letters of all sinks that were not retried, one table per sink and commit."""
        live = live or self.newest()
        for sink in self.store.list(REJECTED):
            for _, table in self.rejected_by(sink, live):
                yield table.select(LETTER.names)

    def rejected_by(self, sink: str, live: Live) -> Iterator[tuple[int, pa.Table]]:
        """The dead letters of one sink that were not retried, by commit, with the rows themselves."""
        for name in self.store.list(f"{REJECTED}/{sink}"):
            commit = int(name.partition(".")[0])
            name = f"{REJECTED}/{sink}/{name}"
            data = self.store.get(name) if commit > live.retried.get(sink, 0) else None
            if data is not None:
                with Reading(name):
                    table = opened(pa.BufferReader(data), name, None).read()
                yield commit, table


def _rejected_name(sink: str, commit: int) -> str:
    return f"{REJECTED}/{sink}/{commit:020d}.parquet"


def cannot_write(error: OSError) -> LedgerError:
    return LedgerError(
        12,
        f"the ledger cannot be written: {error.strerror or error}",
        hint="What was committed is safe, and the rest is done again: make room, or give permission, and run again.",
    )


def new_description(origin: Origin | None = None) -> Description:
    """Of a new ledger, with an id of its own."""
    return Description(
        id=str(uuid.uuid4()),
        created=datetime.now(UTC).isoformat(),
        host=os.uname().nodename,
        origin=origin,
        sealed=True,
    )


def next_commit(head: Live, reason: str, epoch: int, now: datetime, **fields: Any) -> Commit:
    """The commit after `head`; what is not said stays as it is at the head."""
    carried: dict[str, Any] = {
        "start": head.clock,
        "end": head.clock,
        "watermark": head.watermark,
        "watermarks": head.watermarks,
        "event_times": head.event_times,
        "reached": head.reached,
        "recent": head.recent,
    }
    return Commit(
        commit=head.commit + 1,
        epoch=epoch,
        reason=reason,
        at=now.isoformat(),
        now=int(now.timestamp() * 1_000_000),
        **{**carried, **fields},
    )
