"""Sorted lists of (key, ...) in SQL: how monoids that are maps inside keep their state.

A list of entries sorted by key, one entry a key, is canonical: the same rows give the same bits in any order of
merges. Spark's maps are not (they keep the order of insertion) and cannot be compared. The SQL here has no
aggregate that makes a map of sums, so a lift collects the rows of its group and collapses them.
"""

from __future__ import annotations


def collapse(entries: str, entry_type: str, combine: str) -> str:
    """SQL that sorts entries by key and combines those of one key: n log n, not n times the number of keys.

    `combine` is SQL for the entry made of `done.open` (so far) and `next`, which have the same key.
    """
    start_type = f"struct<closed:array<{entry_type}>,open:{entry_type}>"
    start = f"cast(named_struct('closed', array(), 'open', null) as {start_type})"
    close = "if(done.open is null, done.closed, array_append(done.closed, done.open))"
    step = (
        f"if(done.open is not null and done.open.key = next.key, "
        f"named_struct('closed', done.closed, 'open', {combine}), "
        f"named_struct('closed', {close}, 'open', next))"
    )
    return f"aggregate(array_sort({entries}), {start}, (done, next) -> {step}, done -> {close})"


def bind(name: str, value: str, body: str) -> str:
    """SQL `let name = value in body`: the value is computed once, however often the body names it."""
    return f"element_at(transform(array({value}), {name} -> {body}), 1)"
