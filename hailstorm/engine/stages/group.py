"""Grouping in Arrow: one row per key with the lifted state, without a trip through the JVM.

Runs in the pass that already holds the rows, when every monoid of the fold can be lifted in Arrow. The fold has to
sort by hash anyway, so sorting is also how it groups: rows of one key are neighbours, and sums are taken between
their borders. It gives what Spark's `groupBy(key).agg(lift)` gives, sorted by hash.

Of several tasks, each groups what it has, in parts of a size that memory holds: fewer rows go through the JVM, and
whoever owns a key reduces its parts (reduce.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.algebra.monoid import ArrowLift
from hailstorm.columns import EVENT_TIME, HASH, MEMBERS, STATE, TIME, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.arrays import integers, order_by, order_of
from hailstorm.ledger.cache import Moments
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.runs import Hashes, Positions, equal_keys, key_numbers

_SAMPLE = 1_000  # rows
_PART_BYTES = 256 << 20
_MANY_ROWS = 10_000
_SPREAD = np.int64(-7046029254386353131)  # odd: windows of one key get different hashes
_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64())


@dataclass(frozen=True)
class Lifted:
    """One monoid: the columns it reads, and how it lifts them."""

    name: str
    inputs: tuple[str, ...]
    lift: ArrowLift


@dataclass(frozen=True)
class GroupRows:
    key: tuple[str, ...]
    lifts: tuple[Lifted, ...]
    weight: str = ""  # of a fold of a table, how often a row counts: 1, -1, or not at all (false)
    parts: pa.Schema | None = None  # of several tasks: the columns in which parts go to those who own the keys
    hashed: tuple[str, ...] | None = None  # what `_hash` is of, and rows are sorted by; None: the key

    phase = "merge"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept: list[pa.RecordBatch] = []
        held = 0
        for batch in batches:
            if batch.num_rows:
                # Only what is read is held, and copied into one piece.
                kept.append(batch.select(self._reads))
                held += kept[-1].nbytes
            if self.parts is not None and held > _PART_BYTES:
                yield self._part(kept)
                kept, held = [], 0
        if kept:
            yield self._part(kept)

    def _part(self, kept: list[pa.RecordBatch]) -> pa.RecordBatch:
        grouped = self._grouped(pa.Table.from_batches(kept).combine_chunks())
        if self.parts is None:
            return grouped
        columns = [grouped.column(field.name).cast(field.type) for field in self.parts]
        return pa.RecordBatch.from_arrays(columns, schema=self.parts)

    @property
    def _reads(self) -> list[str]:
        inputs = [name for lifted in self.lifts for name in lifted.inputs]
        return list(dict.fromkeys([*self.key, *inputs, *([self.weight] if self.weight else ()), EVENT_TIME]))

    def _grouped(self, rows: pa.Table) -> pa.RecordBatch:
        keys = rows.select(list(self.key))
        by_window = groups_by_window(keys)
        hashes = of_rest = None
        if by_window is not None:
            order, starts, of_rest = by_window
        elif (known := few_texts(keys)) is not None:
            hashes, order, starts = groups_of_texts(known)
        else:
            hashes = hash_columns([column.combine_chunks() for column in keys.columns], rows.num_rows)
            order, starts = groups_of(keys, hashes)
            hashes = hashes[order[starts]] if self.hashed is None else None
        indices = pa.array(order)
        firsts = pa.array(order[starts])
        columns: dict[str, pa.Array] = {name: keys.column(name).combine_chunks().take(firsts) for name in self.key}
        sorted_columns: dict[str, pa.Array] = {}
        for name in {name for lifted in self.lifts for name in lifted.inputs}:
            sorted_columns[name] = rows.column(name).combine_chunks().take(indices)
        weights = None
        if self.weight:
            counted = rows.column(self.weight).combine_chunks().cast(pa.int64()).take(indices)
            columns[MEMBERS] = reduced(counted, "sum", starts, len(order))
            if rows.schema.field(self.weight).type != pa.bool_():  # members are all there, so none is taken back
                weights = counted.to_numpy()
        for lifted in self.lifts:
            inputs = [sorted_columns[name] for name in lifted.inputs]
            prepared = lifted.lift.prepare(inputs) if lifted.lift.prepare else inputs
            results = [
                reduced(None if i is None else prepared[i], function, starts, len(order), weights)
                for i, function in lifted.lift.aggregates
            ]
            columns[STATE + lifted.name] = lifted.lift.state(results)
        time = rows.column(EVENT_TIME).combine_chunks().cast(pa.int64()).take(indices)
        columns[EVENT_TIME] = reduced(time, "max", starts, len(order)).cast(TIME)
        if hashes is None:
            hashes = self._hashes(columns, of_rest, len(starts))
        grouped = pa.RecordBatch.from_pydict({**columns, HASH: pa.array(hashes)})
        return grouped if (hashes[1:] >= hashes[:-1]).all() else grouped.take(pa.array(order_of(hashes)))

    def _hashes(self, columns: dict[str, pa.Array], of_rest: Hashes | None, count: int) -> Hashes:
        """Of groups. `of_rest` are the hashes of the key but its window, if they are known."""
        hashed, bounds = self.key if self.hashed is None else self.hashed, (WINDOW_START, WINDOW_END)
        if of_rest is not None and hashed == self.key[:-2]:
            return of_rest
        if of_rest is not None and hashed[-2:] == bounds and len(hashed) > 2:
            return hash_columns([columns[name] for name in bounds], count, of_rest)
        return hash_columns([columns[name] for name in hashed], count)


def few_texts(keys: pa.Table) -> pa.DictionaryArray | None:
    """The keys as numbers of different texts, where they are one column of texts that are there several times each, by
    the first of them. Then a text is hashed once, and none is compared."""
    if keys.num_columns != 1 or not pa.types.is_string(keys.schema.types[0]):
        return None
    texts = keys.column(0).combine_chunks()
    first = texts.slice(0, _SAMPLE)
    if texts.null_count or len(first.unique()) > len(first) // 2:
        return None
    return texts.dictionary_encode()


def groups_of_texts(texts: pa.DictionaryArray) -> tuple[npt.NDArray[np.int64], Positions, Positions]:
    """The hash of each different text, sorted; the rows in that order, those of one text as they came; and where each
    text begins."""
    hashes = hash_columns([texts.dictionary], len(texts.dictionary))
    by_hash = order_of(hashes)
    place = np.empty(len(hashes), dtype=np.int64)
    place[by_hash] = np.arange(len(hashes))
    places = place[texts.indices.to_numpy()]
    counts = np.bincount(places, minlength=len(hashes))
    return hashes[by_hash], _order_below(places, len(hashes)), np.cumsum(counts) - counts


def groups_by_window(keys: pa.Table) -> tuple[Positions, Positions, Hashes | None] | None:
    """The order in which rows of one key and window are neighbours, and where each of them begins: as `groups_of`, but
    not sorted by hash, which is that of the whole key. And of each of them the hash of the key but its window, if that
    is known. None where rows have no windows, or many different ones, or are
    so few that it does not pay.

    A tick's rows are in few windows, so a window is a small number. Then a row costs what it would cost without one,
    and only one row of each group has to be hashed with the bounds of its window.
    """
    if keys.num_rows < _MANY_ROWS or not {WINDOW_START, WINDOW_END} <= set(keys.column_names):
        return None
    if keys.column(WINDOW_START).null_count or keys.column(WINDOW_END).null_count:
        return None  # columns of the user's that are called so
    start, end = Moments.of(keys, WINDOW_START), Moments.of(keys, WINDOW_END)
    if start is None or end is None:
        return None
    many = len(start.known) * len(end.known)
    windows = start.which * np.int64(len(end.known)) + end.which if many > 1 else np.zeros(1, dtype=np.int64)
    others = keys.drop_columns([WINDOW_START, WINDOW_END])
    if (texts := few_texts(others)) is not None:
        return *_neighbours(texts.indices.to_numpy() * np.int64(many) + windows, len(texts.dictionary) * many), None
    hashes = hash_columns([column.combine_chunks() for column in others.columns], keys.num_rows)
    if many > 1:
        spread, others = hashes ^ windows * _SPREAD, others.append_column(WINDOW_START, pa.array(windows))
    else:
        spread = hashes
    order, starts = groups_of(others, spread)
    return order, starts, hashes[order[starts]]


def _neighbours(numbers: Positions, many: int) -> tuple[Positions, Positions]:
    """The order in which equal numbers, which are below `many`, are neighbours, and where each begins."""
    order = _order_below(numbers, many)
    numbers = numbers[order]
    return order, np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))


def _order_below(numbers: Positions, many: int) -> Positions:
    """The order of numbers that are below `many`. Small ones are sorted in no time."""
    return np.argsort(numbers.astype(np.uint16), kind="stable") if many < 1 << 16 else order_of(numbers)


def groups_of(keys: pa.Table, hashes: npt.NDArray[np.int64]) -> tuple[Positions, Positions]:
    """The order in which rows of one key are neighbours, sorted by hash, and where each key begins.

    Rows of a key stay in their order.
    """
    order = order_of(hashes)
    sorted_hashes = hashes[order]
    same = sorted_hashes[1:] == sorted_hashes[:-1]
    if keys.num_columns and same.any() and not _are_equal(keys, order, same):
        # Different keys of one hash are mixed up: number the keys, and sort by that, too.
        numbers = key_numbers(keys, np.arange(keys.num_rows))
        order = order_by(hashes, numbers)
        numbers = numbers[order]
        same = numbers[1:] == numbers[:-1]
    return order, np.concatenate(([0], np.flatnonzero(~same) + 1)).astype(np.int64)


def neighbours_of(keys: pa.Table, hashes: npt.NDArray[np.int64]) -> Positions | None:
    """Where each key begins, where rows are sorted by hash and those of one key are neighbours; else None."""
    fresh = hashes[1:] != hashes[:-1]
    if (hashes[1:] < hashes[:-1]).any():
        return None
    same = np.flatnonzero(~fresh)
    if keys.num_columns and len(same) and not _equal_or_both_null(keys, same, same + 1).all():
        return None
    return np.concatenate(([0], np.flatnonzero(fresh) + 1))


def reduced(
    column: pa.Array | None, function: str, starts: Positions, count: int, weights: Positions | None = None
) -> pa.Array:
    """An aggregate of each group of neighbours: count_all, count, sum, min or max. Null for a group of nulls.

    With weights a row counts so often, also negatively: of sums and counts only, which can take rows back.
    """
    if weights is not None:
        return _weighted(column, function, starts, weights)
    if column is None or function == "count_all":
        return pa.array(np.diff(np.append(starts, count)))
    if function == "count":
        if not column.null_count:
            return pa.array(np.diff(np.append(starts, count)))
        valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        return pa.array(np.add.reduceat(valid, starts))
    if column.type not in _NUMBERS or (column.null_count and function != "sum"):
        return _reduced_by_arrow(column, function, starts, count)
    values = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    if function == "sum":
        wide = values if column.type == pa.float64() else values.astype(np.int64, copy=False)
        empty = None
        if column.null_count:
            empty = reduced(column, "count", starts, count).to_numpy() == 0
        return pa.array(np.add.reduceat(wide, starts), mask=empty)
    best = np.maximum if function == "max" else np.minimum
    return pa.array(best.reduceat(values, starts), type=column.type)


def _weighted(column: pa.Array | None, function: str, starts: Positions, weights: Positions) -> pa.Array:
    assert function in ("count_all", "count", "sum"), function
    if column is not None and column.null_count:
        weights = np.where(column.is_valid().to_numpy(zero_copy_only=False), weights, 0)
    if column is None or function != "sum":
        return pa.array(np.add.reduceat(weights, starts))
    values = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return pa.array(np.add.reduceat(values.astype(np.int64, copy=False) * weights, starts))


def _reduced_by_arrow(column: pa.Array, function: str, starts: Positions, count: int) -> pa.Array:
    groups = np.zeros(count, dtype=np.int64)
    groups[starts[1:]] = 1
    table = pa.table({"group": np.cumsum(groups), "value": column})
    # Without threads the groups come out in the order in which they came in.
    result = table.group_by("group", use_threads=False).aggregate([("value", function)])
    return result.column(f"value_{function}").combine_chunks()


def _are_equal(keys: pa.Table, order: Positions, same: npt.NDArray[np.bool_]) -> bool:
    """Whether the rows that are neighbours in this order, where `same` says that their hashes are equal, have equal
    keys. Nulls are equal."""
    neighbours, compared = None, None
    for column in keys.columns:
        values = column.combine_chunks()
        if not values.null_count and (pa.types.is_int64(values.type) or pa.types.is_timestamp(values.type)):
            numbers = integers(values.cast(pa.int64()))
            # As the end of a window, which is its start and its size: equal where that is. Going through the rows in
            # another order costs many times more.
            if compared is not None and _are_all_equal(numbers - compared):
                continue
            ordered, compared = numbers[order], numbers
            if (same & (ordered[1:] != ordered[:-1])).any():
                return False
            continue
        if neighbours is None:
            neighbours = np.flatnonzero(same)
        one = pa.table({"key": values})
        if not _equal_or_both_null(one, order[neighbours + 1], order[neighbours]).all():
            return False
    return True


def _are_all_equal(numbers: npt.NDArray[np.int64]) -> bool:
    return bool((numbers == numbers[0]).all())


def _equal_or_both_null(keys: pa.Table, left: Positions, right: Positions) -> npt.NDArray[np.bool_]:
    if not any(column.null_count for column in keys.columns):
        return equal_keys(keys, left, keys, right)
    numbers = key_numbers(keys, np.arange(keys.num_rows))
    return np.equal(numbers[left], numbers[right])


def can_reduce(columns: Sequence[pa.DataType]) -> bool:
    return not any(pa.types.is_nested(type_) or pa.types.is_floating(type_) for type_ in columns)
