"""CSV records: one line per record, fields in the order of the schema, commas, double quotes doubled inside quotes.

An empty field is null. Lines without quotes are split by Arrow, a batch at once; lines with quotes by Python's csv
module, because a quote that is never closed must not swallow the records after it.
"""

from __future__ import annotations

import csv

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode.decoder import Decoded, Decoder, Indexes, joined, whole, without
from hailstorm.spouts.decode.leaves import not_utf8, parsed
from hailstorm.topology.arrow_types import Columns, spark_name


class CsvDecoder(Decoder):
    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        for field in self.schema:
            if pa.types.is_nested(field.type):
                raise TopologyError(44, f"a CSV field cannot hold {spark_name(field.type)}, the type of '{field.name}'")
        self.texts = pa.schema([pa.field(field.name, pa.string()) for field in self.schema])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        bad = {int(index): "is not UTF-8" for index in not_utf8(values)}
        bad |= {int(index): "is null" for index in np.flatnonzero(_true(values.is_null()))}
        bad |= {int(index): "is empty" for index in np.flatnonzero(_true(pc.equal(pc.binary_length(values), 0)))}
        commas = pc.fill_null(pc.count_substring(values, ","), 0).to_numpy()
        # A byte order mark is no more than a strange letter; at the beginning of a batch Arrow would pass over it.
        quoted = _true(pc.match_substring_regex(values, r'["\r\n]')) | _true(pc.starts_with(values, "\ufeff"))
        refused = np.isin(np.arange(len(values)), np.fromiter(bad, np.int64, len(bad)))
        for index in np.flatnonzero(~refused & ~quoted & (commas != len(self.texts) - 1)):
            bad[int(index)] = self._wrong_width(int(commas[index]) + 1)
            refused[index] = True
        plain = np.flatnonzero(~refused & ~quoted)
        tables = [self._split(values.take(pa.array(plain)))] if len(plain) else []
        lists: list[list[str | None]] = []
        split: list[int] = []
        for index in np.flatnonzero(~refused & quoted):
            fields = self._fields(values[int(index)].as_py())
            if isinstance(fields, str):
                bad[int(index)] = fields
            else:
                lists.append([field or None for field in fields])
                split.append(int(index))
        if lists:
            tables.append(pa.table(list(zip(*lists, strict=True)), schema=self.texts))
        table = pa.concat_tables(tables) if tables else self.texts.empty_table()
        origin = np.concatenate([plain, np.array(split, np.int64)])
        order = np.argsort(origin, kind="stable")
        table, origin = table.take(pa.array(order)).combine_chunks(), origin[order]
        arrays = [self._typed(table, field, origin, bad) for field in self.schema]
        return without(self.rows(arrays, len(origin)), origin, bad)

    def _split(self, lines: pa.BinaryArray) -> pa.Table:
        text = joined(lines)
        return pacsv.read_csv(
            pa.BufferReader(text),
            read_options=pacsv.ReadOptions(use_threads=False, block_size=text.size + 1, column_names=self.texts.names),
            parse_options=pacsv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=pacsv.ConvertOptions(column_types=self.texts, null_values=[""], strings_can_be_null=True),
        )

    def _fields(self, line: bytes) -> list[str] | str:
        """The fields of a line with quotes, or the reason why it has none."""
        if b"\n" in line or b"\r" in line:
            return "is more than one line"
        try:
            csv.field_size_limit(len(line) + 1)  # for this process and not this call: 128 KB unless it is said
            (fields,) = csv.reader([line.decode()], strict=True)
        except csv.Error as error:
            return f"is not CSV: {error}"
        return fields if len(fields) == len(self.texts) else self._wrong_width(len(fields))

    def _wrong_width(self, found: int) -> str:
        return f"has {found} fields, the schema has {len(self.texts)}"

    def _typed(self, table: pa.Table, field: pa.Field, origin: Indexes, bad: dict[int, str]) -> pa.Array:
        texts = whole(table.column(field.name))
        array, failed = parsed(texts, field.type)
        for index in failed:
            reason = f"field '{field.name}' is not {spark_name(field.type)}: {texts[index].as_py()!r:.80}"
            bad.setdefault(int(origin[index]), reason)
        return array


def _true(mask: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(mask, False))
