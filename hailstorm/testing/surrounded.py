"""The log that stands in for Kafka in the test driver, where a schema has columns from around the value.

An embedded log keeps values only, so what is around one is wrapped up with it when it is fed, and unwrapped when it is
read: the topology sees records as `hs.Kafka(..., metadata=True)` gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from hailstorm.errors import UsageError, suggestion
from hailstorm.spouts.encode import encoded
from hailstorm.spouts.kafka.reader import METADATA
from hailstorm.spouts.log import Log
from hailstorm.spouts.source import RECORD

_KNOWN = ("kafka_key", "kafka_timestamp", "kafka_topic", "kafka_headers")


class _Record(msgspec.Struct):
    value: bytes
    topic: str
    partition: int
    key: bytes | None
    time: datetime | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, init=False)
class SurroundedLog(Log):
    """An embedded log whose records have a key, a time, a topic and headers."""

    def wrapped(self, rows: Iterable[Any], partition: int, around: Mapping[str, Any]) -> list[bytes]:
        """The rows as they are appended. What `around` does not say is as Kafka has it when nobody says it."""
        for name in around:
            if name not in _KNOWN:
                hint = f"A test can say {', '.join(_KNOWN)}. {suggestion(name, _KNOWN)}"
                raise UsageError(17, f"a record has no '{name}'", hint=hint)
        key, headers = around.get("kafka_key"), dict(around.get("kafka_headers", {}))
        return [
            msgspec.msgpack.encode(
                _Record(
                    value=encoded(row),
                    topic=around.get("kafka_topic", Path(self.path).name),
                    partition=partition,
                    key=None if key is None else encoded(key),
                    time=around.get("kafka_timestamp"),
                    headers=[(name, None if value is None else encoded(value)) for name, value in headers.items()],
                )
            )
            for row in rows
        ]

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition, start, end):
            found = [msgspec.msgpack.decode(value, type=_Record) for value in batch.column("value").to_pylist()]
            rows = [
                {
                    "offset": offset,
                    "time": record.time or appended,
                    "key": record.key,
                    "value": record.value,
                    "kafka_topic": record.topic,
                    "kafka_partition": record.partition,
                    "kafka_headers": [{"key": name, "value": value} for name, value in record.headers],
                }
                for record, offset, appended in zip(
                    found, batch.column("offset").to_pylist(), batch.column("time").to_pylist(), strict=True
                )
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=pa.schema([*RECORD, *METADATA]))
