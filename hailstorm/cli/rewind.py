"""`hailstorm rewind`: go back to an earlier moment."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import JsonOption, err, out, print_json
from hailstorm.cli.run import NOT_DELIVERED, AppArgument, OnDataLoss, say_undelivered
from hailstorm.cli.target import LedgerOption, load_app
from hailstorm.errors import UsageError, WordError

if TYPE_CHECKING:
    from hailstorm.history.rewind import Rewinding


class Append(StrEnum):
    REFUSE = "refuse"
    KEEP = "keep"


def rewind(
    app: AppArgument,
    to: Annotated[
        str, typer.Option(metavar="WHEN", help="A commit number, a snapshot, a clock (JSON), a time, or latest-5.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    append: Annotated[
        Append,
        typer.Option(
            help="Sinks of streams that have got rows since: refuse, or keep those there and send them again."
        ),
    ] = Append.REFUSE,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="Keep the state that a step had then, although its meaning has changed."),
    ] = None,
    on_data_loss: Annotated[
        OnDataLoss, typer.Option(help="Records since then that the logs no longer have: fail, or continue.")
    ] = OnDataLoss.FAIL,
    steps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP",
            help="Only this step, and what is below it: its state of then, and all records since again. Repeatable.",
        ),
    ] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Go back to an earlier moment: state, clock, windows, timers and dead letters are as they were then.

    It is a new commit: the history stays, and you can rewind forward again. Sinks of tables are corrected: changed keys
    get their value of then, and keys that were not there are deleted. The next run goes on from the clock of then, with
    the code that the app has now. The topology must not be running.

    With --steps the rest of the topology stays as it is: these steps, and all below them, begin with their state of
    then and get again what was read since, with the code that the app has now. Sinks of their tables get the whole
    table; what sinks of streams have got stays.

    \b
    Examples:
      hailstorm rewind app.py --to 1200 --dry-run
      hailstorm rewind app.py --to before-the-deploy
      hailstorm rewind app.py --to 2026-11-17T10:30:00 --yes
      hailstorm rewind app.py --to latest-5 --append keep
      hailstorm rewind app.py --to before-the-deploy --steps hourly
    """
    loaded = load_app(app)
    from hailstorm.history.rewind import look_back_at, refusal, rewind_topology
    from hailstorm.history.rewind_steps import look_back_at_steps, rewind_steps

    some = tuple(steps or ())
    if some and (append is Append.KEEP or on_data_loss is OnDataLoss.CONTINUE):
        what = "--append" if append is Append.KEEP else "--on-data-loss"
        raise WordError(
            115, f"{what} does not go with --steps", hint="Sinks of streams, and the logs, stay as they are."
        )
    found = look_back_at_steps(loaded.topology, to, some, ledger) if some else look_back_at(loaded.topology, to, ledger)
    refused = refusal(found) if append is Append.REFUSE and not some else None
    if dry_run:
        _show(found, json)
        if refused is not None:
            err.print(f"As it is, it would be refused: {refused.what}\n{refused.hint}", style="yellow", markup=False)
        return
    if refused is not None:
        raise refused
    if not yes:
        _show(found, json=False)
        _ask(found)
    require_java()
    consent = tuple(accept or ())
    with ProgressDisplay() as display:
        if some:
            done = rewind_steps(loaded.topology, found.to, some, ledger=ledger, accept=consent, on_progress=display)
        else:
            done = rewind_topology(
                loaded.topology,
                found.to,
                ledger=ledger,
                append="keep" if append is Append.KEEP else "refuse",
                accept=consent,
                on_data_loss="continue" if on_data_loss is OnDataLoss.CONTINUE else "fail",
                on_progress=display,
            )
    if json:
        print_json(as_json(done))
    elif some:
        names, read = ", ".join(f"'{name}'" for name in done.steps), sum(done.records.values())
        out.print(
            f"Commit {done.commit:,}: {names} went back to commit {done.to:,}, and got {read:,} records again.",
            markup=False,
        )
    else:
        again = f"hailstorm run {shlex.quote(app)}"
        out.print(f"Commit {done.commit:,} is as commit {done.to:,} was. To go on from there: {again}", markup=False)
    assert done.summary is not None
    say_undelivered(done.summary, app)
    if done.summary.undelivered:
        raise typer.Exit(NOT_DELIVERED)


def as_json(found: Rewinding) -> dict[str, Any]:
    """What scripts rely on."""
    return {
        "head": found.head,
        "to": found.to,
        "at": found.at,
        "records": found.records,
        "keys": found.keys,
        "letters": found.letters,
        "tables": found.tables,
        "streams": found.streams,
        "steps": found.steps,
        "commit": found.commit or None,
    }


def _show(found: Rewinding, json: bool) -> None:
    if json:
        print_json(as_json(found))
        return
    when = f", of {found.at[:19].replace('T', ' ')}" if found.at else ""
    out.print(f"From commit {found.head:,} back to commit {found.to:,}{when}:")
    for effect in found.effects():
        out.print(f"  {effect}", markup=False)


def _ask(found: Rewinding) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            110,
            "a rewind asks before it does anything, and here is nobody to answer",
            hint="To look: --dry-run. To do it: --yes",
        )
    if not typer.confirm(f"Go back to commit {found.to}?", err=True):
        err.print("Nothing was changed.")
        raise typer.Exit(1)
