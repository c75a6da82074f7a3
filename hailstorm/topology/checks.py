"""The checks that every step passes when it is declared: names, columns, options, functions.

`topology.py`, `stream.py` and `table.py` call these with the user's line; each raises the matching mistake.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, get_args

from hailstorm.errors import Location
from hailstorm.topology import mistakes
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.schema import Schema
from hailstorm.topology.step import DeliveryMode, OnError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_GROUPINGS = ("hs.shuffle(tasks)", "hs.fields(names)", "hs.everyone(tasks)", "hs.one()")


def check_name(what: str, name: object, at: Location) -> None:
    """Names of topologies and steps become folder names, on stores that ignore case, too."""
    if not isinstance(name, str):
        raise mistakes.bad_name(what, name, "a name is text", "", at)
    if _NAME.fullmatch(name):
        return
    if name.startswith("_"):
        why = "names that start with _ are Hailstorm's own"
    elif not name:
        why = "it is empty"
    elif len(name) > 64:
        why = f"it has {len(name)} characters"
    else:
        wrong = next((c for i, c in enumerate(name) if not _NAME.fullmatch("a" * bool(i) + c)), name[0])
        why = f"{wrong!r} is not allowed" if wrong != name[0] else f"it starts with {wrong!r}"
    better = re.sub(r"[^a-z0-9_-]+", "_", name.lower()).strip("_-").lstrip("0123456789_-")[:64]
    raise mistakes.bad_name(what, name, why, f"Did you mean '{better}'?" if better else "", at)


def check_columns(doing: str, names: Iterable[str], owner: str, schema: Schema, at: Location) -> None:
    for name in names:
        if name not in schema:
            raise mistakes.unknown_column(doing, name, owner, schema, at)


def check_output_name(step: str, name: str, taken: Collection[str], why: str, at: Location) -> None:
    if name.startswith("_"):
        raise mistakes.reserved_name(f"a column of step '{step}'", name, at)
    if name in taken:
        raise mistakes.column_twice(step, name, why, at)


def check_delivery(step: str, value: object, at: Location) -> None:
    if value not in get_args(DeliveryMode):
        raise mistakes.bad_option(step, "delivery", value, get_args(DeliveryMode), at)


def check_grouping(step: str, grouping: object, owner: str, schema: Schema, at: Location) -> None:
    if grouping is None:
        return
    if not isinstance(grouping, Grouping):
        raise mistakes.bad_option(step, "grouping", grouping, _GROUPINGS, at)
    if grouping.kind == "fields":
        if not grouping.names:
            raise mistakes.wrong_argument(step, "groups by no fields", "Name them: hs.fields('user').", at)
        check_columns(f"step '{step}' groups by", grouping.names, owner, schema, at)
    elif not isinstance(grouping.tasks, int) or grouping.tasks < 1:
        advice = f"hs.{grouping.kind} takes a number of tasks of at least 1."
        raise mistakes.wrong_argument(step, f"asks for {grouping.tasks!r} tasks", advice, at)


def check_has_methods(step: str, value: Any, methods: Iterable[str], what: str, advice: str, at: Location) -> None:
    """Sources and sinks are protocols of later packages, so they are known here by their methods only."""
    if isinstance(value, type):
        advice = f"{value.__name__} is a class: make one of it, as in hs.{value.__name__}(...)."
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        raise mistakes.wrong_argument(step, f"got {mistakes.shown(value)}, which is not a {what}", advice, at)


def checked_on_error(step: str, value: OnError, at: Location) -> OnError:
    if value not in get_args(OnError):
        raise mistakes.bad_option(step, "on_error", value, get_args(OnError), at)
    return value
