"""A native monoid of its description: for whoever reads a ledger without the app that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import hailstorm.algebra  # noqa: F401 - every family must be known
from hailstorm.algebra.monoid import SqlMonoid


def native_monoid(description: Mapping[str, Any]) -> SqlMonoid:
    """The one that gave this as `describe()`. KeyError for a monoid that this version does not know."""
    arguments = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in description.items()
        if name != "monoid"
    }
    kinds = {kind.word: kind for kind in _kinds(SqlMonoid) if hasattr(kind, "word")}
    made: SqlMonoid = kinds[description["monoid"]](**arguments)
    return made


def _kinds(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)
