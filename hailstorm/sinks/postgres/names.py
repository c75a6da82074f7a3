"""Names in PostgreSQL: what it would cut off or take for something else is refused before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailstorm.errors import Location, SinkError
from hailstorm.sinks.tables import quoted

if TYPE_CHECKING:
    from psycopg import Connection

_LONGEST = 63  # bytes; PostgreSQL cuts off what is longer, and two names may become one


def check_table(name: str) -> None:
    """For the name of a table, where the user gives it."""
    schema, dot, table = name.partition(".")
    if dot:
        raise SinkError(
            4,
            f"'{name}' is not the name of a table: it has a dot in it",
            at=Location.of_caller(),
            hint=f"Name the schema by itself: hs.Postgres(url, table={table!r}, schema={schema!r})",
        )
    check_length("table", name, Location.of_caller())


def check_length(what: str, name: str, at: Location | None = None) -> None:
    size = len(name.encode())
    if size > _LONGEST:
        raise SinkError(
            24,
            f"PostgreSQL cannot have a {what} '{name}': its name has {size} bytes",
            at=at,
            hint=f"It takes {_LONGEST} at most. "
            + ("Name another table." if what == "table" else "Give the column another name, with a select before it."),
        )


def use_schema(connection: Connection[Any], name: str) -> None:
    """Look names up in this schema alone: a table of that name in another one must not be taken for it."""
    if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [name]).fetchone() is None:
        raise SinkError(
            1, f"there is no schema '{name}' in the database", hint=f"Create it: CREATE SCHEMA {quoted(name)}"
        )
    connection.execute("SELECT set_config('search_path', %s, false)", [quoted(name)])
