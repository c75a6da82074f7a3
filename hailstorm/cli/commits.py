"""`hailstorm commits`: the history of a ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hailstorm.cli.output import SHOWN, JsonOption, print_json_lines, print_rows
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger
from hailstorm.cli.without_pandas import without_pandas

if TYPE_CHECKING:
    from hailstorm.ledger.commit import Commit


def commits(
    target: TargetArgument,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the newest N. A table shows 20, JSON all.")
    ] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """List the commits, oldest first. Works while a run goes on.

    \b
    Examples:
      hailstorm commits app.py
      hailstorm commits .hailstorm/trending --limit 5
      hailstorm commits app.py --json | jq .rows
    """
    without_pandas()
    from hailstorm.ledger.reader import open_ledger

    wanted = limit if json else limit or SHOWN
    newest = deque(open_ledger(find_ledger(target, ledger)).commits(), maxlen=wanted)
    if json:
        print_json_lines(map(commit_row, newest))
    else:
        columns = ("commit", "reason", "at", "rows", "ms", "watermark", "late", "errors", "skipped")
        print_rows(
            columns,
            ({"skipped": 0, **commit_row(commit), "at": commit.at[:19].replace("T", " ")} for commit in newest),
        )


def commit_row(commit: Commit) -> Mapping[str, Any]:
    """What scripts rely on: these fields of a commit, and `skipped` when overload made it leave records out."""
    return {
        "commit": commit.commit,
        "reason": commit.reason,
        "at": commit.at,
        "from": commit.start,
        "to": commit.end,
        "rows": commit.rows,
        "ms": commit.ms,
        "watermark": commit.watermark,
        "late": commit.late,
        "errors": commit.errors,
        **({"skipped": commit.skipped} if commit.skipped else {}),
    }
