"""How commands speak: tables for people, JSON for scripts, errors in one shape on stderr.

Results go to stdout; progress, hints and errors go to stderr, so that a pipe gets results only.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hailstorm.errors import HailstormError, UsageError
from hailstorm.ledger.json_value import Beyond, to_json

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console


class _Later:
    """What becomes a console of rich when something is printed: whoever asks for JSON need not wait for rich."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __getattr__(self, name: str) -> Any:
        from rich.console import Console

        # Itself, and not a console behind it: what rich draws asks more of it than its attributes.
        self.__dict__ = Console(highlight=False, soft_wrap=True, **self._options).__dict__
        self.__class__ = Console  # type: ignore[assignment] # from now on it is one
        return getattr(self, name)


# Both are consoles as far as anybody can tell, which no type can say.
# A pipe has no width; the usual guess of 80 would break the rows of tables.
out: Console = _Later(width=None if sys.stdout.isatty() else 200)  # type: ignore[assignment]
err: Console = _Later(stderr=True)  # type: ignore[assignment]

SHOWN = 20  # rows of a table when nobody says how many: what fits on a screen

JsonOption = Annotated[bool, typer.Option("--json", help="For scripts: JSON instead of a table.")]


def show_error(error: HailstormError) -> None:
    """The house shape: the code stands out, the rest is as the error renders itself."""
    from rich.text import Text

    head, _, rest = error.render().partition("\n")
    code, _, what = head.partition("  ")
    err.print(Text.assemble((code, "bold red"), "  ", (what, "bold"), f"\n{rest}" if rest else ""))


@contextmanager
def plain_write_errors(folder: Path) -> Iterator[None]:
    """What the system refuses to write is an error that says where and why."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            69,
            f"cannot write to '{folder}': {error.strerror}",
            hint="Go to a folder that you can write to, or name one.",
        ) from error


def print_json(value: Any) -> None:
    sys.stdout.write(to_json(value) + "\n")


def print_json_lines(values: Iterable[Any]) -> None:
    for value in values:
        print_json(value)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as Python values. Times that Python has none for, such as those of the year 10000, are
    texts."""
    columns = [values_of(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The same for one column; maps are dicts."""
    if not _has_maps(column.type):
        with suppress(ValueError, OverflowError):
            return list(column.to_pylist())
    from hailstorm.sinks.values import python_values

    return [msgspec.json.decode(str(one)) if isinstance(one, Beyond) else one for one in python_values(column)]


def _has_maps(kind: pa.DataType) -> bool:
    return type(kind).__name__ == "MapType" or any(_has_maps(kind.field(n).type) for n in range(kind.num_fields))


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table for people: numbers to the right, nothing cut off; only long texts are broken."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in columns:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        is_text = any(isinstance(row.get(name), str | list | dict) for row in rows)
        table.add_column(
            name, justify="right" if numeric else "left", overflow="fold", no_wrap=not is_text, min_width=len(name)
        )
    for row in rows:
        table.add_row(*(Text(as_text(row.get(name))) for name in columns))
    out.print(table, soft_wrap=False)


def as_text(value: Any) -> str:
    """A value as a person reads it: 1,234 and 2026-01-31 09:30:00."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
        case datetime():
            return as_utc(value).strftime("%Y-%m-%d %H:%M:%S") if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S}"
        case bytes():
            return value.decode(errors="backslashreplace")
        case Decimal():
            return format(value, "f")
        case list() | tuple() | dict():
            return to_json(value)
        case _:
            return str(value)


def program() -> str:
    """How to call us: by name when the shell finds it, else as we were called (`make demo` needs no activation)."""
    called = Path(sys.argv[0])
    return "hailstorm" if shutil.which("hailstorm") or called.name != "hailstorm" else os.path.relpath(called)


def as_utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
