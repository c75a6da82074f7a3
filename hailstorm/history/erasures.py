"""What the ledger remembers of erasures: that keys of a step were erased, by their hashes and not the keys themselves.

Audits leave those keys out, and until an erasure is finished `verify` says so.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from hailstorm.ledger.commit import unsealed
from hailstorm.ledger.ledger import ERASED
from hailstorm.ledger.stores.store import Store

Offsets = dict[str, dict[str, tuple[int, ...]]]  # spout -> partition


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """`erased/<id>.json`: that keys of a step were erased, and up to which commit."""

    step: str
    columns: tuple[str, ...]
    hashes: tuple[int, ...]  # of the erased keys, as `_hash` has them
    commit: int
    at: str
    finished: bool = False
    records: Offsets = {}  # that logs lose with the key


def erasures(store: Store) -> Iterator[tuple[str, Erasure]]:
    """Every erasure that was begun, by the name of its file."""
    for name in (f"{ERASED}/{one}" for one in store.list(ERASED)):
        data = store.get(name)
        if data is not None:
            yield name, unsealed(data, Erasure, name)


def unfinished_erasures(store: Store) -> list[tuple[str, Erasure]]:
    return [(name, one) for name, one in erasures(store) if not one.finished]


def erased_hashes(store: Store, names: Container[str]) -> set[int]:
    """The hashes of keys of a step that were erased: what a recomputation has and the state has not. `names` are all
    that the step has had."""
    return {hash_ for _, one in erasures(store) if one.step in names for hash_ in one.hashes}


def with_offsets(one: Offsets, other: Offsets) -> Offsets:
    found: dict[str, dict[str, set[int]]] = {}
    for offsets in (one, other):
        for spout, row in offsets.items():
            for partition, some in row.items():
                found.setdefault(spout, {}).setdefault(partition, set()).update(some)
    return {spout: {p: tuple(sorted(some)) for p, some in row.items()} for spout, row in found.items()}


def erased_records(store: Store) -> dict[str, int]:
    """By spout: how many records its log has lost by erasing."""
    found: dict[str, int] = {}
    for _, one in erasures(store):
        for spout, row in one.records.items():
            found[spout] = found.get(spout, 0) + sum(map(len, row.values()))
    return found
