"""An archive: the records of a log that it no longer has, as rows in files; and a log with such an archive before it.

`history/archives.py` opens one, on the driver, and has looked at every offset in it by then. Tasks read it through
`Archived`, a source whose first offsets come from files: those are rows with the spout's columns, and nothing decodes
them. Nothing here is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hailstorm.clock.coverage import Spans
from hailstorm.columns import EVENT_TIME, GONE, OFFSET, PARTITION, TIME
from hailstorm.errors import LogError
from hailstorm.spouts.archive_files import Stamp, lines_of, open_file, stamp_of
from hailstorm.spouts.decode.decoder import Decoded, Decoder, whole
from hailstorm.spouts.decode.json_lines import JsonDecoder
from hailstorm.spouts.source import BATCH_ROWS, LivingSource
from hailstorm.topology.arrow_types import Columns, arrow_schema
from hailstorm.topology.exact_values import Misfit, exact_cast

PARQUET = ".parquet"
ROW = "row"  # the column of a record from an archive that has the spout's columns


@dataclass(frozen=True)
class Piece:
    """Some rows of one partition: of a row group of a Parquet file, or of a file of JSON Lines. From the first to the
    last offset there may be others that are in other pieces."""

    file: str
    stamp: Stamp
    group: int | None
    first: int
    last: int
    bytes: int  # roughly, once they are read


@dataclass(frozen=True)
class Archive:
    """Rows of a spout, by partition and offset."""

    columns: Columns  # of the spout; also `_gone`, where records without a value remove their key
    required: tuple[str, ...]  # columns that must not be null
    pieces: Mapping[int, tuple[Piece, ...]]  # by partition, in order of their first offsets
    spans: Mapping[int, Spans]  # which offsets there are

    def rows(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records with start <= offset < end, in order, with the spout's columns in `row`, in their exact types.

        Raises LogError for a file that has changed since the archive was opened, and for a value that does not fit.
        """
        wanted = [one for one in self.pieces.get(partition, ()) if one.first < end and one.last >= start]
        for together in _overlapping(wanted):
            found = [self._read(piece, partition, start, end) for piece in together]
            rows = pa.concat_tables(found)
            if len(together) > 1 or not _ascending(rows.column("offset")):
                rows = rows.take(pc.sort_indices(rows, [("offset", "ascending")]))  # stable
            yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def _read(self, piece: Piece, partition: int, start: int, end: int) -> pa.Table:
        check_unchanged(piece)
        names = [name for name, _ in self.columns]
        table = (
            _of_group(piece, [PARTITION, OFFSET, EVENT_TIME, *names])
            if piece.group is not None
            else of_lines(piece.file, (*_WHERE, (EVENT_TIME, "timestamp"), *self.columns))
        )
        here = pc.and_(
            pc.equal(table.column(PARTITION), partition),
            pc.and_(pc.greater_equal(table.column(OFFSET), start), pc.less(table.column(OFFSET), end)),
        )
        return self._fitting(table.filter(here), piece.file)

    def _fitting(self, table: pa.Table, file: str) -> pa.Table:
        """As records of the spout. A column that is not there may be missing: that was looked at."""
        count, there = table.num_rows, set(table.column_names)

        def column(name: str, type_: pa.DataType) -> pa.Array:
            if name in there:
                return exact_cast(whole(table.column(name)), type_, name)
            return pa.repeat(False, count) if name == GONE else pa.nulls(count, type_)

        schema = arrow_schema(self.columns)
        try:
            offsets, times = column(OFFSET, pa.int64()), column(EVENT_TIME, TIME)
            columns = [column(field.name, field.type) for field in schema]
        except Misfit as misfit:
            raise LogError(72, f"{file} does not fit: {misfit}", hint=_CORRECT) from None
        for field, values in zip(schema, columns, strict=True):
            if field.name in self.required and values.null_count:
                offset = offsets.filter(values.is_null())[0].as_py()
                what = f"'{field.name}' is NOT NULL, and is null at offset {offset}"
                raise LogError(72, f"{file} does not fit: {what}", hint=_CORRECT)
        rows = pa.StructArray.from_arrays(columns, fields=list(schema))
        nothing = pa.nulls(count, pa.binary())
        return pa.table({"offset": offsets, "time": times, "value": nothing, ROW: rows})


class RowDecoder(Decoder):
    """What comes from an archive needs no decoding: the rows are in the records."""

    around = (ROW,)

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        rows = pa.RecordBatch.from_struct_array(records.column(ROW))
        return Decoded(rows, np.arange(records.num_rows), [])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        raise AssertionError("an archive has no bytes")


@dataclass(frozen=True)
class Archived:
    """A log whose records before `until` come from an archive. To the engine it is that log, reaching further back."""

    log: LivingSource
    archive: Archive
    until: Mapping[int, int]  # by partition: where the log takes over

    @property
    def columns(self) -> str | None:
        return self.log.columns

    @property
    def has_time(self) -> bool:
        return self.log.has_time

    def earliest(self) -> dict[int, int]:
        begins = {partition: spans[0][0] for partition, spans in self.archive.spans.items()}
        return {**self.log.earliest(), **begins}

    def latest(self) -> Mapping[int, int]:
        return self.log.latest()

    def beginning(self, first: bool) -> dict[int, int]:
        return {**self.log.beginning(first), **self.earliest()}

    @property
    def decoder(self) -> Decoder:
        """For what `rows` gives."""
        return RowDecoder(self.archive.columns)

    def rows(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """What the archive has of a range; `read` has the rest."""
        return self.archive.rows(partition, start, min(end, self.until.get(partition, start)))

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return self.log.read(partition, max(start, self.until.get(partition, start)), end)

    def size(self, partition: int, start: int, end: int) -> int | None:
        """Of what is in the archive: its share of the pieces."""
        until = self.until.get(partition, start)
        rest = self.log.size(partition, max(start, until), end) if end > until else 0
        shares = (
            (min(one.last + 1, end) - max(one.first, start)) / (one.last + 1 - one.first) * one.bytes
            for one in self.archive.pieces.get(partition, ())
            if one.first < min(end, until) and one.last >= start
        )
        return None if rest is None else round(sum(shares)) + rest

    def roster(self, accept: bool = False) -> Mapping[str, str]:
        return self.log.roster(accept)

    def remembering(self, roster: Mapping[str, str], spout: str = "") -> Archived:
        return replace(self, log=self.log.remembering(roster, spout))

    def committed(self, offsets: Mapping[int, int]) -> None:
        """Nobody is to be told: the ledger that reads it is one inside another."""

    def resolve(self, folder: Path) -> Archived:
        return self

    def describe(self) -> Mapping[str, Any]:
        return self.log.describe()

    def missing(self) -> dict[int, Spans]:
        """By partition: the offsets from the archive's first one on that neither it nor the log has."""
        return {
            partition: tuple(
                (end, start)
                for (_, end), (start, _) in zip(spans, (*spans[1:], (self.until[partition],) * 2), strict=True)
                if end < start
            )
            for partition, spans in self.archive.spans.items()
        }


_WHERE: Columns = ((PARTITION, "bigint"), (OFFSET, "bigint"))
_CORRECT = "Correct the file, or make it again. Types are those of the spout's schema, exactly."


def of_lines(file: str, columns: Columns = _WHERE) -> pa.Table:
    """These columns of a file of JSON Lines, plain or gz. Raises LogError for a line that does not fit."""
    with lines_of(file) as content:
        lines = [line for line in content.read().split(b"\n") if line.strip()]
    decoder = JsonDecoder(columns)
    decoder.required = (PARTITION, OFFSET)
    decoded = decoder(pa.record_batch({"value": pa.array(lines, pa.binary())}))
    if decoded.bad:
        index, reason = decoded.bad[0]
        raise LogError(72, f"{file} does not fit: row {index + 1}: {reason}", hint=_CORRECT)
    return pa.Table.from_batches([decoded.rows])


def _of_group(piece: Piece, names: list[str]) -> pa.Table:
    """These columns of a row group, as far as it has them. Times that Spark writes as INT96 are moments in UTC."""
    assert piece.group is not None
    with open_file(piece.file) as source:
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        table = file.read_row_group(piece.group, [name for name in names if name in file.schema_arrow.names])
    physical = {column.path: column.physical_type for column in map(file.schema.column, range(len(file.schema)))}
    for place, field in enumerate(table.schema):
        if physical.get(field.name) == "INT96":
            table = table.set_column(place, field.name, table.column(place).cast(TIME))
    return table


def check_unchanged(piece: Piece) -> None:
    try:
        stamp = stamp_of(piece.file)
    except FileNotFoundError:
        raise LogError(23, f"{piece.file} is gone, and its rows are asked for", hint="Put it back.") from None
    if stamp != piece.stamp:
        raise LogError(24, f"{piece.file} has changed since it was looked at", hint="Start the backfill again.")


def _overlapping(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Pieces whose offsets lie between each other's, together: only then must rows be sorted."""
    together: list[Piece] = []
    last = -1
    for piece in pieces:
        if together and piece.first > last:
            yield together
            together = []
        together.append(piece)
        last = max(last, piece.last)
    if together:
        yield together


def _ascending(offsets: pa.ChunkedArray) -> bool:
    return bool((np.diff(whole(offsets).to_numpy()) >= 0).all())
