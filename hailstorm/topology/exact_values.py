"""What users' Python gives back, as columns of the declared types: exactly, or not at all.

Bolts, decode functions and monoids of one's own all convert here. Arrow alone would make 0 of 0.5, a moment in 1970 of
1700000000 and infinity of 1e300 without a word. The rules, which docs/reference/topology.md tells to users:

* a value has the Python type that its column stands for, and the column holds it exactly;
* an int fits DOUBLE, FLOAT and DECIMAL when they hold it exactly, a date fits TIMESTAMP as its midnight in UTC;
* a float for a FLOAT column is rounded to the nearest one, but a finite one never becomes infinite;
* a STRUCT is a dict or a tuple, a MAP is a dict or a list of pairs, an ARRAY is a list or another sequence.

Whole columns are looked at by the set of their Python types, which is quick; only a column in which that leaves a
question is looked at value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from operator import attrgetter, itemgetter, methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.topology.arrow_types import spark_name

# What converting a value may raise. A value's own methods may raise anything else, and are called by nobody here.
_REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)

_INTEGERS = frozenset({int, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64})
_FLOATS = frozenset({float, int, np.float64, np.float32})
# The Python types that Arrow converts exactly, or refuses.
_PLAIN: Mapping[int, frozenset[type]] = {
    pa.int8().id: _INTEGERS,
    pa.int16().id: _INTEGERS,
    pa.int32().id: _INTEGERS,
    pa.int64().id: _INTEGERS,
    pa.float32().id: _FLOATS,
    pa.float64().id: _FLOATS,
    pa.string().id: frozenset({str}),
    pa.binary().id: frozenset({bytes, bytearray}),
    pa.bool_().id: frozenset({bool, np.bool_}),
    pa.date32().id: frozenset({date}),
    pa.timestamp("us").id: frozenset({datetime}),
    pa.decimal128(1).id: frozenset({Decimal, int}),
}
_NOTHING = type(None)
_ZONE = attrgetter("tzinfo")
_LONGEST_VALUE = 80


class Misfit(ValueError):
    """A value that its column does not hold exactly. The message names the column, the value and the type."""


def exact_array(values: Sequence[Any], type_: pa.DataType, name: str) -> pa.Array:
    """The values of the column `name` as Arrow has them. Raises Misfit for the first that does not fit."""
    made = _plain(values, type_)
    if made is None:
        made = pa.array([exact_value(value, type_, name) for value in values], type_)
    return made


def exact_value(value: Any, type_: pa.DataType, name: str) -> Any:
    """The value as Arrow takes it without loss. Raises Misfit when there is no such value."""
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, pa.Scalar):
        value = value.as_py()
    nested = _NESTED.get(type_.id)
    if nested is not None:
        return nested(value, type_, name)
    found = _leaf(value, type_)
    if found is not None:
        try:
            pa.scalar(found, type_)
            return found
        except _REFUSED:
            pass
    raise _misfit(value, type_, name)


def exact_cast(column: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
    """An Arrow column in its declared type, by the same rules. Raises Misfit."""
    if column.type == type_:
        return column
    if not _harmless(column.type, type_):
        raise Misfit(f"'{name}' is {type_name(type_)}, and the column that came is {column.type}")
    if pa.types.is_decimal(type_) and pa.types.is_integer(column.type) and type_.scale < 20:
        # Arrow asks whether every number of the type would fit, and not whether these do.
        column = column.cast(pa.decimal128(38, type_.scale))
    try:
        made = column.cast(type_)
    except pa.ArrowException as error:
        raise Misfit(f"'{name}' is {type_name(type_)}, which does not hold what came: {error}") from error
    if pa.types.is_float32(type_) and pa.types.is_float64(column.type):
        # Nulls and NaN are not infinite.
        too_large = pc.and_(pc.is_inf(made), pc.is_finite(column))
        if pc.any(too_large).as_py():
            value = column.filter(too_large)[0].as_py()
            raise _misfit(value, type_, name)
    return made


def type_name(type_: pa.DataType) -> str:
    """As people write it in a schema; as Arrow does where a schema cannot have it."""
    try:
        return spark_name(type_)
    except StopIteration:
        return str(type_)


def _plain(values: Sequence[Any], type_: pa.DataType) -> pa.Array | None:
    """The values as a column, where their Python types alone say that Arrow converts them exactly or refuses them."""
    kinds = set(map(type, values))
    some_null = _NOTHING in kinds
    kinds.discard(_NOTHING)
    nested = _PLAIN_NESTED.get(type_.id)
    if nested is not None:
        wanted, empty, made_of = nested
        if not kinds <= wanted:
            return None
        if not some_null:
            return made_of(values, type_, None)
        null = pa.array([value is None for value in values], pa.bool_())
        return made_of([empty if value is None else value for value in values], type_, null)
    plain = _PLAIN.get(type_.id, frozenset())
    try:
        return pa.array(values, type_) if kinds <= plain and _keeps_meaning(values, type_) else None
    except _REFUSED:
        return None  # one of them is too large, or the like


def _keeps_meaning(values: Sequence[Any], type_: pa.DataType) -> bool:
    """What Arrow does not check: a finite number that becomes infinite, and times that have no zone, or have one."""
    if pa.types.is_float32(type_):
        return _none_too_large([value for value in values if value is not None])
    if pa.types.is_timestamp(type_):
        return {zone is not None for zone in map(_ZONE, filter(None, values))} <= {type_.tz is not None}
    return True


def _plain_struct(dicts: Sequence[Any], type_: pa.DataType, null: pa.Array | None) -> pa.Array | None:
    names = {field.name for field in type_}
    if not set(chain.from_iterable(dicts)) <= names:
        return None
    # A dict that is as long as the type is wide has all fields.
    whole = set(map(len, dicts)) <= {len(names)}
    columns = []
    for field in type_:
        of_field = itemgetter(field.name) if whole else methodcaller("get", field.name)
        columns.append(_plain(list(map(of_field, dicts)), field.type))
    if not columns or any(column is None for column in columns):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=null)


def _plain_list(lists: Sequence[Any], type_: pa.DataType, null: pa.Array | None) -> pa.Array | None:
    inside = _plain(list(chain.from_iterable(lists)), type_.value_type)
    return None if inside is None else pa.ListArray.from_arrays(_offsets(lists), inside, type=type_, mask=null)


def _plain_map(dicts: Sequence[Any], type_: pa.DataType, null: pa.Array | None) -> pa.Array | None:
    keys = _plain(list(chain.from_iterable(dicts)), type_.key_type)
    items = _plain(list(chain.from_iterable(map(dict.values, dicts))), type_.item_type)
    if keys is None or items is None or keys.null_count:
        return None
    return pa.MapArray.from_arrays(_offsets(dicts), keys, items, type=type_, mask=null)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Where each of these lists begins when they are laid one behind the other, and where the last one ends."""
    return pa.array(np.cumsum([0, *map(len, values)]), pa.int32())


# For each kind of nested column: Python types, what stands for a null, and how it is made (of values, type and nulls).
_PLAIN_NESTED: Mapping[int, tuple[set[type], Any, Callable[[Sequence[Any], pa.DataType, Any], pa.Array | None]]] = {
    pa.list_(pa.null()).id: ({list, tuple}, (), _plain_list),
    pa.map_(pa.string(), pa.null()).id: ({dict}, {}, _plain_map),
    pa.struct([]).id: ({dict}, {}, _plain_struct),
}


def _none_too_large(values: Sequence[float]) -> bool:
    """Whether no finite number becomes infinite as a FLOAT."""
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        return False
    with np.errstate(over="ignore"):
        return not (np.isinf(numbers.astype(np.float32)) & np.isfinite(numbers)).any()


def _leaf(value: Any, type_: pa.DataType) -> Any:
    """The value in the one Python type that Arrow converts exactly; None where there is none."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if pa.types.is_integer(type_):
        return int(value) if number else None
    if pa.types.is_floating(type_):
        return _exact_float(value, type_) if number or isinstance(value, float) else None
    if pa.types.is_decimal(type_):
        return Decimal(value) if number or isinstance(value, Decimal) else None
    if pa.types.is_string(type_):
        return str.__str__(value) if isinstance(value, str) else None
    if pa.types.is_binary(type_):
        return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
    if pa.types.is_boolean(type_):
        return value if isinstance(value, bool) else None
    if pa.types.is_date32(type_):
        return value if isinstance(value, date) and not isinstance(value, datetime) else None
    if pa.types.is_timestamp(type_):
        return _exact_moment(value, type_.tz is not None)
    return value  # types that a schema cannot have, and a monoid's state can: Arrow decides


def _exact_float(value: float, type_: pa.DataType) -> float | None:
    if isinstance(value, int):
        try:
            near = float(value)
        except OverflowError:
            return None
        exact = near == value and (pa.types.is_float64(type_) or float(np.float32(near)) == near)
        return near if exact else None
    return float(value) if pa.types.is_float64(type_) or _none_too_large([value]) else None


def _exact_moment(value: Any, zoned: bool) -> datetime | None:
    if isinstance(value, datetime):
        # A moment of pandas has nanoseconds; a column has microseconds.
        fits = (value.utcoffset() is not None) == zoned and not getattr(value, "nanosecond", 0)
        return value if fits else None
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC if zoned else None)
    return None


def _exact_list(value: Any, type_: pa.DataType, name: str) -> list[Any]:
    if isinstance(value, np.ndarray):
        value = list(value)
    if not _is_sequence(value):
        raise _misfit(value, type_, name)
    return [exact_value(one, type_.value_type, f"{name}[{place}]") for place, one in enumerate(value)]


def _exact_map(value: Any, type_: pa.DataType, name: str) -> list[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not _is_sequence(pairs) or not all(_is_sequence(pair) and len(pair) == 2 for pair in pairs):
        raise _misfit(value, type_, name)
    made = []
    for key, item in pairs:
        if key is None:
            raise Misfit(f"'{name}' is {type_name(type_)}, and a key is null: {_shown(value)}")
        exact_key = exact_value(key, type_.key_type, f"a key of {name}")
        made.append((exact_key, exact_value(item, type_.item_type, f"{name}[{_shown(key)}]")))
    if len({repr(key) for key, _ in made}) < len(made):
        raise Misfit(f"'{name}' is {type_name(type_)}, and a key is there twice: {_shown(value)}")
    return made


def _exact_struct(value: Any, type_: pa.DataType, name: str) -> dict[str, Any]:
    names = [field.name for field in type_]
    if isinstance(value, tuple):
        given = getattr(value, "_fields", names)  # a namedtuple knows its names
        if len(value) != len(given):
            raise _misfit(value, type_, name)
        value = dict(zip(given, value, strict=True))
    if not isinstance(value, Mapping):
        raise _misfit(value, type_, name)
    unknown = [one for one in value if one not in names]
    if unknown:
        raise Misfit(f"'{name}' is {type_name(type_)}, which has no field {unknown[0]!r}: {_shown(value)}")
    return {field.name: exact_value(value.get(field.name), field.type, f"{name}.{field.name}") for field in type_}


_NESTED: Mapping[int, Callable[[Any, pa.DataType, str], Any]] = {
    pa.list_(pa.null()).id: _exact_list,
    pa.map_(pa.string(), pa.null()).id: _exact_map,
    pa.struct([]).id: _exact_struct,
}


def _is_sequence(value: Any) -> bool:
    """A list or the like. A set has no order of its own: another one in every process."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _misfit(value: Any, type_: pa.DataType, name: str) -> Misfit:
    kind = type(value).__name__
    if pa.types.is_timestamp(type_) and isinstance(value, datetime):
        kind += " with a zone" if value.tzinfo is not None else " without a zone"
    return Misfit(f"'{name}' is {type_name(type_)}, which does not hold {_shown(value)} ({kind})")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_LONGEST_VALUE]
    except Exception:  # a value may be of any class
        return f"a {type(value).__name__}"


def _harmless(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast of one type to the other keeps the meaning, and raises where it would lose something."""
    types = pa.types
    if types.is_dictionary(given):
        return _harmless(given.value_type, wanted)
    if types.is_null(given) or given == wanted:
        return True
    if types.is_integer(wanted):
        return bool(types.is_integer(given))
    if types.is_floating(wanted):
        return bool(types.is_integer(given) or types.is_floating(given))
    if types.is_decimal(wanted):
        return bool(types.is_integer(given) or types.is_decimal(given))
    if types.is_string(wanted):
        return bool(types.is_large_string(given) or types.is_string_view(given))
    if types.is_binary(wanted):
        return bool(types.is_large_binary(given) or types.is_binary_view(given) or types.is_fixed_size_binary(given))
    if types.is_timestamp(wanted):
        zoned = types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None)
        return bool(zoned or types.is_date(given))
    if types.is_list(wanted):
        lists = types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
        return bool(lists) and _harmless_inside(given.value_type, wanted.value_type)
    if types.is_map(wanted):
        return bool(types.is_map(given)) and all(
            _harmless_inside(one, other)
            for one, other in ((given.key_type, wanted.key_type), (given.item_type, wanted.item_type))
        )
    if types.is_struct(wanted) and types.is_struct(given):
        fields = {field.name: field.type for field in given}
        return [field.name for field in given] == [field.name for field in wanted] and all(
            _harmless_inside(fields[field.name], field.type) for field in wanted
        )
    return False


def _harmless_inside(given: pa.DataType, wanted: pa.DataType) -> bool:
    """As _harmless, where nobody looks at the result: a FLOAT that became infinite would not be seen."""
    return _harmless(given, wanted) and not (pa.types.is_float32(wanted) and pa.types.is_float64(given))
