"""Commits: the atomic result of an advance, and how they read as JSON.

`docs/ledger-format.md` is the document of these fields. Values only; `ledger.py` reads and writes them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hailstorm.errors import LedgerError

FORMAT = 1
GONE = "gone"

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One sorted file of state rows: `state/<step>/<id>.parquet`.

    `seq` is the commit of its newest rows: of two runs that hold a key, the one with the higher seq is right.
    Runs of one seq hold different keys.
    """

    id: str
    seq: int
    rows: int
    bytes: int
    first: int  # lowest and highest _hash
    last: int


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of outbox rows or dead letters, by its path within the ledger."""

    path: str
    rows: int
    bytes: int


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    added: tuple[Run, ...] = ()
    removed: tuple[str, ...] = ()


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs to know of a stateful step: how to show its rows, without the app."""

    kind: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    fingerprint: str


class Hole(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of a partition that were not read, and why: `gone` (retention took them), `dropped` or `sampled`."""

    start: int
    end: int
    reason: str = GONE


Holes = dict[str, dict[str, list[Hole]]]  # spout -> partition -> in order


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    format: int = FORMAT
    commit: int
    epoch: int
    reason: str
    at: str
    now: int
    start: dict[str, dict[str, int]] = msgspec.field(name="from")
    end: dict[str, dict[str, int]] = msgspec.field(name="to")
    rows: int = 0
    ms: float = 0.0
    watermark: str | None = None
    event_times: dict[str, dict[str, tuple[int, int]]] = {}  # highest, and when last seen (µs)
    late: int = 0
    errors: int = 0
    state: dict[str, StateChange] = {}
    outbox: dict[str, tuple[DataFile, ...]] = {}
    dead_letters: tuple[DataFile, ...] = ()
    retried: tuple[str, ...] = ()
    retried_rejects: dict[str, int] = {}  # sink -> the last commit whose rejected rows are in this outbox again
    steps: dict[str, StepShape] | None = None
    fingerprints: dict[str, str] | None = None
    since: dict[str, dict[str, dict[str, int]]] | None = None
    rosters: dict[str, dict[str, str]] | None = None
    holes: Holes = {}
    timings: dict[str, float] = {}

    @property
    def skipped(self) -> int:
        """How many offsets were left out on overload."""
        return count_skipped(self.holes)


def skipped_in(holes: Holes) -> dict[str, dict[str, int]]:
    """spout -> partition -> how many offsets were left out although they could have been read."""
    found: dict[str, dict[str, int]] = {}
    for spout, row in holes.items():
        for partition, ranges in row.items():
            count = sum(hole.end - hole.start for hole in ranges if hole.reason != GONE)
            if count:
                found.setdefault(spout, {})[partition] = count
    return found


def count_skipped(holes: Holes) -> int:
    return sum(sum(row.values()) for row in skipped_in(holes).values())


def commit_name(number: int) -> str:
    return f"commits/{number:020d}.json"


def encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def decode(data: bytes, kind: type[_Struct], name: str) -> _Struct:
    """A commit or a manifest from its JSON. `name` is the file's, for when it is not what it should be."""
    refuse_newer_format(data, name)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise _damaged(name, error) from error


def refuse_newer_format(data: bytes, name: str) -> None:
    """A ledger that a newer Hailstorm wrote is refused before anything of it is understood wrongly."""
    try:
        head = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(name, error) from error
    found = head.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise LedgerError(
            2,
            f"this ledger has format {found}; this Hailstorm reads up to format {FORMAT}",
            hint="Nothing was changed. Install a newer version: pip install --upgrade hailstorm",
        )


def _damaged(name: str, error: Exception) -> LedgerError:
    return LedgerError(
        11,
        f"{name} of the ledger is damaged: {error}",
        hint="Hailstorm writes such files as a whole and never changes them: bring it back from a backup.",
    )
