"""What users' functions give: rows as columns of the declared types, or why they are not.

Bolts and processes convert all rows at once (`columns_of`), and look at them one by one (`check_row`) only when that
fails, to find whose row it was.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from hailstorm.topology.exact_values import Misfit, exact_array, exact_value


def rows_of(result: Any) -> list[Any]:
    """The rows of one result, whatever they are. A text would be taken apart into letters."""
    return [result] if is_one(result) else list(result)


def is_one(result: Any) -> bool:
    """Whether it is at most one row, and not several: a number, for `check_row` to refuse, too."""
    return isinstance(result, Mapping | str | bytes) or not hasattr(result, "__iter__")


def columns_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[pa.Array] | None:
    """The rows as columns. None when anything of them is not as declared."""
    names, width = set(schema.names), len(schema)
    try:
        if set(map(len, rows)) <= {width}:  # then what has every declared name has no other
            arrays = [exact_array(list(map(itemgetter(f.name), rows)), f.type, f.name) for f in schema]
        elif all(row.keys() <= names for row in rows):
            arrays = [exact_array([row.get(f.name) for row in rows], f.type, f.name) for f in schema]
        else:
            return None
    except Exception:  # what a function gives may be of any type, and fail in any way
        return None
    missing = any(array.null_count and not f.nullable for f, array in zip(schema, arrays, strict=True))
    return None if missing else arrays


def check_row(step: str, row: Any, schema: pa.Schema) -> None:
    """Raises Misfit when a row is not as declared."""
    if not isinstance(row, Mapping):
        raise Misfit(f"'{step}' gave {row!r:.80} ({type(row).__name__}), and a row is a dict")
    if not row.keys() <= set(schema.names):
        extra = sorted(map(str, set(row) - set(schema.names)))
        raise Misfit(f"'{step}' gave '{extra[0]}', which it does not declare; it returns: {', '.join(schema.names)}")
    for column in schema:
        value = row.get(column.name)
        if value is None and not column.nullable:
            raise Misfit(f"'{column.name}' is NOT NULL, and is null or missing")
        exact_value(value, column.type, column.name)


def reason_of(error: Exception) -> str:
    """`ValueError: bad (app.py:12)`: the innermost line of the user's, not of ours."""
    if isinstance(error, Misfit):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)
    user = [frame for frame in where if "/hailstorm/engine/" not in frame.filename]
    place = f" ({user[-1].filename.rpartition('/')[2]}:{user[-1].lineno})" if user else ""
    return f"{type(error).__name__}: {error}{place}"
