"""Comparing what the engine gave with what the oracle says, value by value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.generated.batch import Row


def plain(value: Any, signed_zero: bool = True) -> Any:
    """A value as something that can be compared and hashed: NaN equals itself; maps have no order."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return "-0.0" if signed_zero and not value and math.copysign(1, value) < 0 else value
    if isinstance(value, dict):
        return ("struct", *((name, plain(item, signed_zero)) for name, item in value.items()))
    if isinstance(value, list):
        items = [plain(item, signed_zero) for item in value]
        if value and isinstance(value[0], tuple):
            return ("map", *sorted(items, key=repr))
        return ("array", *items)
    if isinstance(value, tuple):
        return tuple(plain(item, signed_zero) for item in value)
    return value


def equal(expected: Any, found: Any) -> bool:
    """Of tables: -0.0 counts as 0.0, and some values are only near."""
    if hasattr(expected, "fits"):
        return bool(expected.fits(found))
    return bool(plain(expected, False) == plain(found, False))


def stream_difference(names: Sequence[str], expected: Sequence[Row], found: Sequence[Row]) -> str | None:
    """What a stream lacks and has too much, or None. What a look-up has found in a table may be only near."""

    def counted(rows: Sequence[Row]) -> Counter[Any]:
        # A row from before an edit lacks the columns that its step has got since.
        return Counter(tuple(plain(row.get(name)) for name in names) for row in rows)

    near = [row for row in expected if any(hasattr(row.get(name), "fits") for name in names)]
    exact = [row for row in expected if not any(hasattr(row.get(name), "fits") for name in names)]
    left = _without_near(names, near, found)
    if left is None:
        return f"lacks one of {near[:3]}"
    lacks, has = counted(exact) - counted(left), counted(left) - counted(exact)
    if not lacks and not has:
        return None
    return f"lacks {_few(lacks)}\nhas too much {_few(has)}"


def _without_near(names: Sequence[str], near: Sequence[Row], found: Sequence[Row]) -> list[Row] | None:
    """The rows that are left when each of these has taken one that fits; None when one has found none."""
    left = list(found)
    for row in near:
        place = next(
            (i for i, one in enumerate(left) if all(equal(row.get(name), one.get(name)) for name in names)), None
        )
        if place is None:
            return None
        del left[place]
    return left


def table_difference(
    key: Sequence[str], names: Sequence[str], expected: Sequence[Row], found: Sequence[Row]
) -> str | None:
    """The first rows that are missing, too many or wrong, or None."""
    want, have = ({tuple(plain(row[name], False) for name in key): row for row in rows} for rows in (expected, found))
    lines = []
    if len(have) < len(found):
        lines.append("a key twice")
    for identity in [*want, *(identity for identity in have if identity not in want)]:
        left, right = want.get(identity), have.get(identity)
        if left is None or right is None:
            lines.append(f"key {identity}: expected {left}, found {right}")
        else:
            lines += [
                f"key {identity}: {name} should be {left[name]!r}, and is {right.get(name)!r}"
                for name in names
                if name not in key and not equal(left[name], right.get(name))
            ]
    return "\n".join(lines[:4]) or None


def after_changes(key: Sequence[str], changes: Sequence[Row], edited: bool) -> tuple[list[Row], str | None]:
    """The table that changes lead to, and what is wrong with one of them: it must fit to what was there before it.

    Each has the columns of its time: a column that was added later is null in what was there before. A table that was
    `edited` is sent as a whole once more: then rows may come again, as they are.
    """
    table: dict[Any, Row] = {}
    for change in changes:
        values = [name for name in change if name not in key and not name.startswith("_")]
        identity = tuple(plain(change[name], False) for name in key)
        kind, old, before = change["_kind"], change["_old"], table.get(identity)
        if edited and before is not None and kind == "insert":
            if any(not equal(before.get(name), change[name]) for name in values):
                return [], f"{identity} comes again as another row: {change}, where there was {before}"
            table[identity] = {name: change[name] for name in (*key, *values)}
            continue
        if (before is None) != (kind == "insert"):
            return [], f"an {kind} of {identity}, where there was {before}"
        if before is None:
            if old is not None:
                return [], f"an insert of {identity} with an _old: {old}"
        elif old is None or any(not equal(before.get(name), old[name]) for name in values):
            return [], f"_old of {identity} is {old}, and there was {before}"
        if kind == "delete":
            if any(change[name] is not None for name in values):
                return [], f"a delete with values: {change}"
            del table[identity]
            continue
        if before is not None and all(plain(before.get(name)) == plain(change[name]) for name in values):
            return [], f"an update that changes nothing: {change}"
        table[identity] = {name: change[name] for name in (*key, *values)}
    return list(table.values()), None


def without_repeats(key: Sequence[str], changes: Sequence[Row]) -> list[Row]:
    """Without the rows that an edited table is sent with once more: sinks get these, and no stream below it."""
    there, kept = set(), []
    for change in changes:
        identity = tuple(plain(change[name], False) for name in key)
        if change["_kind"] != "insert" or identity not in there:
            kept.append(change)
        if change["_kind"] == "delete":
            there.discard(identity)
        else:
            there.add(identity)
    return kept


def _few(rows: Counter[Any]) -> str:
    shown = [f"{count} x {row}" if count > 1 else f"{row}" for row, count in list(rows.items())[:3]]
    return "\n  ".join(["", *shown, *(["..."] if len(rows) > 3 else [])]) if shown else "nothing"
