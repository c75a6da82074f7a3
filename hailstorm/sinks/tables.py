"""What the sinks that write to database tables share: modes, quoting, and comparing a table with what is needed.

A sink in mode `upsert` keeps one row per key, as the table of the topology has it; in mode `append` it adds rows,
and the changes of a table get a column `_kind` that says insert, update or delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import KIND
from hailstorm.errors import Location, SinkError
from hailstorm.sinks.sink import Delivery

Mode = Literal["upsert", "append"]


@dataclass(frozen=True)
class Target:
    """How one sink's rows go into its table."""

    columns: pa.Schema
    upsert: bool
    key: tuple[str, ...]

    def removed(self, rows: pa.Table) -> pa.Table:
        """The keys whose old row must go: all that changed. Of inserts, too: the table may have been edited."""
        return rows.select(self.key)

    def added(self, rows: pa.Table) -> pa.Table:
        """The rows to write."""
        if self.upsert:
            rows = rows.filter(pc.not_equal(rows[KIND], "delete"))
        return rows.select(self.columns.names)

    def growth(self, rows: pa.Table) -> int:
        """How many rows the table has more after these changes, at least."""
        return growth(rows) if self.upsert else 0


def growth(changes: pa.Table) -> int:
    """Inserts less deletes."""
    counted = dict(zip(*(part.to_pylist() for part in pc.value_counts(changes[KIND]).flatten()), strict=True))
    return int(counted.get("insert", 0) - counted.get("delete", 0))


def check_mode(mode: Mode | None) -> None:
    if mode is not None and mode not in get_args(Mode):
        raise SinkError(
            4,
            f"there is no mode '{mode}'",
            at=Location.of_caller(),
            hint="mode is 'upsert' (one row per key) or 'append' (every change); without it, tables are upserted "
            "and streams appended.",
        )


def target(delivery: Delivery, mode: Mode | None) -> Target:
    """What to write. A table without key columns (a global fold) is one row, and an upsert replaces that row."""
    if mode == "upsert" and not delivery.is_table:
        raise SinkError(
            4,
            f"sink '{delivery.sink}' has mode 'upsert', but a stream has no key",
            hint="Make a table of it first (fold), or use mode='append'.",
        )
    if delivery.is_table and mode != "append":
        return Target(delivery.schema, True, delivery.key)
    columns = delivery.schema.append(pa.field(KIND, pa.string())) if delivery.is_table else delivery.schema
    return Target(columns, False, delivery.key)


def quoted(name: str) -> str:
    """An identifier that SQL takes as it is, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def type_name(kind: pa.DataType) -> str:
    """The type without the names that writers give to the items of lists and maps: those mean nothing."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(field.name)}: {type_name(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    return f"list<{type_name(kind.value_type)}>" if pa.types.is_nested(kind) else str(kind)


def check_columns(place: str, needed: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a table that does not have exactly the columns that are needed, and say what differs."""
    lines = [f"missing: {name} {kind}" for name, kind in needed.items() if name not in found]
    lines += [f"not in the topology: {name} {kind}" for name, kind in found.items() if name not in needed]
    lines += [
        f"different: {name} is {found[name]} and should be {kind}"
        for name, kind in needed.items()
        if name in found and found[name] != kind
    ]
    if lines:
        lines.append("Write to another table, or change or drop this one.")
        raise SinkError(3, f"{place} exists with other columns than the topology's", hint="\n".join(lines))
