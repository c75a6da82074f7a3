"""Opening archives: files with records that a log no longer has, for a backfill that begins with them.

All of their offsets are looked at before anything is run: each record once, none that the log has, and none left out
that nobody has said may be. docs/decisions/0089-archives.md says why it is so strict.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.clock.clock import Clock
from hailstorm.clock.coverage import Spans
from hailstorm.columns import EVENT_TIME, GONE, OFFSET, PARTITION
from hailstorm.engine.ticks.logs import Logs, OnDataLoss
from hailstorm.engine.ticks.replacing import with_all_below
from hailstorm.environment import concealed
from hailstorm.errors import LogError, WordError, suggestion
from hailstorm.ledger.live import Live
from hailstorm.ledger.stores import is_folder, is_in_objects
from hailstorm.spouts.archive import PARQUET, Archive, Archived, Piece, of_lines
from hailstorm.spouts.archive_files import files_at, lines_of, open_file, stamp_of
from hailstorm.topology.ends import Spout
from hailstorm.topology.topology import Topology

_LINES = (".jsonl", ".ndjson", ".json")
_LOOKED_AT = 1_000  # lines of a file that say which columns it has

Offsets = npt.NDArray[np.int64]


def with_archives(
    topology: Topology, head: Live, step: str, files: Mapping[str, str], on_data_loss: OnDataLoss = "fail"
) -> Topology:
    """The topology with spouts that also read what is in these files, by spout. A spout that is called "" is the one
    above `step` and what is below it."""
    names = [one.name for one in topology.steps]
    if not files or step not in names:  # past.py says so
        return topology
    part = topology.only(with_all_below(topology, (step,), names))
    spouts = {spout.name: spout for spout in part.spouts}
    sources = Logs(topology, head).sources
    opened: dict[str, Archived] = {}
    for said, path in files.items():
        spout = spouts[_named(said, path, step, list(spouts))]
        archive = open_archive(spout, path)
        log, position = sources[spout.name], head.position()
        until = {p: min(offset, position.offset(spout.name, p) or 0) for p, offset in log.earliest().items()}
        opened[spout.name] = Archived(log, archive, until)
        _check(spout, opened[spout.name], position, on_data_loss)
    return topology.with_sources(lambda spout: opened.get(spout.name, spout.source))


def files_by_spout(words: tuple[str, ...], topology: Topology) -> dict[str, str]:
    """`PATH` or `SPOUT=PATH`, as on the command line. A path may have an = in it, too."""
    spouts = [spout.name for spout in topology.spouts]
    found: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        named = bool(equals) and (name in spouts or not ("/" in name or Path(word).exists()))
        spout = name if named else ""
        if spout in found:
            raise WordError(116, f"--from-files says twice where the records of '{spout or 'the spout'}' are")
        found[spout] = path if named else word
    return found


def _named(said: str, path: str, step: str, spouts: list[str]) -> str:
    if said in spouts:
        return said
    known = f"'{step}', with what is below it, is made of: {', '.join(spouts)}."
    if said:
        raise WordError(116, f"'{step}' has no spout '{said}' above it", hint=f"{known} {suggestion(said, spouts)}")
    if len(spouts) != 1:
        raise WordError(
            116,
            f"'{step}' has several spouts above it: of which one are the records in {path}?",
            hint=f"{known} Say --from-files {spouts[0]}={path}",
        )
    return spouts[0]


def open_archive(spout: Spout, path: str) -> Archive:
    """Look at all offsets in a file, in the files of a folder and its folders, or in those that a pattern names."""
    columns = tuple((column.name, column.type or "string") for column in spout.decoded)
    required = tuple(column.name for column in spout.decoded if not column.nullable)
    timed = spout.event_time is None and spout.source.has_time
    needed = (PARTITION, OFFSET, *([EVENT_TIME] if timed else []), *(name for name, _ in columns))
    if spout.is_table and spout.source.columns is None:
        columns = (*columns, (GONE, "boolean"))
    pieces: dict[int, list[Piece]] = {}
    offsets: dict[int, list[Offsets]] = {}
    for file in _files(path):
        stamp = stamp_of(file)
        for group, size, partitions, of_group in _looked_through(file, stamp[0], needed):
            if len(of_group) and (partitions.min() < 0 or of_group.min() < 0):
                raise LogError(72, f"{file} does not fit: '{PARTITION}' or '{OFFSET}' is below 0")
            for partition in map(int, np.unique(partitions)):
                mine = of_group[partitions == partition]
                share = size * len(mine) // len(of_group)
                piece = Piece(file, stamp, group, int(mine.min()), int(mine.max()), share)
                pieces.setdefault(partition, []).append(piece)
                offsets.setdefault(partition, []).append(mine)
    many = callable(spout.decode)  # such a function may make several rows of one record
    spans = {p: _spans(spout, p, np.concatenate(found), many) for p, found in sorted(offsets.items())}
    ordered = {p: tuple(sorted(found, key=lambda one: (one.first, one.file))) for p, found in pieces.items()}
    return Archive(columns, required, ordered, spans)


def _files(where: str) -> list[str]:
    if not is_folder(where) and not is_in_objects(where):
        hint = "Files are in a folder, or at s3://bucket/path, gs://bucket/path, az://container/path."
        raise LogError(70, f"'{concealed(where)}' is no place for files", hint=hint)
    try:
        wanted = [one for one in files_at(where) if _suffix(one) in (PARQUET, *_LINES)]
    except OSError as error:
        raise LogError(70, f"the files at {where} cannot be read: {error.strerror}") from error
    if not wanted:
        raise LogError(
            70,
            f"there are no Parquet files and no JSON Lines at {where}",
            hint="Name a file, a folder or a pattern. Files end in .parquet, .jsonl, .ndjson, .json or .jsonl.gz.",
        )
    return sorted(wanted)


def _suffix(file: str) -> str:
    return PurePosixPath(file.removesuffix(".gz")).suffix


def _looked_through(
    file: str, bytes_: int, needed: tuple[str, ...]
) -> Iterator[tuple[int | None, int, Offsets, Offsets]]:
    """Row group by row group: its number, its bytes, and the partitions and offsets of its rows."""
    if _suffix(file) == PARQUET:
        with open_file(file) as source:
            try:
                rows = pq.ParquetFile(source)
            except pa.ArrowException as error:
                raise LogError(70, f"{file} is not a Parquet file that can be read: {error}") from None
            _check_columns(file, needed, rows.schema_arrow.names)
            for group in range(rows.num_row_groups):
                size = rows.metadata.row_group(group).total_byte_size
                yield group, size, *_where(file, rows.read_row_group(group, [PARTITION, OFFSET]))
        return
    _check_columns(file, needed, _fields(file))
    yield None, bytes_, *_where(file, of_lines(file))


def _fields(file: str) -> list[str]:
    """The fields that are in one of the first lines: a line need not have one that is null."""
    with lines_of(file) as content:
        lines = [line for line in itertools.islice(content, _LOOKED_AT) if line.strip()]
    found: dict[str, None] = {}
    for line in lines:
        try:
            found |= dict.fromkeys(json.loads(line))
        except (ValueError, RecursionError, TypeError):
            continue  # whoever reads it says what is wrong with it
    return list(found)


def _where(file: str, table: pa.Table) -> tuple[Offsets, Offsets]:
    found = []
    for name in (PARTITION, OFFSET):
        column = table.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            what = "has a null" if pa.types.is_integer(column.type) else f"is {column.type} and no whole number"
            raise LogError(72, f"{file} does not fit: '{name}' {what}")
        found.append(column.cast(pa.int64()).to_numpy())
    return found[0], found[1]


def _check_columns(file: str, needed: tuple[str, ...], there: list[str]) -> None:
    for name in needed:
        if name not in there:
            near = suggestion(name, [one for one in there if one not in needed])
            why = {
                PARTITION: "It is the partition of the record, as the ledger counts them.",
                OFFSET: "It is the offset of the record in its partition.",
                EVENT_TIME: "It is the record's own time, which is its event time: the spout names no other.",
            }.get(name, "All columns of the spout's schema must be there.")
            raise LogError(
                71, f"{file} has no column '{name}'", hint=f"{why} It has: {', '.join(there)}. {near}".rstrip()
            )


def _spans(spout: Spout, partition: int, offsets: Offsets, many: bool) -> Spans:
    """Which offsets there are. Raises LogError where one is there twice."""
    offsets.sort()
    steps = np.diff(offsets)
    if not many and (steps == 0).any():
        twice = offsets[int(np.flatnonzero(steps == 0)[0])]
        raise LogError(
            73,
            f"{spout.name}/{partition}@{twice} is in the files twice, and {int((steps == 0).sum()) - 1:,} others",
            at=spout.at,
            hint="Each record may be there once. Leave out the files that hold the same records.",
        )
    ends = np.flatnonzero(steps > 1)
    starts = [int(offsets[0]), *(int(offsets[at + 1]) for at in ends)]
    return tuple(zip(starts, [*(int(offsets[at]) + 1 for at in ends), int(offsets[-1]) + 1], strict=True))


def _check(spout: Spout, archived: Archived, position: Clock, on_data_loss: OnDataLoss) -> None:
    """That the archive ends where the log begins, and lacks nothing."""
    known = position.offsets.get(spout.name, {})
    for partition, spans in archived.archive.spans.items():
        if partition not in known or partition not in archived.until:
            raise LogError(
                13,
                f"the files have records of partition {partition}, which '{spout.name}' does not have",
                at=spout.at,
                hint=f"It has: {', '.join(map(str, known))}.",
            )
        until, end = archived.until[partition], spans[-1][1]
        if end > until:
            first = max(until, spans[0][0])
            raise LogError(
                75,
                f"the files and the log both have {spout.name}/{partition}@{first}, and on up to offset {end - 1}",
                at=spout.at,
                hint=f"Leave it out of the files: from offset {until} of this partition on the log has the records.",
            )
    for partition, gaps in archived.missing().items():
        if gaps and on_data_loss == "fail":
            (first, end), count = gaps[0], sum(end - start for start, end in gaps)
            more = f", and {len(gaps) - 1:,} more gaps: {count:,} offsets in all" if len(gaps) > 1 else ""
            raise LogError(
                74,
                f"neither the files nor the log have {spout.name}/{partition}@{first} up to offset {end - 1}{more}",
                at=spout.at,
                hint="If a file is missing, add it. If nobody has these records (they were bad, compacted or erased):\n"
                "--on-data-loss continue goes on without them, and the coverage says so.",
            )
