"""Runs: sorted files of state rows, and how several become one.

A run's columns are `_bucket, _hash`, the key columns, the values and (where it differs) the monoid's own
representation, `_updated` and `_deleted`. Rows are sorted by `_hash`. Within one run a key occurs once; between
runs the newer one is right. Nothing here knows of commits: callers pass tables, newest first.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hailstorm.ledger.commit import DataFile, Run
from hailstorm.ledger.store import LocalStore

BUCKET, HASH, UPDATED, DELETED = "_bucket", "_hash", "_updated", "_deleted"

Hashes = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]


def run_name(step: str, run_id: str) -> str:
    return f"state/{step}/{run_id}.parquet"


def hashes_of(table: pa.Table) -> Hashes:
    """The `_hash` column as numpy, without a copy when it is one chunk."""
    column = table.column(HASH)
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    hashes: Hashes = chunk.to_numpy(zero_copy_only=False)
    return hashes


def buckets_of(hashes: Hashes) -> pa.Array:
    """The top 8 bits: 256 virtual nodes."""
    return pa.array((hashes.view(np.uint64) >> np.uint64(56)).astype(np.int16))


def write_run(store: LocalStore, step: str, table: pa.Table, seq: int) -> Run:
    """Write a sorted table as a run, durably, under a name that nobody else has."""
    run_id = uuid.uuid4().hex
    hashes = hashes_of(table)
    size = store.write(run_name(step, run_id), lambda path: write_parquet(table, path))
    return Run(id=run_id, seq=seq, rows=table.num_rows, bytes=size, first=int(hashes[0]), last=int(hashes[-1]))


def write_rows(store: LocalStore, folder: str, table: pa.Table, seq: int) -> DataFile:
    """Write rows of commit `seq` that are no state, durably, under a name that nobody else has."""
    name = f"{folder}/{seq:020d}-{uuid.uuid4().hex[:16]}.parquet"
    size = store.write(name, lambda path: write_parquet(table, path))
    return DataFile(path=name, rows=table.num_rows, bytes=size)


def write_parquet(table: pa.Table, path: Path) -> None:
    # Dictionaries and statistics cost more time here than they save: runs are read whole or not at all.
    pq.write_table(table, path, compression="lz4", use_dictionary=False, write_statistics=False)


def sort_by_hash(table: pa.Table) -> pa.Table:
    order = np.argsort(hashes_of(table), kind="stable")
    return table.take(pa.array(order))


def merge_runs(tables: Sequence[pa.Table], key: Sequence[str], drop_deleted: bool) -> pa.Table:
    """One sorted table with the newest row per key. `tables` are sorted runs, newest first.

    `drop_deleted` leaves out tombstones: right only when no older run may hold the key.
    """
    table = tables[0]
    if len(tables) > 1:
        # A fold may have got a monoid, or a wider type, since its older runs were written.
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        # A stable sort keeps newer rows first among equal hashes; on sorted pieces timsort is a merge.
        order = np.argsort(hashes_of(table), kind="stable")
        keep = first_of_each_key(hashes_of(table)[order], table.select(list(key)), order)
        table = table.take(pa.array(order[keep]))
    if drop_deleted:
        table = table.filter(pc.invert(table.column(DELETED)))
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
        mixed = np.flatnonzero(np.isin(hashes, hashes[repeats[~same]]))
        _, first = np.unique(_key_numbers(keys, order[mixed]), return_index=True)
        keep[mixed] = False
        keep[mixed[first]] = True
    return keep


def equal_keys(left: pa.Table, left_at: Positions, right: pa.Table, right_at: Positions) -> npt.NDArray[np.bool_]:
    """Row by row: whether the keys at these places of two tables are equal. Keys are never null."""
    equal = np.ones(len(left_at), dtype=np.bool_)
    left_indices, right_indices = pa.array(left_at), pa.array(right_at)
    for a, b in zip(left.columns, right.columns, strict=True):
        equal &= _equal(_one_chunk(a.take(left_indices)), _one_chunk(b.take(right_indices)))
    return equal


def _equal(a: pa.Array, b: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_nested(a.type):
        return _equal(_as_text(a), _as_text(b))
    same = pc.equal(a, b)
    if pa.types.is_floating(a.type):
        same = pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b)))  # to Spark they are one key
    equal: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return equal


def _key_numbers(keys: pa.Table, at: Positions) -> Positions:
    """A number for each of these rows: rows with equal keys, and only those, have equal numbers."""
    numbers = np.zeros(len(at), dtype=np.int64)
    for column in keys.columns:
        values = _one_chunk(column.take(pa.array(at)))
        values = _as_text(values) if pa.types.is_nested(values.type) else values
        codes = values.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, numbers = np.unique(numbers * len(at) + codes, return_inverse=True)
    return numbers


def _as_text(nested: pa.Array) -> pa.Array:
    """Lists and structs, which Arrow does not compare. As keys they are rare, so Python may do it."""
    return pa.array([repr(value) for value in nested.to_pylist()], pa.string())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
