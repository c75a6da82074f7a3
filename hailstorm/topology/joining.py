"""What tables, joins and look-ups make of their arguments: a step, or the mistake in the user's line.

`stream.py` and `table.py` call these. The result of a join has the left's columns, then the right's without those of
`on`, with a suffix where a name is taken. Which columns go together is in `columns_of_join`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes, sql
from hailstorm.topology.durations import read_signed_duration
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.stateful import Newest
from hailstorm.topology.step import Step
from hailstorm.topology.two_sided import Join, Lookup, TableJoin
from hailstorm.types import spark_type

On = str | Sequence[str] | Mapping[str, str]
Within = str | tuple[str, str]

OF_STREAMS = ("inner", "left", "right", "full", "semi", "anti")
OF_TABLES = ("inner", "left", "right", "full")
OF_FOREIGN_KEYS = OF_LOOKUPS = ("inner", "left")

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class Joined:
    """Pairs of columns to join on, the names of the right's other columns in the result, and the result's columns."""

    on: tuple[tuple[str, str], ...]
    names: Mapping[str, str]
    schema: Schema


def newest(
    name: str, source: Step, key: str | Sequence[str] | None, time: str | None, deletes: str | None, at: Location
) -> Newest:
    """A stream as a table."""
    if source.is_table:
        advice = "It has one row per key already. To key it by something else: .bolt or .sql, and .table on that."
        raise mistakes.wrong_argument(name, f"makes a table of '{source.name}', which is a table", advice, at)
    columns = table_key(name, key, source, at)
    if time is not None:
        checks.check_columns(f"step '{name}' takes its time from", (time,), source.name, source.schema, at)
        checks.check_time(name, "takes its time from", time, source.schema, at)
    schema = key_first(name, source.schema, columns, at)
    gone = checked_deletes(name, deletes, source, at)
    return Newest(name, at, (source.name,), schema, columns, True, time=time, deletes=gone)


def checked_deletes(name: str, deletes: str | None, source: Step, at: Location) -> str | None:
    return None if deletes is None else sql.checked_expression(deletes, name, "deletes where", source, at).text


def join_of_streams(
    name: str, left: Step, right: Step, on: On, within: Within | None, how: str, suffix: str, at: Location
) -> Join:
    if right.is_table:
        advice = f'What a table has for each row is a look-up: {left.name}.lookup("{name}", {right.name}, on=...).'
        raise mistakes.wrong_argument(name, f"joins a stream with '{right.name}', which is a table", advice, at)
    check_how(name, how, OF_STREAMS, at)
    before, after = bounds(name, within, at)
    found = columns_of_join(name, left, right, on, suffix, at)
    shown = found.schema if how not in ("semi", "anti") else left.schema
    return Join(
        name,
        at,
        (left.name, right.name),
        shown,
        on=found.on,
        names=found.names,
        how=how,
        before_us=before,
        after_us=after,
        both=found.schema,
    )


def join_of_tables(
    name: str, left: Step, right: Step, on: On, within: Within | None, how: str, suffix: str, at: Location
) -> TableJoin:
    if not right.is_table:
        advice = f'A stream looks a table up: {right.name}.lookup("{name}", {left.name}, on=...).'
        raise mistakes.wrong_argument(name, f"joins a table with '{right.name}', which is a stream", advice, at)
    if within is not None:
        advice = "Of two tables the rows of now are joined, whenever they came. Leave `within` out."
        raise mistakes.wrong_argument(name, "joins two tables within a bound", advice, at)
    check_how(name, how, OF_TABLES, at)
    found = columns_of_join(name, left, right, on, suffix, at)
    _check_covers_key(name, right, [theirs for _, theirs in found.on], at)
    foreign = not covers([mine for mine, _ in found.on], left.key)
    if foreign and how not in OF_FOREIGN_KEYS:
        advice = (
            f"'{left.name}' has the key {', '.join(left.key)}, and its rows keep it. A row of '{right.name}' alone has "
            f"none.\nJoin on both keys, or begin with the other table."
        )
        raise mistakes.wrong_argument(name, f"is a {how} join by a foreign key", advice, at)
    # In the order of the left's key: its hash goes by that.
    on_key = found.on if foreign else tuple(sorted(found.on, key=lambda pair: left.key.index(pair[0])))
    inputs = (left.name, right.name)
    return TableJoin(
        name, at, inputs, found.schema, left.key, True, on=on_key, names=found.names, how=how, foreign=foreign
    )


def lookup(name: str, left: Step, right: Step, on: On, as_of: str, how: str, suffix: str, at: Location) -> Lookup:
    if not right.is_table:
        advice = f"Make a table of it: {right.name}.table(name, key=...). Or join the streams within a bound: .join."
        raise mistakes.wrong_argument(name, f"looks up '{right.name}', which is a stream", advice, at)
    if left.is_table:
        advice = f'Join the tables: {left.name}.join("{name}", {right.name}, on=...).'
        raise mistakes.wrong_argument(name, f"looks up the rows of '{left.name}', which is a table", advice, at)
    if as_of not in ("latest", "event time"):
        raise mistakes.bad_option(name, "as_of", as_of, ("latest", "event time"), at)
    if as_of == "event time" and right.kind != "table":
        advice = (
            "Only a table of records knows since when each row is true: storm.table(...) or stream.table(...).\n"
            'Of any other table, take the rows of now: as_of="latest".'
        )
        raise mistakes.wrong_argument(name, f"asks for the past of '{right.name}', a {right.kind}", advice, at)
    check_how(name, how, OF_LOOKUPS, at)
    of_everyone = not isinstance(on, str) and isinstance(on, Sequence | Mapping) and not on
    if of_everyone and as_of == "event time":
        advice = (
            "Each row meets the whole table as it is after the tick. Name the columns that must be equal to ask for\n"
            'the past of one row: on="id". Or leave `as_of` out.'
        )
        raise mistakes.wrong_argument(name, f"asks for the past of all rows of '{right.name}'", advice, at)
    found = columns_of_join(name, left, right, on, suffix, at, of_everyone)
    if not of_everyone:
        _check_covers_key(name, right, [theirs for _, theirs in found.on], at)
    inputs = (left.name, right.name)
    by_time = as_of == "event time"
    return Lookup(
        name, at, inputs, found.schema, on=found.on, names=found.names, how=how, by_time=by_time, rows=left.schema
    )


def columns_of_join(
    name: str, left: Step, right: Step, on: On, suffix: str, at: Location, of_everyone: bool = False
) -> Joined:
    """`of_everyone`: there is nothing that must be equal."""
    pairs = () if of_everyone else _pairs(name, on, at)
    checks.check_columns(f"step '{name}' joins on", (mine for mine, _ in pairs), left.name, left.schema, at)
    checks.check_columns(f"step '{name}' joins on", (theirs for _, theirs in pairs), right.name, right.schema, at)
    types = {mine: _common(name, left, mine, right, theirs, at) for mine, theirs in pairs}
    if not isinstance(suffix, str) or not suffix:
        raise mistakes.wrong_argument(name, f"has suffix={mistakes.shown(suffix)}", "A suffix is text: '_right'.", at)
    columns = [Column(column.name, types.get(column.name, column.type)) for column in left.schema]
    names: dict[str, str] = {}
    for column in right.schema:
        if column.name not in (theirs for _, theirs in pairs):
            new = column.name + (suffix if column.name in left.schema else "")
            why = f"one is of '{left.name}', the other '{column.name}' of '{right.name}' with its suffix"
            checks.check_output_name(name, new, [one.name for one in columns], why, at)
            names[column.name] = new
            columns.append(Column(new, column.type))
    return Joined(pairs, names, Schema(tuple(columns)))


def check_how(name: str, how: str, known: Sequence[str], at: Location) -> None:
    if how not in known:
        raise mistakes.bad_option(name, "how", how, known, at)


def bounds(name: str, within: Within | None, at: Location) -> tuple[int, int]:
    """How far the right row may be before the left one, and after it, in microseconds."""
    if within is None:
        advice = (
            "Two streams are joined within a bound, or every row would have to be kept for ever.\n"
            'Say how far apart the rows of a pair may be: within="10 minutes", or within=("0 seconds", "1 hour")\n'
            "for a right row that comes at the time of the left one or up to an hour later."
        )
        raise mistakes.wrong_argument(name, "joins two streams without a bound", advice, at)
    given = within if isinstance(within, tuple) else (within, within)
    read = [read_signed_duration(text) for text in given]
    if len(read) != 2 or None in read:
        raise mistakes.bad_duration(f"within of step '{name}'", within, at)
    before, after = (one for one in read if one is not None)
    if before + after < 0:
        advice = (
            "It would end before it begins. One of the two may be negative, if the other one reaches further:\n"
            'within=("-1 second", "3 seconds") is a right row that comes 1 to 3 seconds after the left one.'
        )
        raise mistakes.wrong_argument(name, f"joins within {within}, which holds no time", advice, at)
    return before * 1000, after * 1000


def covers(columns: Sequence[str], key: Sequence[str]) -> bool:
    """Whether these columns are the key, in any order."""
    return len(columns) == len(key) and set(columns) == set(key)


def table_key(name: str, key: str | Sequence[str] | None, source: Step, at: Location) -> tuple[str, ...]:
    advice = 'Say what tells its rows apart: key="id", or key=["country", "id"].'
    if not key:
        raise mistakes.wrong_argument(name, "is a table without a key", advice, at)
    if not isinstance(key, str) and not (isinstance(key, Sequence) and all(isinstance(one, str) for one in key)):
        raise mistakes.wrong_argument(name, f"has key={mistakes.shown(key)}", advice, at)
    columns = (key,) if isinstance(key, str) else tuple(key)
    checks.check_columns(f"step '{name}' has the key", columns, source.name, source.schema, at)
    for place, column in enumerate(columns):
        if column in columns[:place]:
            raise mistakes.bad_key(name, column, "it is named twice", at)
        _check_comparable(name, column, source.schema.type_of(column), at)
    return columns


def key_first(name: str, schema: Schema, key: Sequence[str], at: Location) -> Schema:
    """The columns as a table has them: the key, then the values."""
    if len(key) == len(schema.names):
        advice = "A table says something of each key. Add a column, such as `listed BOOLEAN`."
        raise mistakes.wrong_argument(name, "is a table of nothing but its key", advice, at)
    keys = (next(column for column in schema if column.name == name) for name in key)
    return Schema((*keys, *(column for column in schema if column.name not in key)))


def _check_covers_key(name: str, table: Step, columns: Sequence[str], at: Location) -> None:
    if not covers(columns, table.key):
        advice = f"Name the whole key of '{table.name}', and nothing else: {', '.join(table.key) or 'it has none'}."
        what = f"joins on {', '.join(columns)} of '{table.name}', which is not its key"
        raise mistakes.wrong_argument(name, what, advice, at)


def _pairs(name: str, on: On, at: Location) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[object, object]]
    if isinstance(on, str):
        pairs = [(on, on)]
    elif isinstance(on, Mapping):
        pairs = list(on.items())
    else:
        pairs = [(one, one) for one in on] if isinstance(on, Sequence) else []
    found = tuple((mine, theirs) for mine, theirs in pairs if isinstance(mine, str) and isinstance(theirs, str))
    if not found or len(found) < len(pairs):
        advice = 'Name a column, a list of columns, or a dict of names: on="user", on={"customer": "id"}.'
        raise mistakes.wrong_argument(name, f"joins on {mistakes.shown(on)}", advice, at)
    for side in zip(*found, strict=True):
        for place, column in enumerate(side):
            if column in side[:place]:
                raise mistakes.bad_key(name, column, "it is named twice", at)
    return found


def _common(name: str, left: Step, mine: str, right: Step, theirs: str, at: Location) -> str | None:
    """The type of both; of two integers, the wider one. None where only Spark can tell."""
    one, two = left.schema.type_of(mine), right.schema.type_of(theirs)
    for column, type_ in ((mine, one), (theirs, two)):
        _check_comparable(name, column, type_, at)
    if one is None or two is None:
        return None
    common = common_type(one, two)
    if common is None:
        shown = (spark_type(one).shouted, spark_type(two).shouted)
        raise mistakes.wrong_argument(
            name,
            f"joins '{mine}' ({shown[0]}) of '{left.name}' with '{theirs}' ({shown[1]}) of '{right.name}', "
            "which do not compare",
            f'Make them equal before: .select(..., columns={{"{theirs}": "CAST({theirs} AS {shown[0]})"}}).',
            at,
        )
    return common


def common_type(one: str, two: str) -> str | None:
    """The type in which values of both are compared; None when they are not."""
    if one == two:
        return one
    if one in _INTEGERS and two in _INTEGERS:
        return max(one, two, key=_INTEGERS.index)
    return None


def _check_comparable(name: str, column: str, type_: str | None, at: Location) -> None:
    if type_ is not None and any(part.word in ("map", "variant") for part in spark_type(type_).walk()):
        raise mistakes.bad_key(name, column, f"values of {spark_type(type_).shouted} cannot be compared", at)
