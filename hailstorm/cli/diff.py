"""`hailstorm diff`: what changed in a step between two moments. Needs no Spark and may run beside a run."""

from __future__ import annotations

from typing import Annotated

import typer

from hailstorm.cli.moments import states_of
from hailstorm.cli.output import JsonOption, err
from hailstorm.cli.rows import (
    FormatOption,
    KeyOption,
    LimitOption,
    OutputOption,
    WhereOption,
    chosen_format,
    give,
    most_rows,
    parsed_keys,
    where_true,
)
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger
from hailstorm.cli.without_pandas import without_pandas


def diff(
    target: TargetArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step with state.")],
    a: Annotated[
        str, typer.Argument(metavar="A", help="A commit, a snapshot, a clock (JSON), a record, a time, or latest-5.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other moment.")] = "latest",
    key: KeyOption = None,
    where: WhereOption = None,
    limit: LimitOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Show what changed in a step from moment A to moment B: one row per key that differs.

    The values are in before and after; a delete has no after, and an insert no before.

    \b
    Examples:
      hailstorm diff app.py counts 41 42
      hailstorm diff app.py counts monday latest --where "after.n > 2 * before.n"
      hailstorm diff app.py counts latest-5 --key rain --json
      hailstorm diff app.py counts tweets/0@1200 tweets/0@1201
      hailstorm diff app.py counts 2026-01-31T09:00 2026-01-31T10:00 --output hour.parquet
    """
    without_pandas()
    from hailstorm.history.diff import Diff, refuse_unknown
    from hailstorm.ledger.ledger import Ledger

    form = chosen_format(format, output, json)
    opened = Ledger(find_ledger(target, ledger))
    with states_of(target, opened, (a, b), step) as (one, other):
        refuse_unknown(step, one, other, opened.head)
        found = Diff(one, other)
        rows = found.of_keys(parsed_keys(found.shape.key, key, found.key_types())) if key else found.arrow()
    if where is not None:
        rows = where_true(rows, where)
    wanted = most_rows(limit, form, output)
    if not rows.num_rows:
        err.print(f"nothing differs in '{step}' between {a} and {b}")
    give(rows.slice(0, wanted), rows.num_rows, form, output, limit)
