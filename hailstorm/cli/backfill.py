"""`hailstorm backfill`: give a step its past."""

from __future__ import annotations

from typing import Annotated

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import JsonOption, out, print_json
from hailstorm.cli.run import NOT_DELIVERED, AppArgument, OnDataLoss, say_undelivered
from hailstorm.cli.target import LedgerOption, load_app
from hailstorm.errors import WordError


def backfill(
    app: AppArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step with state; what is below it comes along.")],
    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="Not from the beginning of the logs, but from then on.")
    ] = None,
    from_files: Annotated[
        list[str] | None,
        typer.Option(
            "--from-files",
            metavar="[SPOUT=]PATH",
            help="Records that the log no longer has: Parquet or JSON Lines with _partition and _offset. "
            "May be given once for each spout.",
        ),
    ] = None,
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(help="Offsets that neither the files nor the log have: fail, or continue without them."),
    ] = OnDataLoss.FAIL,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Give a step that was added later the past that the logs still hold, at full speed.

    The step, and what is below it, is run over the logs once more, beside the ledger's own state, and then takes its
    place in one commit: as if it had been there from the beginning. Sinks of its tables get the whole table. Killed
    half way, it goes on where it was. The topology must not be running: beside a run, say run APP --backfill STEP.

    With --from-files it begins with records that the log no longer has, from files that end where the log begins.

    \b
    Examples:
      hailstorm backfill app.py hourly
      hailstorm backfill app.py hourly --from 2026-11-01
      hailstorm backfill app.py hourly --from-files archive/orders
    """
    loaded = load_app(app)
    require_java()
    from hailstorm.history.archives import files_by_spout
    from hailstorm.history.backfill import backfill_topology

    if on_data_loss is OnDataLoss.CONTINUE and not from_files:
        raise WordError(117, "--on-data-loss is about what --from-files lacks, and there is none")
    files = files_by_spout(tuple(from_files or ()), loaded.topology)
    with ProgressDisplay() as display:
        past, summary = backfill_topology(
            loaded.topology,
            step,
            since=since,
            from_files=files,
            on_data_loss="continue" if on_data_loss is OnDataLoss.CONTINUE else "fail",
            ledger=ledger,
            on_progress=display,
        )
    if json:
        print_json({"steps": past.steps, "records": past.records if past.missing else 0, "commit": summary.commit})
    elif past.missing:
        names = ", ".join(f"'{name}'" for name in past.steps)
        held = "the files and the logs hold" if files else "the logs hold"
        out.print(f"{names}: made of all {past.records:,} records that {held}.", markup=False)
    else:
        out.print(f"'{step}' has all of its past already.", markup=False)
    say_undelivered(summary, app)
    if summary.undelivered:
        raise typer.Exit(NOT_DELIVERED)
