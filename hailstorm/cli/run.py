"""`hailstorm run`: run a topology, live."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.live import Board, ProgressDisplay, profile_rows
from hailstorm.cli.output import err, print_rows, program
from hailstorm.cli.target import App, load_app, short_path
from hailstorm.engine.progress import TIMINGS, Summary


class OnDataLoss(StrEnum):
    FAIL = "fail"
    CONTINUE = "continue"


AppArgument = Annotated[str, typer.Argument(metavar="APP", help="An app file: app.py, or app.py:storm.")]


def run(
    app: AppArgument,
    until: Annotated[
        str, typer.Option(metavar="WHEN", help="When to stop: never, caught-up, or a clock as JSON.")
    ] = "never",
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="The least time from one tick to the next: 1s, 500ms.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where to keep state; else .hailstorm/<name> beside the app.")
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
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(help="Records that are gone before they were read: fail, or continue and write the hole down."),
    ] = OnDataLoss.FAIL,
    profile: Annotated[bool, typer.Option("--profile", help="At the end, show where the time of ticks went.")] = False,
) -> None:
    """Run a topology until Ctrl-C; it goes on from its last commit.

    \b
    Examples:
      hailstorm run app.py
      hailstorm run app.py --until caught-up
      hailstorm run app.py --until '{"tweets": {"0": 1000}}'
      hailstorm run app.py --every 1s --set max_tick_rows=50000 --profile
      hailstorm run app.py --master spark://host:7077 --conf spark.cores.max=8
    """
    settings, overrides = _pairs("--conf", conf), _pairs("--set", set_)
    loaded = load_app(app)
    with ProgressDisplay() as display:
        summary = run_app(
            loaded,
            display,
            ledger=ledger,
            until=until,
            every=every,
            master=master,
            conf=settings,
            overrides=overrides,
            accept=tuple(accept or ()),
            on_data_loss="continue" if on_data_loss is OnDataLoss.CONTINUE else "fail",
        )
    show_summary(summary, app)
    if profile:
        print_rows(("part", "median ms", "p99 ms", "share"), profile_rows(display.timings, TIMINGS))


def run_app(
    app: App,
    display: ProgressDisplay,
    *,
    ledger: str | None = None,
    until: str = "never",
    every: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    accept: tuple[str, ...] = (),
    on_data_loss: Literal["fail", "continue"] = "fail",
) -> Summary:
    """Start Spark and run: what `run` and `demo` share. Importing pyspark alone is worth a word on the screen."""
    require_java()
    from hailstorm.engine.run import run_topology

    display.boards = [step.sink for step in app.sinks() if isinstance(step.sink, Board)]
    return run_topology(
        app.topology,
        ledger=ledger,
        until=until,
        every=every,
        master=master,
        conf=conf or {},
        overrides=overrides or {},
        accept=accept,
        on_data_loss=on_data_loss,
        on_progress=display,
    )


def show_summary(summary: Summary, target: str) -> None:
    """How it ended, and what to type next."""
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
        err.print(f"{'       ' if number else 'Next:  '} {program()} {command} {target}", markup=False)


def _pairs(option: str, values: list[str] | None) -> dict[str, str]:
    pairs = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"'{value}' is not NAME=VALUE", param_hint=option)
        pairs[name] = text
    return pairs
