"""All commands in one list, and how a command ends: exit code 0, 1 for a HailstormError, 2 for wrong words."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from hailstorm.cli import (
    audit,
    backfill,
    check,
    commits,
    copy,
    demo,
    diff,
    doctor,
    erase,
    errors,
    graph,
    log,
    new,
    plan,
    replay,
    resend,
    rewind,
    run,
    snapshots,
    state,
    status,
    trace,
    vacuum,
    verify,
)
from hailstorm.cli.output import show_error
from hailstorm.errors import HailstormError, WordError

app = typer.Typer(
    name="hailstorm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for panel, commands in {
    "Run": (
        run.run,
        demo.demo,
        new.new,
        check.check,
        graph.graph,
        plan.plan,
        backfill.backfill,
        resend.resend,
        rewind.rewind,
    ),
    "Look": (status.status, commits.commits, state.state, errors.errors),
    "Look back": (diff.diff, snapshots.snapshots, snapshots.release, audit.audit, replay.replay, trace.trace),
    "Machine": (copy.copy, vacuum.compact, vacuum.vacuum, verify.verify, erase.erase, doctor.doctor),
}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(snapshots.app, name="snapshot", rich_help_panel="Look back")
app.add_typer(log.app, name="log", rich_help_panel="Machine")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hailstorm {version('hailstorm')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Streams with exactly-once state, on Apache Spark.

    \b
    Examples:
      hailstorm demo                   see it work
      hailstorm new shop               a small project of your own
      hailstorm run app.py             run a topology
      hailstorm state app.py counts    read its state while it runs
    """


def run_command_line() -> None:
    """Run the command in `sys.argv` and leave the process."""
    try:
        app()
    except HailstormError as error:
        if os.environ.get("HAILSTORM_DEBUG"):
            raise
        show_error(error)
        sys.exit(2 if isinstance(error, WordError) else 1)
