"""Commits: the atomic result of an advance, and how they read as JSON.

`docs/ledger-format.md` is the document of these fields. Values only; `ledger.py` reads and writes them.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from hailstorm.errors import LedgerError
from hailstorm.ledger.sums import Sums, broken_seal, seal

FORMAT = 2
GONE = "gone"
# Reasons of commits that change states in another way than by reading records: running ticks again gives another state.
OTHERWISE = ("rewind", "backfill", "retry", "erase")
JOINED, RESENT = "joined", "resent"  # why a sink gets its whole table: it lacked it, or a person asked for it
_STAMPED = re.compile(r"(\d{20})-(\d{6,})-[0-9a-f]{12}\b")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


@dataclass(frozen=True)
class Stamp:
    """What the names of new files begin with: the commit that will name them, and the epoch of who writes them.

    So a file that no commit names can be told from one in flight. A merged run is named by some later commit.
    """

    commit: int
    epoch: int

    def new_name(self) -> str:
        """A name that nobody else has."""
        return f"{self.commit:020d}-{self.epoch:06d}-{uuid.uuid4().hex[:12]}"


STAMPED_LENGTH = 40  # of every new name


def stamp_of(name: str) -> Stamp | None:
    """The stamp of a file, by its name with or without folders; None for a file that has none."""
    found = _STAMPED.match(name.rpartition("/")[2])
    return None if found is None else Stamp(int(found[1]), int(found[2]))


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
    sums: Sums | None = None  # checksums (sums.py); None: an older Hailstorm wrote it


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of outbox rows or dead letters, by its path within the ledger."""

    path: str
    rows: int
    bytes: int
    sums: Sums | None = None


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    added: tuple[Run, ...] = ()
    removed: tuple[str, ...] = ()


class PaneMonoid(msgspec.Struct, frozen=True, kw_only=True):
    """A native monoid of a fold over panes: as it describes itself, and the types of its inputs."""

    monoid: dict[str, Any]
    types: tuple[str, ...]


class PanesShape(msgspec.Struct, frozen=True, kw_only=True):
    """Of sliding windows that share panes: how open windows are made of `<step>.panes`. Durations are microseconds."""

    size: int
    every: int
    offset: int
    zone: str
    monoids: dict[str, PaneMonoid]


class Former(msgspec.Struct, frozen=True, array_like=True):
    """A name that a step or a sink had, and the last commit at which it had it."""

    name: str
    until: int


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs to know of a stateful step: how to show its rows, without the app."""

    kind: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    fingerprint: str = ""
    key_types: tuple[str, ...] = ()  # as Spark resolves them: rows of a key of another type would be other keys
    value_types: tuple[str, ...] = ()  # of the fields of a process's state; of a fold, its monoids
    tables: dict[str, tuple[str, ...]] = {}  # its tables of state, by name, with the columns that make a row one row
    waits: str = ""  # rows in which this column is null are kept and not shown
    order: tuple[str, ...] = ()  # in which its rows are shown
    hashed: tuple[str, ...] | None = None  # the columns that `_hash` is of; None: all of the key
    agendas: dict[str, str] = {}  # those of its tables that are sorted by time, and by which clock things are due
    panes: PanesShape | None = None  # of windows that are made of panes when they end
    formerly: tuple[Former, ...] = ()  # the names that it had before it was renamed, oldest first


class SinkShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a sink of the topology: from which commit on its outbox holds all that its step gave.

    `since` is 0 when that is everything from the beginning. `fingerprint` is of the steps that a table's rows go
    through on their way to the sink: when it changes, the sink must get the whole table once more.
    """

    since: int
    is_table: bool
    fingerprint: str
    formerly: tuple[Former, ...] = ()  # the names that it had; its target knows it by the first of them


class Hole(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of a partition that were not read, and why: `gone` (retention took them), `dropped` or `sampled`."""

    start: int
    end: int
    reason: str = GONE


Holes = dict[str, dict[str, list[Hole]]]  # spout -> partition -> in order


class Discarded(msgspec.Struct, frozen=True):
    """Dead letters that left the list because somebody said so, and why."""

    letters: int
    reason: str


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewind puts in place of what commits add up to; all that it says otherwise is in the commit's own fields.

    `commit` is the rewind itself: a squashed commit that has one in it is named for a later one.
    """

    commit: int
    to: int  # the commit that everything is as of
    rows: int
    errors: int
    late: int
    holes: Holes
    skipped: dict[str, dict[str, int]]


# step -> spout -> partition -> [start, end) of the offsets whose records were given to the step, in order and apart.
Spans = tuple[tuple[int, int], ...]
Covered = dict[str, dict[str, dict[str, Spans]]]


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    format: int = FORMAT
    commit: int
    first: int = 0  # of a squashed commit: the first one that is in it
    epoch: int
    nonce: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)  # tells our commit from another driver's
    reason: str
    at: str
    now: int
    start: dict[str, dict[str, int]] = msgspec.field(name="from")
    end: dict[str, dict[str, int]] = msgspec.field(name="to")
    rows: int = 0
    ms: float = 0.0
    watermark: str | None = None
    watermarks: dict[str, tuple[int | None, int | None]] = {}  # step -> input and output watermark (µs)
    event_times: dict[str, dict[str, tuple[int, int]]] = {}  # highest, and when last seen (µs)
    reached: dict[str, int] = {}  # agenda -> the time up to which it has been handled (µs)
    late: int = 0
    errors: int = 0
    recent: tuple[tuple[int, int], ...] = ()  # rows, and bad ones among them, of the last ticks (engine/tolerance.py)
    state: dict[str, StateChange] = {}
    outbox: dict[str, tuple[DataFile, ...]] = {}
    whole: dict[str, str] = {}  # sinks whose outbox here is their whole table, and why: JOINED or RESENT
    outboxes: dict[str, int] = {}  # once outbox files are gone: the last commit that had rows for a sink
    wholes: dict[str, int] = {}  # of a squashed commit: the last one in it with the whole table for a sink
    dead_letters: tuple[DataFile, ...] = ()
    retried: tuple[str, ...] = ()
    discarded: dict[str, Discarded] = {}  # by step or sink: dead letters that somebody gave up
    retried_rejects: dict[str, int] = {}  # sink -> the last commit whose rejected rows are in this outbox again
    steps: dict[str, StepShape] | None = None
    fingerprints: dict[str, str] | None = None
    declared: dict[str, dict[str, str]] | None = None  # step -> its parts, for people: what a fingerprint is made of
    coverage: Covered | None = None  # after this commit; None: as before, and what it has read
    sinks: dict[str, SinkShape] | None = None
    rosters: dict[str, dict[str, str]] | None = None
    holes: Holes = {}
    rewound: Rewound | None = None  # of a rewind
    timings: dict[str, float] = {}

    @property
    def covers_from(self) -> int:
        """The first of the commits that this one stands for: itself, unless it is squashed."""
        return self.first or self.commit

    @property
    def changes_otherwise(self) -> str:
        """Of a commit, or of one among those that it stands for, that no rerun can go through: why not, else empty."""
        if self.rewound is not None:
            return "rewind"
        if self.reason == "evolve" and self.state:
            return "backfill"  # --recompute: the new state came with the new code
        return self.reason if self.reason in OTHERWISE else ""

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
    """As JSON, with a checksum of it."""
    return seal(msgspec.json.format(msgspec.json.encode(value), indent=1))


def decode(data: bytes, kind: type[_Struct], name: str) -> _Struct:
    """A commit, a manifest or a description from its JSON. `name` is the file, for what is said of a damaged one."""
    _refuse_other_format(data, name)
    return unsealed(data, kind, name)


def unsealed(data: bytes, kind: type[_Struct], name: str) -> _Struct:
    """Any value that `encode` has written. One without a checksum is an older Hailstorm's."""
    if broken_seal(data):
        raise damaged(name, "its content does not have its checksum")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(name, error) from error


class _Head(msgspec.Struct):
    """Of any file that has a format, that alone."""

    format: Any = None


def _refuse_other_format(data: bytes, name: str) -> None:
    """A ledger that another Hailstorm wrote is refused before anything of it is misunderstood."""
    try:
        found = msgspec.json.decode(data, type=_Head).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(name, error) from error
    if isinstance(found, int) and found < FORMAT:
        raise LedgerError(
            30,
            f"this ledger has format {found}, from an older Hailstorm; this one reads format {FORMAT}",
            hint="Nothing was changed. Start a new ledger (--ledger PATH), which reads the logs from their beginning.\n"
            "Or read this one with the version that wrote it.",
        )
    if found != FORMAT:
        raise LedgerError(
            2,
            f"this ledger has format {found}; this Hailstorm reads format {FORMAT}",
            hint="Nothing was changed. Run it with the newer version of Hailstorm that wrote it.",
        )


def damaged(name: str, error: Exception | str) -> LedgerError:
    return LedgerError(
        11,
        f"{name} of the ledger is damaged: {error}",
        hint="Hailstorm writes such files as a whole and never changes them: bring it back from a backup.",
    )
