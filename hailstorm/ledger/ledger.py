"""The ledger: opening one, and the one atomic step that moves it on.

The negotiator is the only writer of commits; `reader.py` is the read side that everybody else uses, also while a
run goes on. `docs/ledger-format.md` describes every file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.errors import FencedError, LedgerError
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.commit import FORMAT, Commit, commit_name, decode, encode, refuse_newer_format
from hailstorm.ledger.faults import fault
from hailstorm.ledger.letters import LETTER, REJECTED, encode_rejected
from hailstorm.ledger.live import Live
from hailstorm.ledger.store import LocalStore

MANIFEST_EVERY = 100


class Ledger:
    """A ledger on this machine, with its cache. `head` is what is live now, as far as this process knows."""

    def __init__(self, root: Path, create: bool = False) -> None:
        self.root = root
        self.store = LocalStore(root)
        self.cache = RunCache(self.store, root / ".cache")
        self._open(create)
        self.head = self.newest()

    def _open(self, create: bool) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise LedgerError(
                3, f"the ledger '{self.root}' is a file", hint="A ledger is a folder: name another path with --ledger."
            )
        try:
            described = self.store.get("hailstorm.json")
            if described is None:
                if not create:
                    raise LedgerError(
                        4,
                        f"there is no ledger at '{self.root}'",
                        hint="A ledger is made by the first run: hailstorm run APP --ledger PATH",
                    )
                # A start that was killed here may have left a temporary file, whose name begins with a dot.
                if self.root.is_dir() and any(not path.name.startswith(".") for path in self.root.iterdir()):
                    raise LedgerError(
                        5,
                        f"'{self.root}' has files but is not a ledger",
                        hint="Name an empty or new folder with --ledger.",
                    )
                self.store.put_if_absent(
                    "hailstorm.json", msgspec.json.format(msgspec.json.encode(_description()), indent=1)
                )
                described = self.store.get("hailstorm.json")
        except OSError as error:
            raise LedgerError(
                6,
                f"the ledger '{self.root}' cannot be opened: {error.strerror}",
                hint="Check the path and its rights, or name another with --ledger.",
            ) from error
        assert described is not None
        refuse_newer_format(described, "hailstorm.json")

    def newest(self) -> Live:
        """What is live at the newest commit that can be seen."""
        live = self._manifest_at(None)
        while (commit := self.read_commit(live.commit + 1)) is not None:
            live = live.after(commit)
        return live

    def at(self, number: int) -> Live:
        """What was live at a commit, which must exist (0 is before the first)."""
        if number < 0 or (number > 0 and not self.store.exists(commit_name(number))):
            raise LedgerError(
                7,
                f"there is no commit {number}",
                hint=f"The newest is {self.newest().commit}. See: hailstorm commits TARGET",
            )
        live = self._manifest_at(number)
        while live.commit < number:
            commit = self.read_commit(live.commit + 1)
            assert commit is not None, live.commit
            live = live.after(commit)
        return live

    def _manifest_at(self, number: int | None) -> Live:
        names = self.store.list("manifests")
        if number is not None:
            names = [name for name in names if int(name.partition(".")[0]) <= number]
        while names:
            name = f"manifests/{names.pop()}"
            data = self.store.get(name)
            if data is not None:
                return decode(data, Live, name)
        return Live()

    def read_commit(self, number: int) -> Commit | None:
        data = self.store.get(commit_name(number))
        return None if data is None else decode(data, Commit, commit_name(number))

    def commit(self, commit: Commit) -> Live:
        """Make it happen: atomically, for all steps, outboxes and dead letters together, or not at all."""
        for step, change in commit.state.items():
            # Merged runs that replace what is not live any more would bring back rows that were deleted since.
            live = {run.id for run in self.head.runs.get(step, ())}
            assert live.issuperset(change.removed), (commit.commit, step)
        fault("before-commit")
        try:
            made = self.store.put_if_absent(commit_name(commit.commit), encode(commit))
        except OSError as error:
            raise cannot_write(error) from error
        if not made:
            theirs = self.read_commit(commit.commit)
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

    def load_cursor(self, sink: str) -> int:
        data = self.store.get(f"cursors/{sink}.json")
        return 0 if data is None else int(msgspec.json.decode(data)["commit"])

    def store_cursor(self, sink: str, commit: int) -> None:
        self.store.put(f"cursors/{sink}.json", msgspec.json.encode({"sink": sink, "commit": commit}))

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
            data = self.store.get(f"{REJECTED}/{sink}/{name}") if commit > live.retried.get(sink, 0) else None
            if data is not None:
                yield commit, pq.read_table(pa.BufferReader(data))


def _rejected_name(sink: str, commit: int) -> str:
    return f"{REJECTED}/{sink}/{commit:020d}.parquet"


def cannot_write(error: OSError) -> LedgerError:
    return LedgerError(
        12,
        f"the ledger cannot be written: {error.strerror or error}",
        hint="What was committed is safe, and the rest is done again: make room, or mend the rights, and run again.",
    )


def _description() -> dict[str, Any]:
    return {"format": FORMAT, "created": datetime.now(UTC).isoformat(), "buckets": 256, "host": os.uname().nodename}


def next_commit(head: Live, reason: str, epoch: int, now: datetime, **fields: Any) -> Commit:
    """The commit after `head`; what is not said stays as it is at the head."""
    carried: dict[str, Any] = {
        "start": head.clock,
        "end": head.clock,
        "watermark": head.watermark,
        "event_times": head.event_times,
    }
    return Commit(
        commit=head.commit + 1,
        epoch=epoch,
        reason=reason,
        at=now.isoformat(),
        now=int(now.timestamp() * 1_000_000),
        **{**carried, **fields},
    )
