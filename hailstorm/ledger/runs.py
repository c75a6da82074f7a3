"""Runs: sorted files of state rows, and how several become one.

A run's columns are `_bucket, _hash`, the key columns, the values and (where it differs) the monoid's own
representation, `_updated` and `_deleted`. Rows are sorted by `_hash`. Within one run a key occurs once; between
runs the newer one is right. Nothing here knows of commits: callers pass tables, newest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.columns import DELETED, HASH
from hailstorm.ledger.arrays import equals, flags, integers, negated, numbers, order_by, order_of, taken, where
from hailstorm.ledger.commit import DataFile, Run, Stamp
from hailstorm.ledger.stores.store import Store
from hailstorm.ledger.sums import MARK, UNMARKED, Sums, mark_successor, sums_of

ROW_GROUP = 65_536  # rows: who reads a part of a run reads as much, or a little more

Hashes = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]


def run_name(step: str, run_id: str) -> str:
    return f"state/{step}/{run_id}.parquet"


def hashes_of(table: pa.Table) -> Hashes:
    """The `_hash` column as numpy, without a copy when it is one chunk."""
    column = table.column(HASH)
    return integers(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def buckets_of(hashes: Hashes) -> pa.Array:
    """The top 8 bits: 256 virtual nodes."""
    return numbers((hashes.view(np.uint64) >> np.uint64(56)).astype(np.int16))


def write_run(
    store: Store, step: str, table: pa.Table, stamp: Stamp, seq: int | None = None, synced: bool = True
) -> Run:
    """Write a sorted table as a run, durably unless somebody else syncs it. Its rows are those of the stamp's commit,
    or of `seq` when merged."""
    run_id = stamp.new_name()
    hashes = hashes_of(table)
    data = parquet(table)
    size = store.write(run_name(step, run_id), lambda sink: sink.write(data), synced)
    return Run(
        id=run_id,
        seq=stamp.commit if seq is None else seq,
        rows=table.num_rows,
        bytes=size,
        first=int(hashes[0]),
        last=int(hashes[-1]),
        sums=sums_of(data),
    )


def write_rows(store: Store, folder: str, table: pa.Table, stamp: Stamp, synced: bool = True) -> DataFile:
    """Write rows that are no state, durably unless somebody else syncs them."""
    name = f"{folder}/{stamp.new_name()}.parquet"
    data = parquet(table)
    size = store.write(name, lambda sink: sink.write(data), synced)
    return DataFile(path=name, rows=table.num_rows, bytes=size, sums=sums_of(data))


def parquet(table: pa.Table) -> pa.Buffer:
    """The rows as a Parquet file. In memory: it is smaller than the table, and its checksum is cheapest there."""
    sink = pa.BufferOutputStream()
    write_parquet(table, sink)
    return sink.getvalue()


def parquet_without(table: pa.Table, sums: Sums) -> bytes:
    """What is left of a file, with these checksums, after an erasure: it can be told from a damaged one."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    options = {"compression": "lz4", "use_dictionary": False, "write_page_checksum": True}
    statistics = [HASH] if HASH in table.schema.names else False
    with pq.ParquetWriter(sink, table.schema, write_statistics=statistics, **options) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({MARK: UNMARKED})
    return mark_successor(sink.getvalue().to_pybytes(), sums)


def write_parquet(table: pa.Table, sink: pa.NativeFile) -> None:
    import pyarrow.parquet as pq

    # Dictionaries and most statistics cost more time here than they save. A part of a run is found by its hashes.
    statistics = [HASH] if HASH in table.schema.names else False
    pq.write_table(
        table,
        sink,
        row_group_size=ROW_GROUP,
        compression="lz4",
        use_dictionary=False,
        write_statistics=statistics,
        write_page_checksum=True,
    )


def is_sorted(table: pa.Table) -> bool:
    hashes = hashes_of(table)
    return bool((hashes[1:] >= hashes[:-1]).all())


def sort_by_hash(table: pa.Table) -> pa.Table:
    return table.take(numbers(order_of(hashes_of(table))))


def shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of an older run with the columns that its step has now: nulls for those that came since."""
    columns = [
        (known if (known := rows.column(f.name)).type == f.type else known.cast(f.type))
        if f.name in rows.column_names
        else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)


def merge_runs(tables: Sequence[pa.Table], key: Sequence[str], drop_deleted: bool) -> pa.Table:
    """One sorted table with the newest row per key. `tables` are sorted runs, newest first.

    `drop_deleted` leaves out tombstones: right only when no older run may hold the key.
    """
    table = tables[0]
    if len(tables) > 1:
        # A fold may have got a monoid, or a wider type, since its older runs were written.
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        order = order_of(hashes_of(table))  # newer rows stay first among equal hashes
        keep = first_of_each_key(hashes_of(table)[order], table.select(list(key)), order)
        table = taken(table, order[keep])
    if drop_deleted:
        table = where(table, negated(table.column(DELETED)))
    return table


def first_of_each_key(hashes: Hashes, keys: pa.Table, order: Positions) -> npt.NDArray[np.bool_]:
    """Which places of `order` hold the first row of their key, given hashes sorted in that order.

    Equal hashes mean equal keys, but for collisions and for members, which all have the hash of their group: those
    are told apart by the keys themselves.
    """
    keep = np.ones(len(order), dtype=np.bool_)
    if len(order) < 2:
        return keep
    repeats = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if not len(repeats):
        return keep
    keep[repeats] = False
    if not keys.num_columns:
        return keep
    same = equal_keys(keys, order[repeats], keys, order[repeats - 1])
    if not same.all():
        # Hashes are sorted, so those of one number are neighbours.
        groups = np.cumsum(np.diff(hashes, prepend=hashes[0]) != 0)
        is_mixed = np.zeros(groups[-1] + 1, dtype=np.bool_)
        is_mixed[groups[repeats[~same]]] = True
        mixed = np.flatnonzero(is_mixed[groups])
        # The entries of an agenda that are about one key have different times: only those of one time are one row.
        numbered = groups[mixed] * len(mixed) + key_numbers(keys, order[mixed])
        by_number = order_of(numbered)
        ordered = numbered[by_number]
        first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        keep[mixed] = False
        keep[mixed[by_number[first]]] = True
    return keep


def equal_keys(left: pa.Table, left_at: Positions, right: pa.Table, right_at: Positions) -> npt.NDArray[np.bool_]:
    """Row by row: whether the keys at these places of two tables are equal. Keys are never null, but in an agenda in
    entries that are about all keys: nulls are equal."""
    equal = np.ones(len(left_at), dtype=np.bool_)
    for a, b in zip(left.columns, right.columns, strict=True):
        equal &= _equal(_one_chunk(taken(a, left_at)), _one_chunk(taken(b, right_at)))
    return equal


def _equal(a: pa.Array, b: pa.Array) -> npt.NDArray[np.bool_]:
    if a.null_count or b.null_count:
        codes = key_numbers(pa.table({"": pa.concat_arrays([a, b])}), np.arange(len(a) + len(b)))
        return np.equal(codes[: len(a)], codes[len(a) :])
    if pa.types.is_nested(a.type):
        return _equal(as_text(a), as_text(b))
    if not pa.types.is_floating(a.type):
        return flags(equals(a, b))
    import pyarrow.compute as pc

    return flags(pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b))))  # to Spark they are one key


def key_numbers(keys: pa.Table, at: Positions) -> Positions:
    """A number for each of these rows: rows with equal keys, and only those, have equal numbers. Nulls are equal.
    Numbers are in no order that means something, and below the number of rows."""
    columns = [_codes(_one_chunk(column.take(numbers(at)))) for column in keys.columns]
    found = np.zeros(len(at), dtype=np.int64)
    if not columns or not len(at):
        return found
    order = order_by(*columns)
    fresh = np.zeros(len(at), dtype=np.bool_)
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    found[order] = np.cumsum(fresh)
    return found


def _codes(values: pa.Array) -> Positions:
    """Integers that are equal where the values are."""
    if not values.null_count and (pa.types.is_int64(values.type) or pa.types.is_timestamp(values.type)):
        return integers(values.cast(pa.int64()))
    if pa.types.is_floating(values.type):
        values = _as_spark_compares(values)
    values = as_text(values) if pa.types.is_nested(values.type) else values
    codes: Positions = values.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return codes.astype(np.int64)


def _as_spark_compares(values: pa.Array) -> pa.Array:
    """0.0 for -0.0, and one NaN for all: to Spark they are one key, to Arrow's dictionaries each is its own."""
    import pyarrow.compute as pc

    kind = values.type
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), kind), pc.add(values, pa.scalar(0.0, kind)))


def as_text(nested: pa.Array) -> pa.Array:
    """Lists and structs, which Arrow does not compare. As keys they are rare, so Python may do it."""
    return pa.array([repr(_same_zeros(value)) for value in nested.to_pylist()], pa.string())


def _same_zeros(value: Any) -> Any:
    """With 0.0 for -0.0, at any depth: to Spark they are one key."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _same_zeros(part) for name, part in value.items()}
    return [_same_zeros(part) for part in value] if isinstance(value, list) else value


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
