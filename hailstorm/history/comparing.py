"""Two states of one step, compared row by row: as arrays, a range of hashes at a time, without Python per row.

Most values must be equal. Sums of floats depend on the order of additions in their last bits, and sketches are
estimates: these are compared with a tolerance, and the comparison says which columns they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import HASH
from hailstorm.errors import UsageError, WordError
from hailstorm.ledger.arrays import flags
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.equality import equal_values, one_chunk
from hailstorm.ledger.lookup import look_up
from hailstorm.ledger.reader import State
from hailstorm.sinks.values import python_values

FLOATS = 1e-9  # how far floats may be from each other, as a part of the larger one
SKETCHES = 0.1
PRESENCE = math.inf  # of estimates that are no numbers, or that no bound holds for: whether there is one
EXAMPLES = 5
_PIECE = 500_000  # rows

Tolerances = Mapping[str, float]  # by column, where it is not exact
_Flags = npt.NDArray[np.bool_]
_Row = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One key whose values are not the same. None: one side does not have it."""

    key: _Row
    one: _Row | None
    other: _Row | None


@dataclass(frozen=True)
class Comparison:
    rows: int = 0  # keys that one side or both have
    different: int = 0
    examples: tuple[Difference, ...] = ()
    floats: tuple[str, ...] = ()  # columns that hold floats, which need not be equal in their last bits

    @property
    def equal(self) -> int:
        """How many rows are the same on both sides."""
        return self.rows - self.different

    def __add__(self, other: Comparison) -> Comparison:
        examples = (*self.examples, *other.examples)[:EXAMPLES]
        floats = tuple(dict.fromkeys((*self.floats, *other.floats)))
        return Comparison(self.rows + other.rows, self.different + other.different, examples, floats)


@dataclass(frozen=True)
class KeyRange:
    """Keys of which the first column is between these, both included. None: there is no such end."""

    low: str | None
    high: str | None

    @staticmethod
    def parse(text: str) -> KeyRange:
        """As a person types it: `a..f`, `100..` or `..99`."""
        low, dots, high = text.partition("..")
        if not dots or not (low or high):
            raise WordError(84, f"'{text}' is no range of keys", hint="Write both ends, or one: a..f, 100.., ..99")
        return KeyRange(low or None, high or None)

    def of(self, rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
        if not key:
            return rows
        column = rows.column(key[0])
        low, high = self.ends(key[0], column.type)
        if low is not None:
            rows = rows.filter(pc.greater_equal(column, low))
            column = rows.column(key[0])
        if high is not None:
            rows = rows.filter(pc.less_equal(column, high))
        return rows

    def ends(self, column: str, type_: pa.DataType) -> tuple[pa.Scalar | None, pa.Scalar | None]:
        """Both ends as a key column has them. Raises UsageError when it cannot."""
        try:
            low, high = (None if end is None else pa.scalar(end).cast(type_) for end in (self.low, self.high))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                8,
                f"key column '{column}' is {type_}, and {self.low or ''}..{self.high or ''} is no range of it",
                hint="Audit only steps that have such keys: --step STEP",
            ) from error
        return low, high


def compare_states(
    one: State, other: State, tolerances: Tolerances, keys: KeyRange | None = None, left_out: Collection[int] = ()
) -> Comparison:
    """Both are of the same step, at other moments or in other ledgers. Keys with the hashes `left_out` do not count."""
    shape = one.live.steps[one.step]
    found = Comparison()
    for first, last in _ranges(max(_rows(one), _rows(other))):
        sides = [state.hashed(first, last) for state in (one, other)]
        if keys is not None:
            sides = [None if side is None else keys.of(side, shape.key) for side in sides]
        if left_out:
            gone = pa.array(list(left_out), pa.int64())
            sides = [
                None if side is None else side.filter(pc.invert(pc.is_in(side.column(HASH), gone))) for side in sides
            ]
        found += compare_tables(sides[0], sides[1], shape.key, shape.values, tolerances)
    return found


def compare_tables(
    one: pa.Table | None,
    other: pa.Table | None,
    key: tuple[str, ...],
    values: tuple[str, ...],
    tolerances: Tolerances,
) -> Comparison:
    """Both are sorted by `_hash`, with one row per key."""
    if one is None or other is None or not one.num_rows or not other.num_rows:
        there = one if one is not None and one.num_rows else other
        if there is None or not there.num_rows:
            return Comparison()
        alone = [_example(there, place, key, values, there is one) for place in range(min(EXAMPLES, there.num_rows))]
        return Comparison(there.num_rows, there.num_rows, tuple(alone))
    one, other = one.combine_chunks(), other.combine_chunks()
    matches = look_up(one, key, [OpenRun.of(other)])
    found = flags(matches.found())
    same = found.copy()
    theirs = {name: matches.column(name, one.schema.field(name).type) for name in values}
    for name in values:
        same &= _equal(one_chunk(one.column(name)), theirs[name], tolerances.get(name))
    differing = np.flatnonzero(~same)
    examples = [
        Difference(
            _cells(one, place, key),
            _cells(one, place, values),
            {name: theirs[name][place].as_py() for name in values} if found[place] else None,
        )
        for place in differing[:EXAMPLES].tolist()
    ]
    lacking = other.num_rows - int(found.sum())
    if lacking:
        unmatched = np.flatnonzero(~flags(look_up(other, key, [OpenRun.of(one)]).found()))
        examples += [_example(other, place, key, values, False) for place in unmatched[:EXAMPLES].tolist()]
    floats = tuple(name for name in values if name not in tolerances and has_floats(one.schema.field(name).type))
    return Comparison(one.num_rows + lacking, len(differing) + lacking, tuple(examples[:EXAMPLES]), floats)


def has_floats(type_: pa.DataType) -> bool:
    """Whether values of a type are floats, or have some inside: a map of sums."""
    inside = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_floating(type_) or any(map(has_floats, inside))


def _equal(one: pa.Array, other: pa.Array, tolerance: float | None) -> _Flags:
    if tolerance == PRESENCE:
        return flags(pc.equal(one.is_valid(), other.is_valid()))
    same = flags(equal_values(one, other))
    if tolerance is None and has_floats(one.type):
        tolerance = FLOATS
    if tolerance is None or same.all():
        return same
    places = np.flatnonzero(~same)
    left, right = one.take(pa.array(places)), other.take(pa.array(places))
    if pa.types.is_floating(one.type) or pa.types.is_integer(one.type):
        close = np.isclose(
            left.to_numpy(zero_copy_only=False).astype(float),
            right.to_numpy(zero_copy_only=False).astype(float),
            rtol=tolerance,
            atol=0.0,
        )
        close &= flags(left.is_valid()) & flags(right.is_valid())
    else:  # lists of estimates, maps of sums: rare, and only where they differ
        close = np.array([_is_close(a.as_py(), b.as_py(), tolerance) for a, b in zip(left, right, strict=True)], bool)
    same[places[close]] = True
    return same


def _is_close(one: Any, other: Any, tolerance: float) -> bool:
    match one, other:
        case (int() | float(), int() | float()):
            return math.isclose(one, other, rel_tol=tolerance) or one == other
        case (dict(), dict()):
            return one.keys() == other.keys() and all(_is_close(one[name], other[name], tolerance) for name in one)
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(_is_close(a, b, tolerance) for a, b in zip(one, other, strict=True))
        case _:
            return bool(one == other)


def _example(rows: pa.Table, place: int, key: tuple[str, ...], values: tuple[str, ...], is_one: bool) -> Difference:
    shown = _cells(rows, place, values)
    return Difference(_cells(rows, place, key), shown if is_one else None, None if is_one else shown)


def _cells(rows: pa.Table, place: int, columns: tuple[str, ...]) -> _Row:
    return {name: python_values(rows.column(name).slice(place, 1))[0] for name in columns}


def _rows(state: State) -> int:
    return sum(run.rows for run in state.live.runs.get(state.step, ()))


def _ranges(rows: int) -> Iterator[tuple[int, int]]:
    """The hashes in ranges that hold about so many rows each."""
    count = max(1, -(-rows // _PIECE))
    cuts = [-(2**63) + (2**64 * place) // count for place in range(count + 1)]
    return ((first, after - 1) for first, after in itertools.pairwise(cuts))
