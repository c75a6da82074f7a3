"""What `state` and `diff` have in common: which rows are wanted (`--key`, `--where`), and in which form they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hailstorm.cli.output import (
    SHOWN,
    err,
    plain_write_errors,
    print_json_lines,
    print_rows,
    rows_of,
    values_of,
)
from hailstorm.errors import UsageError, WordError, suggestion
from hailstorm.ledger.json_value import to_json

if TYPE_CHECKING:
    import pyarrow as pa


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    arrow = "arrow"


KeyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="K", help="Only this key: word=rain, or rain when there is one key column."),
]
WhereOption = Annotated[str | None, typer.Option(metavar="SQL", help="Only rows for which this is true (DuckDB).")]
LimitOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="At most N rows. A table shows 20, other forms all.")
]
FormatOption = Annotated[
    Format | None, typer.Option(help="table, json (JSON Lines), csv, parquet or arrow; else as FILE ends.")
]
OutputOption = Annotated[str | None, typer.Option(metavar="FILE", help="Write to a file instead of the screen.")]


def chosen_format(format_: Format | None, output: str | None, json: bool) -> Format:
    """The form that is asked for. Raises UsageError when it cannot go where it should."""
    if json and format_ not in (None, Format.json):
        raise WordError(95, f"--json and --format {format_} are two forms", hint="Leave one of them out.")
    found = Format.json if json else format_ or _by_name(output)
    if found is None and output is not None:
        known = ", ".join(form for form in Format if form is not Format.table)
        raise WordError(95, f"'{output}' does not say in which form", hint=f"Add --format: {known}")
    found = found or Format.table
    if found in (Format.parquet, Format.arrow) and output is None:
        raise WordError(95, f"--format {found} needs a file", hint=f"Type: --format {found} --output rows.{found}")
    return found


def give(rows: pa.Table, count: int, form: Format, output: str | None, limit: int | None) -> None:
    """Print the rows, or write them to a file. `count` is how many there are in all."""
    if output is not None:
        with plain_write_errors(Path(output)):
            _write(rows, form, Path(output))
        err.print(f"{rows.num_rows:,} rows are in {output}", style="dim")
    elif form is Format.json:
        print_json_lines(rows_of(rows))
    elif form is Format.csv:
        _write_csv(rows, sys.stdout.buffer)
    else:
        print_rows(rows.column_names, rows_of(rows))
        if limit is None and count > len(rows):
            err.print(f"... and {count - len(rows):,} more rows: --limit N, --key K or --where SQL", style="dim")


def most_rows(limit: int | None, form: Format, output: str | None) -> int | None:
    return limit or (SHOWN if form is Format.table and output is None else None)


def parsed_keys(
    columns: Sequence[str], keys: Sequence[str], types: Mapping[str, pa.DataType], also: Sequence[str] = ()
) -> dict[str, pa.Array]:
    """The values that are asked for, by key column. `also` are other columns that may be named."""
    import pyarrow as pa

    wanted: dict[str, list[str]] = {}
    named = tuple(dict.fromkeys((*columns, *also)))
    for key in keys:
        column, equals, value = key.partition("=")
        if equals and column not in named:
            known = ", ".join(named) or "none"
            hint = f"Key columns: {known}. {suggestion(column, named)}"
            if len(columns) == 1:
                hint += f"\nFor a key that has a '=' in it: --key {columns[0]}={key}"
            raise UsageError(7, f"--key {key} names no key column", hint=hint)
        if not equals:
            if len(columns) != 1:
                hint = f"Say which column: --key {named[0]}={key}" if named else "This step has one row, without a key."
                raise UsageError(7, f"--key {key} names no key column", hint=hint)
            column, value = columns[0], key
        wanted.setdefault(column, []).append(value)
    values = {}
    for column, asked in wanted.items():
        type_ = types.get(column, pa.string())
        try:
            values[column] = _as_column(asked, type_)
        except (pa.ArrowException, msgspec.DecodeError, TypeError, ValueError) as error:
            hint = "A nested key is JSON." if type_.num_fields else ""
            raise UsageError(
                8, f"key column '{column}' is {type_}, and {', '.join(asked)} is not", hint=hint
            ) from error
    return values


def _as_column(asked: Sequence[str], type_: pa.DataType) -> pa.Array:
    """What a person types, as the column has it: a nested key as JSON, a time in UTC unless it says its zone."""
    import pyarrow as pa

    from hailstorm.ledger import arrays

    if type_.num_fields:
        return pa.array([msgspec.json.decode(text) for text in asked], type_)
    if not pa.types.is_timestamp(type_):
        return arrays.cast(arrays.texts(asked), type_)
    times = []
    for time in (arrays.texts([text]) for text in asked):
        with suppress(pa.ArrowInvalid):  # it says its zone
            time = arrays.cast(time, pa.timestamp(type_.unit))
        times.append(arrays.cast(time, type_))
    return pa.concat_arrays(times)


def where_true(rows: pa.Table, where: str) -> pa.Table:
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(9, "--where needs DuckDB", hint="Type: pip install 'hailstorm[duckdb]'") from error
    try:
        return duckdb.from_arrow(rows).filter(where).to_arrow_table()
    except duckdb.Error as error:
        hint = f"Columns: {', '.join(rows.column_names)}"
        raise UsageError(10, f"--where does not work: {str(error).splitlines()[0]}", hint=hint) from error


def in_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    if rows.num_rows < 2:
        return rows
    # Arrow cannot order nested values; those keys come as they are stored.
    nested = any(pa.types.is_nested(rows.schema.field(name).type) for name in key)
    return rows if nested or not key else rows.sort_by([(name, "ascending") for name in key])


def _by_name(output: str | None) -> Format | None:
    ending = Path(output or "").suffix.removeprefix(".")
    ending = {"jsonl": "json", "ndjson": "json", "feather": "arrow"}.get(ending, ending)
    return Format(ending) if ending in Format.__members__ else None


def _write(rows: pa.Table, form: Format, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def lines(file: Any) -> None:
        file.writelines(to_json(row).encode() + b"\n" for row in rows_of(rows))

    def arrow(file: Any) -> None:
        with pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)

    forms: dict[Format, Callable[[Any], object]] = {
        Format.json: lines,
        Format.csv: lambda file: _write_csv(rows, file),
        Format.parquet: lambda file: pq.write_table(rows, file),
        Format.arrow: arrow,
        Format.table: lambda file: _write_csv(rows, file),
    }
    with path.open("wb") as file:
        forms[form](file)


def _write_csv(rows: pa.Table, file: Any) -> None:
    import pyarrow as pa
    import pyarrow.csv as pc

    from hailstorm.sinks.texts import texts

    for place, field in enumerate(rows.schema):
        column, kind = rows.column(place), field.type
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            written = [None if value is None else to_json(value) for value in values_of(column)]
            rows = rows.set_column(place, field.name, pa.array(written, pa.string()))
        elif pa.types.is_binary(kind) or pa.types.is_decimal(kind):  # which Arrow writes as no text, or with exponents
            whole = pa.concat_arrays(column.chunks or [pa.array([], kind)])
            rows = rows.set_column(place, field.name, texts(whole))
    pc.write_csv(rows, file)
    file.flush()
