"""The checks that every step passes when it is declared: names, columns, options, functions.

`topology.py`, `stream.py` and `table.py` call these with the user's line; each raises the matching mistake.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, get_args

from hailstorm.errors import Location
from hailstorm.topology import mistakes
from hailstorm.topology.ends import DeliveryMode
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.schema import Schema
from hailstorm.topology.step import OnError, Step

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TIMES = ("timestamp", "timestamp_ntz", "date")
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


def check_time(step: str, doing: str, column: str, schema: Schema, at: Location) -> None:
    """A column that says when something happened; its type may be one that only Spark knows."""
    if schema.type_of(column) not in (*_TIMES, None):
        why = f"{doing} '{column}', which is not a TIMESTAMP"
        raise mistakes.wrong_argument(step, why, f"'{step}' has: {schema}", at)


def checked_event_time(step: str, column: str | None, schema: Schema, at: Location) -> str | None:
    """The column of a step that says when its rows happened, if it names one."""
    if column is not None:
        doing = "takes its event time from"
        check_columns(f"step '{step}' {doing}", (column,), step, schema, at)
        check_time(step, doing, column, schema, at)
    return column


def all_columns(step: str, columns: Mapping[str, T] | None, keywords: Mapping[str, T], at: Location) -> dict[str, T]:
    """The columns that `select` and `fold` make: those in the dict, then those that are keywords."""
    if not (columns is None or isinstance(columns, Mapping)):
        why = f"has columns={mistakes.shown(columns)}, which is not a dict"
        advice = "`columns` takes names and what they hold. For a column called 'columns': {'columns': ...}."
        raise mistakes.wrong_argument(step, why, advice, at)
    for name in columns or {}:
        if not isinstance(name, str) or not name:
            raise mistakes.bad_name(f"a column of step '{step}'", name, "a name is text", "", at)
        if name in keywords:
            raise mistakes.column_twice(step, name, "one is in `columns`, the other a keyword", at)
    return {**(columns or {}), **keywords}


def check_output_name(step: str, name: str, taken: Collection[str], why: str, at: Location) -> None:
    if name.startswith("_"):
        raise mistakes.reserved_name(f"a column of step '{step}'", name, at)
    if name in taken:
        raise mistakes.column_twice(step, name, why, at)


def check_stream(step: str, other: Any, topology: Any, at: Location) -> None:
    """A stream or table of the same topology, known by its handle's attributes."""
    if not all(hasattr(other, name) for name in ("step", "topology", "schema")):
        advice = "Pass the handle of a step: what .spout, .table, .bolt, .fold ... give."
        raise mistakes.wrong_argument(step, f"got {mistakes.shown(other)}, which is not a stream", advice, at)
    if other.topology is not topology:
        raise mistakes.other_topology(step, other.name, at)


def check_timed(step: str, what: str, unclocked: Iterable[str], at: Location) -> None:
    """`unclocked` are the spouts above the step whose records have no time, so that it would wait for ever."""
    for spout in unclocked:
        advice = f"Its records have no time of their own. Name the column that says it: event_time=... of '{spout}'."
        raise mistakes.wrong_argument(step, f"{what}, but the rows of '{spout}' have no event time", advice, at)


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


def check_renamed(steps: Iterable[Step]) -> None:
    """What only the whole topology can tell of steps that say what they were called."""
    names = {step.name: step for step in steps}
    claimed: dict[str, str] = {}
    for name, step in names.items():
        old = step.renamed_from
        if old is None:
            continue
        if old in names:
            raise mistakes.still_there(name, old, names[old].at, step.at)
        if old in claimed:
            raise mistakes.renamed_twice(name, old, claimed[old], step.at)
        claimed[old] = name
