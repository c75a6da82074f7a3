"""Runs and lookups against a dict: newest wins, tombstones, several runs, and keys whose hashes collide."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm.columns import TIME
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.commit import Stamp
from hailstorm.ledger.lookup import all_members, look_up, numbered_rows, numbers_in
from hailstorm.ledger.runs import (
    buckets_of,
    equal_keys,
    hashes_of,
    key_numbers,
    merge_runs,
    sort_by_hash,
    write_run,
)
from hailstorm.ledger.stores.local import LocalStore
from tests.length import examples

# Few hashes and few keys, so that most examples have collisions; the extremes, because hashes are signed.
HASHES = st.sampled_from([-(2**63), -1, 0, 7, 2**63 - 1])
KEYS = st.tuples(st.sampled_from(["a", "b", "c", "d", ""]), st.integers(0, 2))
Layer = dict[tuple[str, int], tuple[int, int, bool]]  # key -> value, moment, deleted


@st.composite
def layers(draw: st.DrawFn) -> tuple[dict[tuple[str, int], int], list[Layer]]:
    """A hash per key, and some layers of state, oldest first."""
    keys = draw(st.lists(KEYS, min_size=1, max_size=12, unique=True))
    hashes = {key: draw(HASHES) for key in keys}
    count = draw(st.integers(1, 5))
    made: list[Layer] = []
    for number in range(count):
        chosen = draw(st.lists(st.sampled_from(keys), unique=True, min_size=1))
        made.append({key: (draw(st.integers(0, 99)), number, draw(st.booleans())) for key in chosen})
    return hashes, made


def table_of(layer: Layer, hashes: dict[tuple[str, int], int]) -> pa.Table:
    rows = sorted(layer.items(), key=lambda item: hashes[item[0]])
    return pa.table(
        {
            "_hash": pa.array([hashes[key] for key, _ in rows], pa.int64()),
            "word": pa.array([key[0] for key, _ in rows], pa.string()),
            "place": pa.array([key[1] for key, _ in rows], pa.int32()),
            "n": pa.array([value for _, (value, _, _) in rows], pa.int64()),
            "_deleted": pa.array([deleted for _, (_, _, deleted) in rows], pa.bool_()),
        }
    )


def opened(table: pa.Table) -> OpenRun:
    hashes = hashes_of(table)
    return OpenRun(table, hashes, int(hashes[0]), int(hashes[-1]))


def newest(made: Sequence[Layer]) -> Layer:
    whole: Layer = {}
    for layer in made:
        whole |= layer
    return whole


@settings(max_examples=examples(40, 100), deadline=None)
@given(layers(), st.booleans())
def test_merged_runs_hold_the_newest_row_of_every_key(
    case: tuple[dict[tuple[str, int], int], list[Layer]], drop_deleted: bool
) -> None:
    hashes, made = case
    merged = merge_runs([table_of(layer, hashes) for layer in reversed(made)], ["word", "place"], drop_deleted)
    found = {(row["word"], row["place"]): (row["n"], row["_deleted"]) for row in merged.to_pylist()}
    assert len(found) == merged.num_rows, "a key is there once"
    expected = {key: (n, deleted) for key, (n, _, deleted) in newest(made).items()}
    assert found == {key: row for key, row in expected.items() if not (drop_deleted and row[1])}
    assert (np.diff(hashes_of(merged).astype(object)) >= 0).all(), "sorted by hash"


@settings(max_examples=examples(40, 100), deadline=None)
@given(layers(), st.data())
def test_a_lookup_finds_the_newest_row_of_every_key(
    case: tuple[dict[tuple[str, int], int], list[Layer]], data: st.DataObject
) -> None:
    hashes, made = case
    missing = {("nowhere", 0): data.draw(HASHES), ("a", 9): data.draw(HASHES)}
    asked = data.draw(st.lists(st.sampled_from([*hashes, *missing]), unique=True, min_size=1))
    queries = table_of(dict.fromkeys(asked, (0, 0, False)), {**hashes, **missing})
    matches = look_up(queries, ["word", "place"], [opened(table_of(layer, hashes)) for layer in reversed(made)])
    whole = newest(made)
    rows = zip(
        queries.to_pylist(), matches.column("n", pa.int64()).to_pylist(), matches.found().to_pylist(), strict=True
    )
    for query, n, found in rows:
        value, _, deleted = whole.get((query["word"], query["place"]), (None, 0, True))
        assert (n, found) == ((None, False) if deleted else (value, True))


@settings(max_examples=examples(40, 100), deadline=None)
@given(layers(), st.data())
def test_a_lookup_by_time_finds_what_a_lookup_in_all_runs_finds(
    case: tuple[dict[tuple[str, int], int], list[Layer]], data: st.DataObject
) -> None:
    hashes, made = case
    missing = {("nowhere", 0): data.draw(HASHES), ("a", 9): data.draw(HASHES)}
    asked = data.draw(st.lists(st.sampled_from([*hashes, *missing]), unique=True, min_size=1))
    queries = timed(table_of(dict.fromkeys(asked, (0, 0, False)), {**hashes, **missing}))
    runs = [opened(timed(table_of(layer, hashes))) for layer in reversed(made)]
    pruned, whole = look_up(queries, ["word", "place"], runs, "place"), look_up(queries, ["word", "place"], runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hailstorm.ledger.cache.FEW_MOMENTS", 0)  # as where each row has a time of its own
        by_latest = look_up(queries, ["word", "place"], [OpenRun.of(run.table) for run in runs], "place")
    for matches in (pruned, by_latest):
        assert matches.column("n", pa.int64()).to_pylist() == whole.column("n", pa.int64()).to_pylist()
        assert matches.found().to_pylist() == whole.found().to_pylist()


@pytest.mark.parametrize("many", [0, 300])
def test_times_of_a_run_are_known_when_they_are_few(many: int) -> None:
    run = opened(pa.table({"_hash": np.arange(4 + many), "at": np.arange(4 + many) // (1 if many else 2)}))
    found = run.moments("at")
    assert found is None if many else found is not None and found.known[found.which].tolist() == [0, 0, 1, 1]
    assert opened(pa.table({"_hash": [1], "at": ["a text"]})).moments("at") is None


@pytest.mark.slow
@settings(max_examples=examples(80, 200), deadline=None)
@given(layers(), st.data())
def test_rows_of_some_numbers_are_the_newest_ones_wherever_they_are(
    case: tuple[dict[tuple[str, int], int], list[Layer]], data: st.DataObject
) -> None:
    _, made = case
    words = sorted({word for layer in made for word, _ in layer})
    hashes = {word: data.draw(HASHES) for word in words}  # of the group: all its rows have it
    by_key = {key: hashes[key[0]] for layer in made for key in layer}
    asked = data.draw(st.sets(st.integers(0, 3)))
    between = data.draw(st.none() | st.tuples(HASHES, HASHES).map(lambda both: (min(both), max(both))))
    tables = [table_of(layer, by_key) for layer in reversed(made)]
    runs = [opened(table.set_column(2, "place", table.column("place").cast(pa.int64()))) for table in tables]

    def wanted(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.isin(numbers, list(asked))

    columns = pa.schema([("n", pa.int64()), ("place", pa.int64()), ("later", pa.int64())])
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr("hailstorm.ledger.cache.FEW_MOMENTS", 0)  # as where each row has a number of its own
        found = numbered_rows(["word", "place"], "place", wanted, columns, runs, between)
    for table in found:
        assert table.column_names == ["word", "_hash", "n", "place", "later"]
        assert table.column("_hash").to_pylist() == sorted(table.column("_hash").to_pylist())
        assert table.column("later").null_count == table.num_rows, "a column that runs do not have yet"
    listed = [((row["word"], row["place"]), row["n"]) for table in found for row in table.to_pylist()]
    assert len(dict(listed)) == len(listed), "each once"
    assert dict(listed) == {
        (word, place): n
        for (word, place), (n, _, deleted) in newest(made).items()
        if place in asked and not deleted and (between is None or between[0] <= hashes[word] <= between[1])
    }
    there = {place for layer in made for _, place in layer}
    assert numbers_in("place", runs).tolist() == sorted(there)


def test_entries_without_a_key_are_one_when_they_are_of_one_time() -> None:
    def entries(*rows: tuple[int, str | None]) -> pa.Table:
        hashes, words = zip(*rows, strict=True)
        nothing = pa.repeat(False, len(rows))
        return pa.table({"_hash": hashes, "word": pa.array(words, pa.string()), "_deleted": nothing})

    merged = merge_runs([entries((7, None), (9, None)), entries((7, "a"), (7, None))], ["word"], drop_deleted=True)
    assert merged.select(["_hash", "word"]).to_pylist() == [
        {"_hash": 7, "word": None},
        {"_hash": 7, "word": "a"},
        {"_hash": 9, "word": None},
    ]


def timed(table: pa.Table) -> pa.Table:
    """With the place as a time in microseconds."""
    return table.set_column(2, "place", table.column("place").cast(pa.int64()).cast(TIME))


@settings(max_examples=examples(25, 60), deadline=None)
@given(layers(), st.lists(HASHES, unique=True, min_size=1), st.none() | st.integers(-1, 2))
def test_all_members_of_a_hash_are_found(
    case: tuple[dict[tuple[str, int], int], list[Layer]], asked: list[int], moment: int | None
) -> None:
    hashes, made = case
    tables = [timed(table_of(layer, hashes)) for layer in reversed(made)]
    after = None if moment is None else ("place", moment)
    found = all_members(np.array(sorted(asked), dtype=np.int64), [opened(table) for table in tables], after)
    expected = [
        [
            row
            for row, place in zip(table.to_pylist(), table.column("place").cast(pa.int64()).to_pylist(), strict=True)
            if row["_hash"] in asked and (moment is None or place > moment)
        ]
        for table in tables
    ]
    assert [table.to_pylist() for table in found] == [rows for rows in expected if rows]


def test_a_column_that_a_run_does_not_have_yet_is_null() -> None:
    run = opened(pa.table({"_hash": [1, 2], "k": ["a", "b"], "n": [10, 20], "_deleted": [False, False]}))
    matches = look_up(pa.table({"_hash": [1, 3], "k": ["a", "c"]}), ["k"], [run])
    assert matches.column("total", pa.float64()).to_pylist() == [None, None]
    assert matches.column("n", pa.int64()).to_pylist() == [10, None]


def test_a_column_whose_type_became_wider_is_cast() -> None:
    run = opened(pa.table({"_hash": [1], "k": ["a"], "n": pa.array([10], pa.int32()), "_deleted": [False]}))
    matches = look_up(pa.table({"_hash": [1], "k": ["a"]}), ["k"], [run])
    for type_ in (pa.int32(), pa.int64()):  # whoever asked before
        found = matches.column("n", type_)
        assert (found.type, found.to_pylist()) == (type_, [10])


def test_runs_with_other_columns_are_merged_with_nulls() -> None:
    old = pa.table({"_hash": [1, 2], "k": ["a", "b"], "n": [1, 2], "_deleted": [False, False]})
    new = pa.table({"_hash": [2], "k": ["b"], "n": [3], "most": [9], "_deleted": [False]})
    rows = merge_runs([new, old], ["k"], drop_deleted=True).select(["k", "n", "most"]).to_pylist()
    assert rows == [{"k": "a", "n": 1, "most": None}, {"k": "b", "n": 3, "most": 9}]


def test_a_global_state_has_one_row_and_no_key() -> None:
    def one(n: int, deleted: bool = False) -> pa.Table:
        return pa.table({"_hash": pa.array([0], pa.int64()), "n": [n], "_deleted": [deleted]})

    assert merge_runs([one(3), one(2), one(1)], [], drop_deleted=True).column("n").to_pylist() == [3]
    found = look_up(pa.table({"_hash": pa.array([0], pa.int64())}), [], [opened(one(3)), opened(one(2))])
    assert found.column("n", pa.int64()).to_pylist() == [3]
    gone = look_up(pa.table({"_hash": pa.array([0], pa.int64())}), [], [opened(one(3, True)), opened(one(2))])
    assert gone.found().to_pylist() == [False]


KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "a", "ä", "a\x00b"]),
    (pa.binary(), [b"", b"a", b"\xff"]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    (pa.float64(), [0.0, 1.5, math.inf, math.nan]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [datetime(2026, 1, 1).date(), datetime(1969, 1, 1).date()]),
    (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, 1, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-1.50")]),
    (pa.list_(pa.string()), [[], ["a"], ["a", "b"], [None]]),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": "a"}, {"x": 1, "y": None}]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@pytest.mark.parametrize("collide", [False, True], ids=["own hashes", "one hash"])
def test_keys_of_every_type_are_told_apart_and_found_again(kind: pa.DataType, values: list[Any], collide: bool) -> None:
    def rows(n: int) -> pa.Table:
        hashes = [5 if collide else i for i in range(len(values))]
        columns = {"_hash": pa.array(hashes, pa.int64()), "k": pa.array(values, kind), "n": [n] * len(values)}
        return pa.table({**columns, "_deleted": [False] * len(values)})

    found = look_up(rows(0), ["k"], [opened(rows(2)), opened(rows(1))])
    assert found.column("n", pa.int64()).to_pylist() == [2] * len(values)
    merged = merge_runs([rows(2), rows(1), rows(0)], ["k"], drop_deleted=True)
    assert merged.column("n").to_pylist() == [2] * len(values)
    assert sorted(map(repr, merged.column("k").to_pylist())) == sorted(map(repr, rows(0).column("k").to_pylist()))


def test_merging_large_groups_of_one_hash_is_not_quadratic() -> None:
    """Members of a group all have the hash of the group: collisions are the rule there."""
    groups, members = 20_000, 5
    hashes = np.repeat(np.arange(groups, dtype=np.int64), members)
    identity = [f"m{i}" for i in range(groups * members)]
    table = pa.table({"_hash": hashes, "id": identity, "_deleted": np.zeros(groups * members, dtype=np.bool_)})
    began = time.process_time()
    merged = merge_runs([table.slice(0, 10_000), table], ["id"], drop_deleted=True)
    assert merged.num_rows == groups * members
    assert time.process_time() - began < 2.0


def test_sorting_keeps_the_order_of_equal_hashes() -> None:
    table = sort_by_hash(pa.table({"_hash": pa.array([3, 1, 3, 1], pa.int64()), "n": [0, 1, 2, 3]}))
    assert table.column("n").to_pylist() == [1, 3, 0, 2]


def test_a_bucket_is_the_top_eight_bits_of_a_hash() -> None:
    hashes = np.array([0, 2**56, 2**63 - 1, -1, -(2**63)], dtype=np.int64)
    assert buckets_of(hashes).to_pylist() == [0, 1, 127, 255, 128]


def test_a_written_run_says_what_is_in_it(tmp_path: Path) -> None:
    table = pa.table({"_hash": pa.array([-9, 0, 12], pa.int64()), "k": ["a", "b", "c"], "_deleted": [False] * 3})
    run = write_run(LocalStore(tmp_path), "counts", table, Stamp(4, 1))
    assert (run.seq, run.rows, run.first, run.last) == (4, 3, -9, 12)
    assert (tmp_path / "state" / "counts" / f"{run.id}.parquet").stat().st_size == run.bytes


def test_entries_of_an_agenda_about_one_key_at_several_times_all_stay() -> None:
    def entries(times: Sequence[int], keys: Sequence[str]) -> pa.Table:
        return pa.table({"_hash": pa.array(times), "k": pa.array(keys), "_deleted": pa.repeat(False, len(keys))})

    merged = merge_runs([entries([7, 7], ["a", "b"]), entries([4, 4, 7], ["a", "b", "a"])], ["k"], drop_deleted=True)
    assert [(row["_hash"], row["k"]) for row in merged.to_pylist()] == [(4, "a"), (4, "b"), (7, "a"), (7, "b")]


def test_nested_keys_that_are_equal_to_spark_are_one_key() -> None:
    values = [[0.0, None], [-0.0, None], [math.nan], [math.nan], [None, 0.0], []]
    for keys in (values, [{"p": value} for value in values]):
        table = pa.table({"k": keys})
        numbers = key_numbers(table, np.arange(6)).tolist()
        assert [numbers.index(number) for number in numbers] == [0, 0, 2, 2, 4, 5]
        assert equal_keys(table, np.array([0, 2, 0]), table, np.array([1, 3, 4])).tolist() == [True, True, False]
