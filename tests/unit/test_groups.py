"""Groups of rows by key: neighbours in an order by hash, also where different keys have one hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.columns import WINDOW_END, WINDOW_START
from hailstorm.engine.stages import group
from hailstorm.engine.stages.group import few_texts, groups_by_window, groups_of, groups_of_texts
from hailstorm.ledger.hashing import hash_columns


@pytest.mark.parametrize("beyond", [5, None])
def test_keys_of_one_hash_are_groups_of_their_own(beyond: int | None) -> None:
    """The second column says the same as the first, or tells apart what the first does not."""
    chance = np.random.default_rng(1)
    first = chance.integers(0, 4, 500)
    second = first + beyond if beyond is not None else chance.integers(0, 3, 500)
    keys = pa.table({"start": first, "end": second})
    order, starts = groups_of(keys, first // 2)  # each hash is that of two keys, or of six
    assert sorted(order.tolist()) == list(range(500))
    found = [
        list(zip(first[part].tolist(), second[part].tolist(), strict=True)) for part in np.split(order, starts[1:])
    ]
    assert all(len(set(group)) == 1 for group in found)
    assert len(found) == len(set(zip(first.tolist(), second.tolist(), strict=True)))


def test_rows_of_a_key_stay_in_their_order() -> None:
    keys = pa.table({"k": pa.array([1, 2, 1, 1, 2])})
    order, starts = groups_of(keys, np.array([9, 3, 9, 9, 3]))
    assert (order.tolist(), starts.tolist()) == ([1, 4, 0, 2, 3], [0, 2])


@pytest.mark.parametrize("different", [1, 40, 70_000])
def test_few_texts_are_grouped_as_their_hashes_would_be(different: int) -> None:
    """More than 65,536 of them, too: their numbers no longer fit into 16 bits."""
    first = [f"w{number % 40}" for number in range(1_000)]
    words = first + [f"w{number * 7 % different}" for number in range(3 * different)]
    keys = pa.table({"word": pa.chunked_array([words[:10], words[10:]], pa.string())})
    known = few_texts(keys)
    assert known is not None
    hashes, order, starts = groups_of_texts(known)
    of_rows = hash_columns([pa.array(words)], len(words))
    expected, begins = groups_of(keys, of_rows)
    assert (order.tolist(), starts.tolist()) == (expected.tolist(), begins.tolist())
    assert hashes.tolist() == of_rows[expected[begins]].tolist()


def test_texts_of_one_hash_are_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hailstorm.engine.stages.group.hash_columns", lambda columns, count: np.zeros(count, np.int64))
    _, order, starts = groups_of_texts(pa.array(["a", "b", "a", "b", "b"]).dictionary_encode())
    assert (order.tolist(), starts.tolist()) == ([0, 2, 1, 3, 4], [0, 2])


@pytest.mark.parametrize("keys", [["a", None, "a", "a"], ["a", "b", "c"], [1, 1, 1]])
def test_null_rare_and_other_keys_are_no_few_texts(keys: list[object]) -> None:
    assert few_texts(pa.table({"k": pa.array(keys)})) is None


@pytest.mark.parametrize("kind", ["numbers", "few texts", "many texts", "nulls", "nothing"])
@pytest.mark.parametrize("windows", [1, 7, 300])
def test_rows_of_few_windows_are_grouped_as_by_all_columns(
    kind: str, windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where windows begin or end together."""
    monkeypatch.setattr(group, "_MANY_ROWS", 0)
    chance = np.random.default_rng(windows)
    count = 2_000
    window = chance.integers(0, windows, count)
    others = {
        "numbers": {"k": pa.array(chance.integers(0, 50, count))},
        "few texts": {"k": pa.array([f"w{number}" for number in chance.integers(0, 50, count)])},
        "many texts": {"k": pa.array([f"w{number}" for number in chance.integers(0, 1_900, count)])},
        "nulls": {"k": pa.array([None if number < 9 else number for number in chance.integers(0, 50, count).tolist()])},
        "nothing": {},
    }[kind]
    keys = pa.table({**others, WINDOW_START: pa.array(window // 2), WINDOW_END: pa.array(window)})
    found = groups_by_window(keys)
    if windows > 256:
        assert found is None
        return
    assert found is not None
    order, starts, hashes = found
    rows = keys.to_pylist()
    groups = [part.tolist() for part in np.split(order, starts[1:])]
    assert all(part == sorted(part) for part in groups)
    expected: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        expected.setdefault(repr(row), []).append(number)
    assert sorted(groups) == sorted(expected.values())
    if hashes is not None:
        assert hashes.tolist() == hash_columns(list(others.values()), count)[order[starts]].tolist()


def test_columns_of_that_name_with_nulls_are_no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_MANY_ROWS", 0)
    columns = {WINDOW_START: pa.array([1, None]), WINDOW_END: pa.array([2, 2])}
    assert groups_by_window(pa.table(columns)) is None
    assert groups_by_window(pa.table({WINDOW_START: pa.array([1, 1])})) is None


def test_a_hash_goes_on_from_that_of_the_columns_before() -> None:
    columns = [pa.array(["a", "b", None]), pa.array([1, 2, 3]), pa.array([7, 7, 7])]
    before = hash_columns(columns[:1], 3)
    assert hash_columns(columns[1:], 3, before).tolist() == hash_columns(columns, 3).tolist()
