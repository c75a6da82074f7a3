"""Groups of rows by key: neighbours in an order by hash, also where different keys have one hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.engine.stages.group import few_texts, groups_of, groups_of_texts
from hailstorm.ledger.hashing import hash_columns


@pytest.mark.parametrize("in_any_order", [False, True])
@pytest.mark.parametrize("beyond", [5, None])
def test_keys_of_one_hash_are_groups_of_their_own(in_any_order: bool, beyond: int | None) -> None:
    """The second column says the same as the first, or tells apart what the first does not."""
    chance = np.random.default_rng(1)
    first = chance.integers(0, 4, 500)
    second = first + beyond if beyond is not None else chance.integers(0, 3, 500)
    keys = pa.table({"start": first, "end": second})
    order, starts = groups_of(keys, first // 2, in_any_order)  # each hash is that of two keys, or of six
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
