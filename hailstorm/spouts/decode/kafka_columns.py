"""Columns that come from around the value: `kafka_key`, `kafka_timestamp`, `kafka_topic` and so on in a spout's schema.

Key and time are in every record of every log; the others only in what `hs.Kafka(..., metadata=True)` gives.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode.decoder import Decoded, Decoder, without
from hailstorm.spouts.decode.leaves import not_utf8
from hailstorm.topology.arrow_types import Columns, arrow_type, spark_name

# The column of a schema, the column of a record, and its type.
_AROUND = {
    "kafka_key": ("key", "binary"),
    "kafka_timestamp": ("time", "timestamp"),
    "kafka_offset": ("offset", "bigint"),
    "kafka_topic": ("kafka_topic", "string"),
    "kafka_partition": ("kafka_partition", "int"),
    "kafka_headers": ("kafka_headers", "array<struct<key:string,value:binary>>"),
}


def in_value(columns: Columns) -> Columns:
    """The columns that the value gives."""
    return tuple((name, type_) for name, type_ in columns if name not in _AROUND)


class KafkaColumns(Decoder):
    """Another decoder's rows, with these columns put in their places. The key may also be read as a STRING."""

    def __init__(self, inner: Decoder, columns: Columns) -> None:
        super().__init__(columns)
        self.inner = inner
        self.around = tuple(_AROUND[name][0] for name, _ in columns if name in _AROUND and name != "kafka_offset")
        for name, _ in columns:
            if name in _AROUND:
                allowed = [arrow_type(_AROUND[name][1]), *([pa.string()] if name == "kafka_key" else [])]
                if self.schema.field(name).type not in allowed:
                    raise TopologyError(70, f"column '{name}' is {' or '.join(map(spark_name, allowed))}")

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        wanted = [name for name in self.schema.names if name in _AROUND]
        missing = [name for name in wanted if _AROUND[name][0] not in records.schema.names]
        if missing:
            reason = f"it has no {missing[0]}: say hs.Kafka(..., metadata=True)"
            nothing = pa.RecordBatch.from_pylist([], schema=self.schema)
            return Decoded(nothing, np.empty(0, np.int64), [(index, reason) for index in range(records.num_rows)])
        around = {name: records.column(_AROUND[name][0]) for name in wanted}
        bad = {}
        if "kafka_key" in around and self.schema.field("kafka_key").type == pa.string():
            bad = {int(index): "its key is not UTF-8" for index in not_utf8(around["kafka_key"])}
        found = self.inner(records)
        found = without(found.rows, found.origin, {**bad, **dict(found.bad)})
        origin = pa.array(found.origin)
        columns = [
            around[field.name].take(origin).cast(field.type) if field.name in around else found.rows.column(field.name)
            for field in self.schema
        ]
        return self._complete(Decoded(self.rows(columns, len(origin)), found.origin, found.bad))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self.inner.decode(values)
