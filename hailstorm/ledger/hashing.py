"""`_hash` in Python: Spark's `xxhash64(key columns)`, bit for bit, without a loop over rows.

The JVM computes it when it aggregates; a pass that aggregates in Arrow needs it here. Columns are chained: the hash
of one is the seed of the next, and a null leaves the seed as it is. Text of one length is hashed together, as a
matrix of bytes, one column of words after the other. A test compares with Spark for every type.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def can_hash(type_: pa.DataType) -> bool:
    """Whether this module knows the type. The others are left to the JVM."""
    kinds = (
        pa.types.is_signed_integer,
        pa.types.is_boolean,
        pa.types.is_date32,
        pa.types.is_timestamp,
        pa.types.is_string,
        pa.types.is_binary,
    )
    return any(is_kind(type_) for is_kind in kinds)


def hash_columns(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The hash of each row of these columns. No columns, as for a global fold, hash to 0."""
    if not columns:
        raise ValueError("no key columns")
    seeds = np.full(len(columns[0]), _SEED, dtype=np.uint64)
    for column in columns:
        hashed = _hash_column(column, seeds)
        if column.null_count:
            hashed = np.where(column.is_valid().to_numpy(zero_copy_only=False), hashed, seeds)
        seeds = hashed
    return seeds.view(np.int64)


def _hash_column(column: pa.Array, seeds: Words) -> Words:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _hash_bytes(column, seeds)
    if pa.types.is_timestamp(type_):
        return _hash_longs(_numbers(column.cast(pa.timestamp("us", type_.tz)).cast(pa.int64())), seeds)
    if pa.types.is_int64(type_):
        return _hash_longs(_numbers(column), seeds)
    return _hash_ints(_numbers(column.cast(pa.int32())), seeds)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    filled = column.fill_null(0) if column.null_count else column
    numbers: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _finished(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(33))) * _P2
    words = (words ^ (words >> np.uint64(29))) * _P3
    return words ^ (words >> np.uint64(32))


def _with_word(hashed: Words, word: Words) -> Words:
    hashed = hashed ^ (_rotated(word * _P2, 31) * _P1)
    return _rotated(hashed, 27) * _P1 + _P4


def _with_half_word(hashed: Words, word: Words) -> Words:
    return _rotated(hashed ^ (word * _P1), 23) * _P2 + _P3


def _hash_longs(values: npt.NDArray[np.int64], seeds: Words) -> Words:
    return _finished(_with_word(seeds + _P5 + np.uint64(8), values.view(np.uint64)))


def _hash_ints(values: npt.NDArray[np.int64], seeds: Words) -> Words:
    word = values.view(np.uint64) & np.uint64(0xFFFFFFFF)
    return _finished(_with_half_word(seeds + _P5 + np.uint64(4), word))


def _hash_bytes(column: pa.Array, seeds: Words) -> Words:
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    lengths = np.diff(offsets)
    hashed = np.empty(len(column), dtype=np.uint64)
    by_length = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[by_length], prepend=-1, append=-1))
    for start, end in itertools.pairwise(edges):
        rows = by_length[start:end]
        length = int(lengths[rows[0]])
        matrix = data[offsets[rows].astype(np.int64)[:, None] + np.arange(length)] if length else data[:0].reshape(0, 0)
        hashed[rows] = _hash_matrix(matrix, length, seeds[rows])
    return hashed


def _hash_matrix(matrix: npt.NDArray[np.uint8], length: int, seeds: Words) -> Words:
    """Rows of equally many bytes, each with its own seed."""
    place = 0
    if length >= 32:
        lanes = [seeds + _P1 + _P2, seeds + _P2, seeds + np.uint64(0), seeds - _P1]
        while place + 32 <= length:
            for i, lane in enumerate(lanes):
                word = _words(matrix, place + 8 * i, np.uint64)
                lanes[i] = _rotated(lane + word * _P2, 31) * _P1
            place += 32
        hashed = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
        for lane in lanes:
            hashed = (hashed ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        hashed = seeds + _P5
    hashed = hashed + np.uint64(length)
    while place + 8 <= length:
        hashed = _with_word(hashed, _words(matrix, place, np.uint64))
        place += 8
    if place + 4 <= length:
        hashed = _with_half_word(hashed, _words(matrix, place, np.uint32))
        place += 4
    for at in range(place, length):
        hashed = _rotated(hashed ^ (matrix[:, at].astype(np.uint64) * _P5), 11) * _P1
    return _finished(hashed)


def _words(matrix: npt.NDArray[np.uint8], place: int, kind: type[np.uint64] | type[np.uint32]) -> Words:
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(matrix[:, place : place + width]).view(kind)[:, 0].astype(np.uint64)
