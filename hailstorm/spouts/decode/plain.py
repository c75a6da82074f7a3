"""Records that are one value: a line of text, or bytes as they are. A null value is a null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode.decoder import Decoded, Decoder
from hailstorm.spouts.decode.leaves import not_utf8
from hailstorm.topology.arrow_types import Columns


class TextDecoder(Decoder):
    """One STRING column. A record that is not UTF-8 is bad."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        _one_column(self.schema, pa.string(), 'decode="text"', "line STRING")

    def decode(self, values: pa.BinaryArray) -> Decoded:
        bad = {int(i): "is not UTF-8" for i in not_utf8(values)}
        origin = np.array([i for i in range(len(values)) if i not in bad], np.int64) if bad else np.arange(len(values))
        good = values.take(pa.array(origin)) if bad else values
        return Decoded(self.rows([good.cast(pa.string())], len(origin)), origin, sorted(bad.items()))


class BytesDecoder(Decoder):
    """One BINARY column. No record is bad."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        _one_column(self.schema, pa.binary(), 'decode="bytes"', "body BINARY")

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return Decoded(self.rows([values], len(values)), np.arange(len(values)), [])


def _one_column(schema: pa.Schema, type_: pa.DataType, who: str, example: str) -> None:
    if schema.types != [type_]:
        raise TopologyError(42, f'{who} needs a schema of one column, as in schema="{example}"')
