"""JSON records, strict and fast: a whole batch is parsed at once by Arrow's JSON reader.

A missing field is null, an unknown one is ignored; a wrong type, a field given twice, or a record that is not one
JSON object is bad. What the reader accepts is the meaning of `decode="json"`, whichever way a record reaches it.

Why rows and records stay aligned when the values are joined with newlines. Every joined record begins with `{` and
ends with `}`. That last brace is not inside a string, because a raw newline in a string is an error to the reader.
So a `}` is followed by the next record's `{`, which is legal only between two top-level values: each record ends at
depth zero, and gave at least one row. Hence as many rows as records means one row for each. More rows than records
(`{"a":1} {"a":2}`) means that some record holds more than one value, and the batch is halved like any bad one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from hailstorm.halving import failing_parts, halved
from hailstorm.spouts.decode.decoder import Decoded, Decoder, Indexes, joined, whole, without
from hailstorm.spouts.decode.json_shapes import has_map, shaped, wire_type, with_lists_for_maps, wrong_kind
from hailstorm.spouts.decode.json_suspects import Suspicion
from hailstorm.spouts.decode.leaves import not_utf8
from hailstorm.topology.arrow_types import Columns, spark_name

_JOINED_BYTES = 64 << 20  # the reader counts a block's bytes in 32 bits
_BLOCKS = 8  # a refused batch is cut into so many blocks, and they again ...
_BLOCK_RECORDS = 250  # ... until they are so small: then each record is looked at
_SPACE = b" \t\r\n"
_WRONG_KIND = re.compile(r"Column\((?P<path>.*)\) changed from (?P<wanted>\w+) to (?P<given>\w+)")
_TWICE = re.compile(r"Column\((?P<path>.*)\) was specified twice")


class JsonDecoder(Decoder):
    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self.wire = pa.schema([pa.field(field.name, wire_type(field.type)) for field in self.schema])
        self.told = pa.schema([pa.field(field.name, wire_type(field.type, wide=False)) for field in self.schema])
        self.rewrite = any(has_map(type_) for type_ in self.schema.types)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        bad = _not_objects(values)
        kept = np.setdiff1d(np.arange(len(values)), np.fromiter(bad, np.int64, len(bad)), assume_unique=True)
        good = values if not bad else values.take(pa.array(kept))
        if self.rewrite:
            good = pa.array([with_lists_for_maps(value, self.schema) for value in good.to_pylist()], pa.binary())
        tables: list[pa.Table] = []
        origins: list[Indexes] = []
        for start, end in _parts(good):
            self._parse(good[start:end], kept[start:end], tables, origins, bad)
        table = pa.concat_tables(tables).combine_chunks() if tables else self.wire.empty_table()
        origin = np.concatenate(origins) if origins else np.empty(0, np.int64)
        arrays = [
            shaped(whole(table.column(index)), field.type, origin, field.name, bad)
            for index, field in enumerate(self.schema)
        ]
        return without(self.rows(arrays, len(origin)), origin, bad)

    def _parse(
        self, values: pa.BinaryArray, kept: Indexes, tables: list[pa.Table], origins: list[Indexes], bad: dict[int, str]
    ) -> None:
        """Parse what can be parsed; add the rest to `bad`. All at once, then in blocks, then by halves."""
        table = _parsed(values, self.wire)
        if table is not None:
            tables.append(table)
            origins.append(kept)
        elif len(values) > _BLOCK_RECORDS:
            step = -(-len(values) // _BLOCKS)
            for start in range(0, len(values), step):
                self._parse(values[start : start + step], kept[start : start + step], tables, origins, bad)
        else:
            suspicion = Suspicion(self.told, self.schema)
            looked_at = enumerate(values.to_pylist())
            reasons = {index: reason for index, value in looked_at if (reason := suspicion.of(value))}
            bad |= {int(kept[index]): reason for index, reason in reasons.items()}
            innocent = np.array([index for index in range(len(values)) if index not in reasons], np.int64)
            self._halve(values.take(pa.array(innocent)), kept[innocent], tables, origins, bad)

    def _halve(
        self, values: pa.BinaryArray, kept: Indexes, tables: list[pa.Table], origins: list[Indexes], bad: dict[int, str]
    ) -> None:
        def refused(part: range) -> bool | None:
            table = _parsed(values[part.start : part.stop], self.wire)
            if table is None:
                return True
            tables.append(table)
            origins.append(kept[part.start : part.stop])
            return None

        parts = [range(len(values))] if len(values) else []
        for alone, _ in failing_parts(parts, refused, halved):
            bad[int(kept[alone.start])] = self._reason(values[alone.start : alone.stop])

    def _reason(self, value: pa.BinaryArray) -> str:
        """Why the reader refuses this one record, naming the field."""
        try:
            if _read(joined(value), self.wire).num_rows != 1:
                return "is more than one JSON value"
        except pa.ArrowException as error:
            if match := _WRONG_KIND.search(str(error)):
                return wrong_kind(self.schema, _dotted(match["path"]), match["wanted"], match["given"])
            if match := _TWICE.search(str(error)):
                return f"field '{_dotted(match['path'])}' is given twice"
            for field in self.wire:
                # A number that does not fit: the reader's message has the number and not the field.
                try:
                    _read(joined(value), pa.schema([field]))
                except pa.ArrowInvalid as alone:
                    if "Failed to convert" in str(alone):
                        type_ = spark_name(self.schema.field(field.name).type)
                        return f"field '{field.name}' is not {type_}: {_given(str(alone)):.80}"
            return f"is not valid JSON: {error}".removesuffix(" in row 0").replace("JSON parse error: ", "")
        raise AssertionError("a record that parses alone was refused in company")


def _not_objects(values: pa.BinaryArray) -> dict[int, str]:
    """What can be told from a record's first and last byte and from its encoding."""
    bad: dict[int, str] = {}
    if values.null_count:
        bad |= {int(index): "is null" for index in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))}
    bad |= {int(index): "is not UTF-8" for index in not_utf8(values)}
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    starts, ends = offsets[:-1], offsets[1:]
    data = values.buffers()[2]
    if data is None or not data.size:
        return {index: bad.get(index, "is empty") for index in range(len(values))}
    characters = np.frombuffer(data, np.uint8)
    empty = starts == ends
    first = characters[np.minimum(starts, data.size - 1)]
    last = characters[np.maximum(ends - 1, 0)]
    for index in np.flatnonzero(empty | (first != ord("{")) | (last != ord("}"))):
        if int(index) not in bad:
            text = values[int(index)].as_py().strip(_SPACE)
            if not text:
                bad[int(index)] = "is empty"
            elif not (text.startswith(b"{") and text.endswith(b"}")):
                bad[int(index)] = "is not a JSON object"
    return bad


def _parts(values: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Slices of at most so many bytes, or of one record that is larger."""
    ends = np.cumsum(pc.binary_length(values).to_numpy())
    start = 0
    while start < len(values):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _JOINED_BYTES, side="right")))
        yield start, end
        start = end


def _parsed(values: pa.BinaryArray, wire: pa.Schema) -> pa.Table | None:
    """One row per record, or None when the reader refuses a record or finds several values in one."""
    try:
        table = _read(joined(values), wire)
    except pa.ArrowException:
        return None
    return table if table.num_rows == len(values) else None


def _read(text: pa.Buffer, wire: pa.Schema) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore"),
    )


def _dotted(path: str) -> str:
    return path.strip("/").replace("/[]", "[]").replace("/", ".")


def _given(message: str) -> str:
    """The number in the reader's message."""
    return message.partition("couldn't parse:")[2] or message.partition(": ")[2]
