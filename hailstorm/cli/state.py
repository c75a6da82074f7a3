"""`hailstorm state`: what a step knows, now or at an earlier commit. Needs no Spark and may run beside a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.output import SHOWN, JsonOption, err, print_json_lines, print_rows
from hailstorm.cli.target import TargetArgument, find_ledger
from hailstorm.errors import UsageError, suggestion

if TYPE_CHECKING:
    import pyarrow as pa


def state(
    target: TargetArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step with state: a fold or a top.")],
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="Only this key: word=rain, or rain when there is one key column."),
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows for which this is true (DuckDB).")] = None,
    at: Annotated[str, typer.Option(metavar="WHEN", help="A commit number, or latest.")] = "latest",
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most N rows. A table shows 20, JSON all.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a step's state, in order of its key (a top: of its rank).

    \b
    Examples:
      hailstorm state app.py counts
      hailstorm state app.py counts --key rain --key snow
      hailstorm state app.py counts --where "n > 100" --limit 50
      hailstorm state app.py counts --at 42 --json
      hailstorm state .hailstorm/trending top
    """
    from hailstorm.ledger.reader import open_ledger

    reader = open_ledger(find_ledger(target))
    found = reader.state(step, at=_commit_number(at))
    shape = found.live.steps[step]
    rows = found.arrow()
    if key:
        rows = _with_keys(rows, shape.key, key)
    if where is not None:
        rows = _where(rows, where)
    if shape.kind != "top":
        rows = _in_order(rows, shape.key)
    wanted = limit if json else limit or SHOWN
    shown = rows if wanted is None else rows.slice(0, wanted)
    if json:
        print_json_lines(shown.to_pylist())
        return
    print_rows(rows.column_names, shown.to_pylist())
    if limit is None and len(rows) > len(shown):
        err.print(f"... and {len(rows) - len(shown):,} more rows: --limit N, --key K or --where SQL", style="dim")


def _commit_number(when: str) -> int | None:
    if when == "latest":
        return None
    if not when.isdecimal():
        raise typer.BadParameter(f"'{when}' is neither a commit number nor latest", param_hint="--at")
    return int(when)


def _with_keys(rows: pa.Table, columns: tuple[str, ...], keys: list[str]) -> pa.Table:
    """The rows of which each named key column has one of its values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted: dict[str, list[str]] = {}
    for key in keys:
        column, equals, value = key.partition("=")
        if not (equals and column in columns):
            if len(columns) != 1:
                hint = f"Key columns: {', '.join(columns) or 'none'}. {suggestion(column, columns)}"
                raise UsageError(7, f"--key {key} names no key column", hint=hint)
            column, value = columns[0], key
        wanted.setdefault(column, []).append(value)
    if not len(rows):
        return rows  # its columns may have no type yet
    for column, values in wanted.items():
        type_ = rows.schema.field(column).type
        try:
            members = pa.array(values, pa.string()).cast(type_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(8, f"key column '{column}' is {type_}, and {', '.join(values)} is not") from error
        rows = rows.filter(pc.is_in(rows.column(column), members))
    return rows


def _where(rows: pa.Table, where: str) -> pa.Table:
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(9, "--where needs DuckDB", hint="Type: pip install 'hailstorm[duckdb]'") from error
    try:
        return duckdb.from_arrow(rows).filter(where).to_arrow_table()
    except duckdb.Error as error:
        hint = f"Columns: {', '.join(rows.column_names)}"
        raise UsageError(10, f"--where does not work: {str(error).splitlines()[0]}", hint=hint) from error


def _in_order(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa

    # Arrow cannot order nested values; those keys come as they are stored.
    nested = any(pa.types.is_nested(rows.schema.field(name).type) for name in key)
    return rows if nested or not key else rows.sort_by([(name, "ascending") for name in key])
