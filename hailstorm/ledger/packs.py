"""Packs: many commits in one file, `commits/<first>-<last>-<generation>.pack`.

A pack is a Parquet file. Every row is a kept commit as JSON (`entry`); the first row of a row group also has what was
live before it (`live`), so that a moment is read from one row group. A pack stands for all commits from its first to
its last: one that has no row there is not kept any more. When packs are merged or thinned, a new one with the same or
a wider range and a higher generation takes their place; whoever finds both believes the new one.

Beside it `commits/<first>-<last>.ticks` has, for every commit of the last day, what a replay needs to cut its ticks in
the same places: clock, wall time and watermark, in columns, some bytes each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import numpy as np
import pyarrow as pa

from hailstorm.ledger.commit import Commit, Rewound, commit_name, decode, encode
from hailstorm.ledger.live import Live
from hailstorm.ledger.stores.store import Store
from hailstorm.ledger.sums import Reading, Sums, opened

FOLDER = "commits"
GROUP = 100  # commits in a row group

_LOOSE = re.compile(r"(\d{20})\.json")
_PACK = re.compile(r"(\d{20})-(\d{20})-(\d{6,})\.pack")
_TICKS = re.compile(r"(\d{20})-(\d{20})\.ticks")
_SCHEMA = pa.schema(
    {"commit": pa.int64(), "first": pa.int64(), "now": pa.int64(), "entry": pa.binary(), "live": pa.binary()}
)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Of a commit only where it is: much faster to read than all of it."""

    commit: int
    now: int
    start: dict[str, dict[str, int]] = msgspec.field(name="from")
    end: dict[str, dict[str, int]] = msgspec.field(name="to")
    rewound: Rewound | None = None


@dataclass(frozen=True, order=True)
class Pack:
    """A pack by its name."""

    first: int
    last: int
    generation: int = 1

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.first:020d}-{self.last:020d}-{self.generation:06d}.pack"

    def replaces(self, other: Pack) -> bool:
        within = self.first <= other.first and other.last <= self.last
        return within and ((self.first, self.last) != (other.first, other.last) or self.generation > other.generation)


@dataclass(frozen=True)
class Listing:
    """What is in the folder of commits: packs that count, in order, and commits after the last one."""

    packs: tuple[Pack, ...]
    loose: tuple[int, ...]
    replaced: tuple[str, ...]  # files that a pack has replaced; a crash left them
    ticks: tuple[tuple[int, int], ...]

    @property
    def packed(self) -> int:
        """The last commit that is in a pack."""
        return self.packs[-1].last if self.packs else 0

    def pack_of(self, number: int) -> Pack | None:
        return next((pack for pack in self.packs if pack.first <= number <= pack.last), None)


def list_commits(store: Store) -> Listing:
    names = store.list(FOLDER)
    packs = [Pack(int(m[1]), int(m[2]), int(m[3])) for m in map(_PACK.fullmatch, names) if m]
    # By range, the widest of equal beginnings first, and the newest of equal ranges: what is replaced comes after.
    packs.sort(key=lambda pack: (pack.first, -pack.last, -pack.generation))
    current: list[Pack] = []
    replaced = []
    for pack in packs:
        if current and current[-1].replaces(pack):
            replaced.append(pack.name)
        else:
            current.append(pack)
    packed = current[-1].last if current else 0
    loose = [int(m[1]) for m in map(_LOOSE.fullmatch, names) if m]
    return Listing(
        packs=tuple(current),
        loose=tuple(number for number in loose if number > packed),
        replaced=(*replaced, *(commit_name(number) for number in loose if number <= packed)),
        ticks=tuple((int(m[1]), int(m[2])) for m in map(_TICKS.fullmatch, names) if m),
    )


# Packs


def write_pack(store: Store, pack: Pack, base: Live, commits: Sequence[Commit]) -> bool:
    """Write these commits, the first of which follows `base`. False when somebody else has written this pack."""
    return store.put_if_absent(pack.name, pack_bytes(base, commits))


def pack_bytes(base: Live, commits: Sequence[Commit]) -> bytes:
    """The content of a pack with these commits, the first of which follows `base`."""
    bases: list[bytes | None] = []
    live = base
    for place, commit in enumerate(commits):
        bases.append(None if place % GROUP else encode(live))
        live = live.after(commit)
    table = pa.table(
        [
            [commit.commit for commit in commits],
            [commit.covers_from for commit in commits],
            [commit.now for commit in commits],
            [encode(commit) for commit in commits],
            bases,
        ],
        schema=_SCHEMA,
    )
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, sink, row_group_size=GROUP, **options)
    return bytes(sink.getvalue().to_pybytes())


class OpenPack:
    """A pack to read from. It may be deleted meanwhile: FileNotFoundError comes when it is opened, or never."""

    def __init__(self, store: Store, pack: Pack, sums: Sums | None = None) -> None:
        self.pack = pack
        with Reading(pack.name):
            self._file = opened(store.open(pack.name), pack.name, sums)

    def times(self) -> list[tuple[int, int]]:
        """(number, wall time in µs) of every kept commit."""
        with Reading(self.pack.name):
            table = self._file.read(columns=["commit", "now"])
        return list(zip(table["commit"].to_pylist(), table["now"].to_pylist(), strict=True))

    def marks(self) -> list[Mark]:
        """Where every kept commit is, in order."""
        decoder = msgspec.json.Decoder(Mark)
        with Reading(self.pack.name):
            entries = self._file.read(columns=["entry"])["entry"]
        return [decoder.decode(entry.as_py()) for entry in entries]

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """The kept commits after this one, in order."""
        for group in range(self._file.num_row_groups):
            if self._last_of(group) > after:
                rows = self._group(group, "commit", "entry")
                for number, entry in zip(rows["commit"].to_pylist(), rows["entry"].to_pylist(), strict=True):
                    if number > after:
                        yield decode(entry, Commit, self.pack.name)

    def base(self) -> Live:
        """What was live before its first commit."""
        return self._base(0)

    def live_at(self, number: int) -> Live | None:
        """What was live at a commit; None when it is not kept."""
        group = next((g for g in range(self._file.num_row_groups) if self._last_of(g) >= number), None)
        if group is None:
            return None
        rows = self._group(group, "commit", "entry")
        numbers = rows["commit"].to_pylist()
        if number not in numbers:
            return None
        live = self._base(group)
        for entry in rows["entry"].slice(0, numbers.index(number) + 1):
            live = live.after(decode(entry.as_py(), Commit, self.pack.name))
        return live

    def _base(self, group: int) -> Live:
        data = self._group(group, "live")["live"][0].as_py()
        return decode(data, Live, self.pack.name)

    def _group(self, group: int, *columns: str) -> pa.Table:
        with Reading(self.pack.name):
            return self._file.read_row_group(group, columns=list(columns))

    def _last_of(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).column(0).statistics.max)


# Ticks


def ticks_name(first: int, last: int) -> str:
    return f"{FOLDER}/{first:020d}-{last:020d}.ticks"


def ticks_table(commits: Iterable[Commit]) -> pa.Table:
    """Clock (a column per partition, `spout/partition`), `now` and `watermark` of each commit, all as integers."""
    commits = list(commits)
    clocks = sorted({(spout, p) for commit in commits for spout, row in commit.end.items() for p in row})
    columns: dict[str, pa.Array] = {
        "commit": pa.array([commit.commit for commit in commits], pa.int64()),
        "now": pa.array([commit.now for commit in commits], pa.int64()),
        "watermark": pa.array([_micros(commit.watermark) for commit in commits], pa.int64()),
    }
    for spout, partition in clocks:
        ends = [commit.end.get(spout, {}).get(partition) for commit in commits]
        columns[f"{spout}/{partition}"] = pa.array(ends, pa.int64())
    return pa.table(columns)


def write_ticks(store: Store, table: pa.Table) -> str | None:
    """The name of the file; None when there is nothing to write."""
    if not table.num_rows:
        return None
    import pyarrow.parquet as pq

    numbers = table["commit"]
    name = ticks_name(numbers[0].as_py(), numbers[-1].as_py())
    packed = dict.fromkeys(table.column_names, "DELTA_BINARY_PACKED")
    options = {"compression": "zstd", "use_dictionary": False, "column_encoding": packed, "write_page_checksum": True}
    store.write(name, lambda sink: pq.write_table(table, sink, **options))
    return name


def merged_ticks(tables: Iterable[pa.Table], since: int) -> pa.Table:
    """One table of these, in order, without what is from before a time (µs)."""
    table = pa.concat_tables(tables, promote_options="default")
    keep = np.asarray(table["now"]) >= since
    return table if keep.all() else table.filter(pa.array(keep))


def _micros(iso: str | None) -> int | None:
    return None if iso is None else round(datetime.fromisoformat(iso).timestamp() * 1_000_000)
