"""Dead letters as files: one shape for records that did not decode, rows that user code refused, and rows that a
sink's target refused. The first two are named by commits; the last are delivery's (engine/delivery.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

LETTER = pa.schema(
    [
        ("spout", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("step", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
    ]
)
REJECTED = "rejected"  # a folder per sink, a file per commit


def encode_letters(step: str, rows: Sequence[tuple[str, bytes]]) -> bytes:
    """A Parquet file of (reason, content); what leaves a topology may come from many records, so none is named."""
    letters = [{"step": step, "reason": reason, "raw": raw} for reason, raw in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(letters, schema=LETTER), sink)
    return bytes(sink.getvalue())
