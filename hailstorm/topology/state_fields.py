"""The state of a process: the fields of a dataclass as typed columns.

`stream.process(...)` reads the annotations once (`state_fields`), and everything that no column can hold is refused
there. The engine asks for types and for how values are copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import FunctionType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes
from hailstorm.topology.arrow_types import arrow_type
from hailstorm.topology.exact_values import Misfit, exact_value

_TYPES = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    datetime: "timestamp",
    date: "date",
    Decimal: "decimal(38,18)",
}


@dataclass(frozen=True)
class StateField:
    """One column of a process's state. `default` is what a key begins with, and an older row without it gets."""

    name: str
    type: str
    optional: bool
    default: Any

    @property
    def column(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.type), self.optional)

    @property
    def copied(self) -> Callable[[Any], Any] | None:
        """What copies a value that can be changed in place; None where no value can."""
        return _copier(arrow_type(self.type))


class _NoColumn(Exception):
    """An annotation that no column stands for."""


def state_fields(step: str, state: object, key: tuple[str, ...], at: Location) -> tuple[StateField, ...]:
    """The fields of a state class. Raises TopologyError for what is no state."""
    if not (isinstance(state, type) and dataclasses.is_dataclass(state)):
        why = f"keeps {mistakes.shown(state)} as its state, which is not a dataclass"
        raise mistakes.bad_state(step, why, at)
    name = state.__name__
    if vars(state)["__dataclass_params__"].frozen:
        raise mistakes.bad_state(step, f"keeps {name}, which is frozen: state is changed in place", at)
    try:
        hints = get_type_hints(state)
    except NameError as error:
        raise mistakes.bad_state(step, f"keeps {name}, whose annotations cannot be read: {error}", at) from None
    found = []
    for field in dataclasses.fields(state):
        checks.check_output_name(step, field.name, key, "one is its key, the other a field of its state", at)
        if not field.init:
            raise mistakes.bad_state(step, f"keeps {name}.{field.name}, which has init=False", at)
        found.append(_field(step, name, field, hints[field.name], at))
    return tuple(found)


def own_methods(state: type[Any]) -> tuple[FunctionType, ...]:
    """What a user has written in a state class, beside its fields: it is part of what the process does."""
    written = [value for value in vars(state).values() if isinstance(value, FunctionType)]
    return tuple(value for value in written if not value.__code__.co_filename.startswith("<"))


def _field(step: str, state: str, field: dataclasses.Field[Any], hint: Any, at: Location) -> StateField:
    where = f"{state}.{field.name}"
    optional, inner = _without_none(hint)
    try:
        type_ = _column_type(inner)
    except _NoColumn as error:
        why = f"keeps {where}, and no column holds {error}"
        raise mistakes.bad_state(step, why, at) from None
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        raise mistakes.bad_state(step, f"keeps {where}, which has no default: a new key begins with it", at)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if optional and default is not None:
        raise mistakes.bad_state(step, f"keeps {where}, which may be None, so that it must begin with None", at)
    if not optional and default is None:
        raise mistakes.bad_state(step, f"keeps {where}, which begins with None and is not `| None`", at)
    try:
        exact_value(default, arrow_type(type_), field.name)
    except Misfit as error:
        raise mistakes.bad_state(step, f"keeps {where}, whose default does not fit: {error}", at) from None
    return StateField(field.name, type_, optional, default)


def _without_none(hint: Any) -> tuple[bool, Any]:
    """Whether an annotation allows None, and what else it says."""
    if get_origin(hint) not in (Union, UnionType):
        return False, hint
    others = [one for one in get_args(hint) if one is not NoneType]
    return NoneType in get_args(hint), others[0] if len(others) == 1 else hint


def _column_type(hint: Any) -> str:
    if hint in _TYPES:
        return _TYPES[hint]
    arguments = [_column_type(_without_none(one)[1]) for one in get_args(hint)]
    if get_origin(hint) is list and len(arguments) == 1:
        return f"array<{arguments[0]}>"
    if get_origin(hint) is dict and len(arguments) == 2:
        return f"map<{arguments[0]},{arguments[1]}>"
    raise _NoColumn(getattr(hint, "__name__", None) if isinstance(hint, type) and not get_args(hint) else str(hint))


def _copier(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """How a value of a type is copied, so that the copy does not change with it."""
    if pa.types.is_list(type_):
        return _Copier(_copier(type_.value_type))
    return _Copier(_copier(type_.item_type)) if pa.types.is_map(type_) else None


@dataclass(frozen=True)
class _Copier:
    """Copies lists and dicts, and what is inside them when that can change, too. What does not fit is left alone."""

    inside: Callable[[Any], Any] | None

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, list | dict):
            return value
        own = value.copy()
        if self.inside is not None:
            for place, one in value.items() if isinstance(value, dict) else enumerate(value):
                own[place] = self.inside(one)
        return own
