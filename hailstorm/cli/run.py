"""`hailstorm run`: run a topology, live."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import Board, ProgressDisplay, profile_rows
from hailstorm.cli.output import err, print_rows, program
from hailstorm.cli.target import load_app, short_path
from hailstorm.engine.progress import JOURNEY, TIMINGS, OnProgress, Summary

if TYPE_CHECKING:
    from hailstorm.engine.delivery.deliverer import Undelivered
    from hailstorm.topology.topology import Topology


class OnDataLoss(StrEnum):
    FAIL = "fail"
    CONTINUE = "continue"


NOT_DELIVERED = 3  # the exit code of a run that has stopped before every sink had got everything
AppArgument = Annotated[str, typer.Argument(metavar="APP", help="An app file: app.py, or app.py:storm.")]


def run(
    app: AppArgument,
    until: Annotated[
        str, typer.Option(metavar="WHEN", help="When to stop: never, caught-up, or a clock as JSON.")
    ] = "never",
    complete: Annotated[
        bool,
        typer.Option("--complete", help="With --until caught-up: no more input comes, so all windows and timers end."),
    ] = False,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="The least time from one tick to the next: 1s, 500ms.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(metavar="PATH", help="A folder or s3://…; else .hailstorm/<name> beside the app.")
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="URL", help="The Spark master; else all cores here.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A setting of Spark. May be given several times.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topology; see check.")
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="STEP", help="Keep the state of a step whose meaning has changed.")
    ] = None,
    recompute: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="First make the state of a step again, from what the logs hold."),
    ] = None,
    backfill: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="Give a step the past that the logs hold, while the run goes on."),
    ] = None,
    backfill_speed: Annotated[
        int, typer.Option(metavar="PERCENT", min=1, max=100, help="The part of the time that --backfill may take.")
    ] = 50,
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(help="Records that are gone before they were read: fail, or continue and write the hole down."),
    ] = OnDataLoss.FAIL,
    standby: Annotated[
        bool, typer.Option("--standby", help="While another driver has the ledger, wait, ready to take over from it.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="At the end, show where the time of ticks went.")] = False,
) -> None:
    """Run a topology until Ctrl-C; it goes on from its last commit.

    Exit code 3 says that it has stopped, and that a sink has not got everything: it is said which, and why.

    \b
    Examples:
      hailstorm run app.py
      hailstorm run app.py --until caught-up
      hailstorm run app.py --until caught-up --complete
      hailstorm run app.py --until '{"tweets": {"0": 1000}}'
      hailstorm run app.py --every 1s --set max_tick_rows=50000 --profile
      hailstorm run app.py --recompute counts
      hailstorm run app.py --backfill hourly --backfill-speed 20
      hailstorm run app.py --standby
      hailstorm run app.py --master 'local[4]' --conf spark.driver.memory=2g
    """
    settings, overrides = pairs("--conf", conf), pairs("--set", set_)
    if complete and until != "caught-up":
        wants = "says that the logs hold all that there will be: add --until caught-up"
        raise typer.BadParameter(wants, param_hint="--complete")
    if standby and recompute:
        wants = "is done before a run begins, and nobody knows when a standby will begin: run it without --standby"
        raise typer.BadParameter(wants, param_hint="--recompute")
    loaded = load_app(app)
    with ProgressDisplay() as display:
        summary = run_watched(
            loaded.topology,
            display,
            ledger=ledger,
            until=until,
            complete=complete,
            every=every,
            master=master,
            conf=settings,
            overrides=overrides,
            accept=tuple(accept or ()),
            recompute=tuple(recompute or ()),
            backfill=tuple(backfill or ()),
            backfill_speed=backfill_speed / 100,
            on_data_loss="continue" if on_data_loss is OnDataLoss.CONTINUE else "fail",
            standby=standby,
        )
    show_summary(summary, app, ledger)
    if profile:
        print_rows(("part", "median ms", "p99 ms", "share"), profile_rows(display.timings, TIMINGS))
        way = profile_rows(display.journeys, JOURNEY, whole="arrival to delivery")
        if way:
            print_rows(("part", "median ms", "p99 ms", "share"), way)
    if summary.undelivered:
        raise typer.Exit(NOT_DELIVERED)


def run_in_script(topology: Topology, **options: Any) -> Summary:
    """`storm.run()`: as the command, with its progress, its summary and its exit code, unless the caller watches by
    itself, or sits at a prompt."""
    if "on_progress" in options:
        require_java()
        return _run(topology, **options)
    with ProgressDisplay() as display:
        summary = run_watched(topology, display, **options)
    show_summary(summary, short_path(topology.at.file))
    if summary.undelivered and not hasattr(sys, "ps1"):  # a prompt, of Python or of a notebook, has one
        raise SystemExit(NOT_DELIVERED)
    return summary


def run_watched(topology: Topology, display: ProgressDisplay, **options: Any) -> Summary:
    """Start Spark and run: what `run`, `demo` and `storm.run()` share. `options` are those of `_run` and
    `run_topology`."""
    require_java()
    display.boards = [step.sink for step in topology.sinks if isinstance(step.sink, Board)]
    return _run(topology, on_progress=display, **options)


def _run(
    topology: Topology,
    *,
    on_progress: OnProgress,
    recompute: tuple[str, ...] = (),
    backfill: tuple[str, ...] = (),
    backfill_speed: float = 0.5,
    **options: Any,
) -> Summary:
    """With state that is made again before the run, or beside it."""
    from hailstorm.engine.run import run_topology

    if recompute or backfill:
        from hailstorm.history.backfill import made_beside, made_first
        from hailstorm.history.past import refuse_without_state

        refuse_without_state(topology, (*recompute, *backfill))
        if recompute:
            options["first"] = made_first(recompute, lose=True, on_progress=on_progress)
        if backfill:
            options["between"] = made_beside(backfill, backfill_speed, on_progress)
    return run_topology(topology, on_progress=on_progress, **options)


def show_summary(summary: Summary, target: str, ledger: str | None = None) -> None:
    """`ledger` is where the user has put it, if not where the app says: then only its address leads there."""
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    err.print(
        f"Stopped at commit {summary.commit:,}: {summary.rows:,} rows in {summary.ticks:,} ticks "
        f"({summary.seconds:,.1f} s, {rate:,.0f} rows/s), {summary.errors:,} errors"
        + (f", {summary.late:,} late" if summary.late else "")
        + (f", {summary.skipped:,} skipped on overload" if summary.skipped else "")
        + (f", {summary.rejected:,} rejected by sinks" if summary.rejected else "")
    )
    err.print(f"Ledger: {short_path(summary.ledger)}")
    commands = ("status", "commits", "errors") if summary.errors + summary.rejected else ("status", "commits")
    for number, command in enumerate(commands):
        what = f"{program()} {command} {shlex.quote(ledger or target)}"
        err.print(f"{'       ' if number else 'Next:  '} {what}", markup=False)
    say_undelivered(summary, target)


def say_undelivered(summary: Summary, target: str) -> None:
    for left in summary.undelivered:
        err.print(undelivered_text(left, target), style="yellow", markup=False)


def undelivered_text(left: Undelivered, target: str) -> str:
    """What waits for a sink, why, and what to do."""
    waits = f"{left.commits:,} commits ({left.rows:,} rows) wait in the outbox" if left.commits else "it has stopped"
    why = f": {left.error}" if left.error else ": there was not enough time"
    do = "Fix that" if left.stopped else "They are delivered when it can be reached"
    again = f"hailstorm run {shlex.quote(target)}"
    return f"Sink '{left.sink}' has not got everything: {waits}{why}\n  {do}, then run again: {again}"


def pairs(option: str, values: list[str] | None) -> dict[str, str]:
    """What was given as NAME=VALUE, several times."""
    found = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"'{value}' is not NAME=VALUE", param_hint=option)
        found[name] = text
    return found
