"""`hailstorm resend`: give a table's sink the whole table again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import out
from hailstorm.cli.run import NOT_DELIVERED, AppArgument, say_undelivered
from hailstorm.cli.target import load_app
from hailstorm.errors import UsageError, suggestion

if TYPE_CHECKING:
    from hailstorm.topology.topology import Topology


def resend(
    app: AppArgument,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The name of a sink of a table.")],
    ledger: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the state is; else .hailstorm/<name> beside the app.")
    ] = None,
) -> None:
    """Give a table's sink the whole table again, in place of whatever its target holds.

    For a target that has lost its rows, or that another ledger or sink has written to. The topology must not be
    running. A log of changes (Kafka, Parquet, a webhook) gets all rows of the table as inserts.

    \b
    Examples:
      hailstorm resend app.py warehouse
    """
    loaded = load_app(app)
    _refuse_no_table(loaded.topology, sink)
    require_java()
    from hailstorm.engine.run import resend_table

    with ProgressDisplay() as display:
        summary = resend_table(loaded.topology, sink, ledger=ledger, on_progress=display)
    say_undelivered(summary, app)
    if summary.undelivered:
        raise typer.Exit(NOT_DELIVERED)
    out.print(f"Sink '{sink}' has the whole table, as it is at commit {summary.commit:,}.", markup=False)


def _refuse_no_table(topology: Topology, name: str) -> None:
    from hailstorm.topology.step import Sink

    sinks = {step.name: step for step in topology.steps if isinstance(step, Sink)}
    if name not in sinks:
        raise UsageError(
            50,
            f"there is no sink '{name}'",
            hint=f"Sinks: {', '.join(sinks) or 'none'}. {suggestion(name, sinks)}".rstrip(),
        )
    if not sinks[name].is_table:
        raise UsageError(
            51,
            f"sink '{name}' gets a stream, which is not kept: only a table can be sent again",
            hint="What has not been delivered waits in the outbox, and is delivered by: hailstorm run APP",
            at=sinks[name].at,
        )
