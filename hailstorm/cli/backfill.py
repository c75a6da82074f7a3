"""`hailstorm backfill`: give a step its past."""

from __future__ import annotations

from typing import Annotated

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import JsonOption, out, print_json
from hailstorm.cli.run import NOT_DELIVERED, AppArgument, say_undelivered
from hailstorm.cli.target import load_app


def backfill(
    app: AppArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step with state; what is below it comes along.")],
    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="Not from the beginning of the logs, but from then on.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the state is; else .hailstorm/<name> beside the app.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Give a step that was added later the past that the logs still hold, at full speed.

    The step, and what is below it, is run over the logs once more, beside the ledger's own state, and then takes its
    place in one commit: as if it had been there from the beginning. Sinks of its tables get the whole table. Killed
    half way, it goes on where it was. The topology must not be running: beside a run, say run APP --backfill STEP.

    \b
    Examples:
      hailstorm backfill app.py hourly
      hailstorm backfill app.py hourly --from 2026-11-01
    """
    loaded = load_app(app)
    require_java()
    from hailstorm.history.backfill import backfill_topology

    with ProgressDisplay() as display:
        past, summary = backfill_topology(loaded.topology, step, since=since, ledger=ledger, on_progress=display)
    if json:
        print_json({"steps": past.steps, "records": past.records if past.missing else 0, "commit": summary.commit})
    elif past.missing:
        names = ", ".join(f"'{name}'" for name in past.steps)
        out.print(f"{names}: made of all {past.records:,} records that the logs hold.", markup=False)
    else:
        out.print(f"'{step}' has all of its past already.", markup=False)
    say_undelivered(summary, app)
    if summary.undelivered:
        raise typer.Exit(NOT_DELIVERED)
