"""`_hash` in Python: Spark's `xxhash64(key columns)`, bit for bit, without a loop over rows.

The JVM computes it when it aggregates; a pass that aggregates in Arrow needs it here. Columns are chained: the hash
of one is the seed of the next, and a null leaves the seed as it is. Texts are hashed side by side, one word of each
after the other. A test compares with Spark for every type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.ledger.arrays import cast, integers

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

_SEED = 42
_LONG = 4_096  # bytes
_BLOCK = 32_768  # rows: what is computed in between stays in the processor's cache
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


def hash_columns(
    columns: Sequence[pa.Array], count: int, before: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    """The hash of each of so many rows of these columns; of more columns, where the hashes of those `before` these are
    known. No columns, as for a global fold, hash to 0."""
    if not columns:
        return np.zeros(count, dtype=np.int64)
    hashes = np.empty(count, dtype=np.int64)
    for start in range(0, count, _BLOCK):
        block = hashes[start : start + _BLOCK]
        seeds = None if before is None else before[start : start + _BLOCK]
        block[:] = _hash_block([column.slice(start, _BLOCK) for column in columns], len(block), seeds)
    return hashes


def _hash_block(columns: Sequence[pa.Array], count: int, before: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    seeds = np.full(count, _SEED, dtype=np.uint64) if before is None else before.view(np.uint64)
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
        return _hash_longs(_numbers(cast(cast(column, pa.timestamp("us", type_.tz)), pa.int64())), seeds)
    if pa.types.is_int64(type_):
        return _hash_longs(_numbers(column), seeds)
    return _hash_ints(_numbers(cast(column, pa.int32())), seeds)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    filled = column.fill_null(0) if column.null_count else column
    return integers(cast(filled, pa.int64()))


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
    if len(values) and (values == values[0]).all():  # as the bounds of windows are
        values = values[:1]
    return _finished(_with_word(seeds + _P5 + np.uint64(8), values.view(np.uint64)))


def _hash_ints(values: npt.NDArray[np.int64], seeds: Words) -> Words:
    word = values.view(np.uint64) & np.uint64(0xFFFFFFFF)
    return _finished(_with_half_word(seeds + _P5 + np.uint64(4), word))


def _hash_bytes(column: pa.Array, seeds: Words) -> Words:
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    hashed = np.empty(len(column), dtype=np.uint64)
    short = np.flatnonzero(lengths <= _LONG)
    hashed[short] = _hash_short(data, starts[short], lengths[short], seeds[short])
    for row in np.flatnonzero(lengths > _LONG):
        text = data[starts[row] : starts[row] + lengths[row]].tobytes()
        hashed[row] = _hash_long(text, int(seeds[row]))
    return hashed


def _hash_short(data: Bytes, starts: Places, lengths: Places, seeds: Words) -> Words:
    """All rows at once: a loop over the words of the longest, in which the shorter ones drop out."""
    hashed, places = seeds + _P5, starts.copy()
    blocks = lengths // 32
    # The longest first, so that those that are still at work are the first ones.
    rows = np.argsort(-blocks, kind="stable")[: np.count_nonzero(blocks)]
    if len(rows):
        lanes = [seeds[rows] + _P1 + _P2, seeds[rows] + _P2, seeds[rows], seeds[rows] - _P1]
        left = blocks[rows]
        for block in range(int(left[0])):
            active = int(np.searchsorted(-left, -block))
            at = starts[rows[:active]] + 32 * block
            for i, lane in enumerate(lanes):
                word = _words(data, at + 8 * i, np.uint64)
                lane[:active] = _rotated(lane[:active] + word * _P2, 31) * _P1
        mixed = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
        for lane in lanes:
            mixed = (mixed ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
        hashed[rows] = mixed
        places[rows] += 32 * left
    hashed += lengths.astype(np.uint64)
    return _finished(_with_rest(hashed, data, places, starts + lengths))


def _with_rest(hashed: Words, data: Bytes, places: Places, ends: Places) -> Words:
    """The last bytes of each row, fewer than 32: by eight, then four, then single ones."""
    while len(rows := np.flatnonzero(ends - places >= 8)):
        hashed[rows] = _with_word(hashed[rows], _words(data, places[rows], np.uint64))
        places[rows] += 8
    if len(rows := np.flatnonzero(ends - places >= 4)):
        hashed[rows] = _with_half_word(hashed[rows], _words(data, places[rows], np.uint32))
        places[rows] += 4
    while len(rows := np.flatnonzero(ends > places)):
        hashed[rows] = _rotated(hashed[rows] ^ (data[places[rows]].astype(np.uint64) * _P5), 11) * _P1
        places[rows] += 1
    return hashed


def _words(data: Bytes, places: Places, kind: type[np.uint64] | type[np.uint32]) -> Words:
    """The little-endian words at these places."""
    gathered = data[places[:, None] + np.arange(np.dtype(kind).itemsize)]
    words: Words = gathered.view(kind)[:, 0].astype(np.uint64)
    return words


def _hash_long(text: bytes, seed: int) -> int:
    """One long row, in plain Python: there is nothing to do side by side, and numpy's calls would cost more."""
    p1, p2, p4, mask = int(_P1), int(_P2), int(_P4), 2**64 - 1
    lanes = [(seed + p1 + p2) & mask, (seed + p2) & mask, seed, (seed - p1) & mask]
    whole = len(text) - len(text) % 32
    for words in struct.iter_unpack("<4Q", text[:whole]):
        for i, word in enumerate(words):
            lane = (lanes[i] + word * p2) & mask
            lanes[i] = (((lane << 31) | (lane >> 33)) & mask) * p1 & mask
    mixed = 0
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        mixed += (lane << bits) | (lane >> (64 - bits))
    for lane in lanes:
        lane = lane * p2 & mask
        lane = (((lane << 31) | (lane >> 33)) & mask) * p1 & mask
        mixed = (((mixed & mask) ^ lane) * p1 + p4) & mask
    rest = np.frombuffer(text[whole:], dtype=np.uint8)
    hashed = np.array([(mixed + len(text)) & mask], dtype=np.uint64)
    return int(_finished(_with_rest(hashed, rest, np.zeros(1, np.int64), np.array([len(rest)])))[0])
