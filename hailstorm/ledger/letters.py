"""Dead letters as files: one shape for records that did not decode, rows that user code refused, and rows that a
sink's target refused. The first two are named by commits; the last are delivery's (engine/delivery/deliverer.py).

`raw` is for people: the bytes of a record, or a row as JSON. What a second chance starts from is `row`, a struct with
the columns and types that the row had where it failed, hidden ones included: so it is the same row, bit by bit. Of a
record it has what is around the value: its time, and what else its decoder reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

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
ROW = "row"  # the row itself: as it entered its step, or as it was in the outbox


def letters_table(letters: Sequence[tuple[object, ...]]) -> pa.Table:
    """The letters as rows of a file; each has the columns of LETTER, in order."""
    columns = zip(zip(*letters, strict=True), LETTER, strict=True)
    return pa.table([pa.array(values, field.type) for values, field in columns], schema=LETTER)


def with_rows(letters: pa.Table, rows: pa.Table) -> pa.Table:
    """The letters, each with its row."""
    return letters.append_column(ROW, rows.to_struct_array())


def encode_rejected(sink_name: str, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> bytes:
    """A Parquet file of (reason, content) and row; what leaves a topology may come from many records: none is named."""
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(
        [{"step": sink_name, "reason": reason, "raw": raw} for reason, raw in letters], schema=LETTER
    )
    sink = pa.BufferOutputStream()
    pq.write_table(with_rows(table, rows), sink, write_page_checksum=True)
    return bytes(sink.getvalue())
