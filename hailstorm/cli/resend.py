"""`hailstorm resend`: give a table's sink the whole table again."""

from __future__ import annotations

from typing import Annotated

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import out
from hailstorm.cli.run import NOT_DELIVERED, AppArgument, say_undelivered
from hailstorm.cli.target import LedgerOption, load_app


def resend(
    app: AppArgument,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The name of a sink of a table.")],
    ledger: LedgerOption = None,
) -> None:
    """Give a table's sink the whole table again, in place of whatever its target holds.

    For a target that has lost its rows, or that another ledger or sink has written to. The topology must not be
    running. A log of changes (Kafka, Parquet, a webhook) gets all rows of the table as inserts.

    \b
    Examples:
      hailstorm resend app.py warehouse
    """
    loaded = load_app(app)
    require_java()
    from hailstorm.engine.run import resend_table

    with ProgressDisplay() as display:
        summary = resend_table(loaded.topology, sink, ledger=ledger, on_progress=display)
    say_undelivered(summary, app)
    if summary.undelivered:
        raise typer.Exit(NOT_DELIVERED)
    out.print(f"Sink '{sink}' has the whole table, as it is at commit {summary.commit:,}.", markup=False)
