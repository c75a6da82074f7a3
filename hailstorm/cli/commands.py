"""All commands, by what they are for; and how a command ends: exit code 0, 1 for a HailstormError, 2 for wrong words.

A command that is named is loaded alone: to load all of them, and to tell typer of all their options, takes longer than
to read a state. Help, and a word that nobody knows, need all of them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from hailstorm.cli.output import show_error
from hailstorm.cli.without_pydantic import without_pydantic
from hailstorm.errors import HailstormError, WordError

# By panel: the modules, with their commands where these are called otherwise. A command is a function of its name.
_PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "Run": {name: (name,) for name in ("run", "demo", "new", "check", "graph", "plan", "backfill", "resend", "rewind")},
    "Look": {name: (name,) for name in ("status", "commits", "state", "errors")},
    "Look back": {
        "diff": ("diff",),
        "snapshots": ("snapshots", "release"),
        **{name: (name,) for name in ("audit", "replay", "trace")},
    },
    "Machine": {
        "copy": ("copy",),
        "vacuum": ("compact", "vacuum"),
        **{name: (name,) for name in ("verify", "erase", "doctor")},
    },
}
_GROUPS = {"snapshot": ("snapshots", "Look back"), "log": ("log", "Machine")}  # with commands of their own


def command_line(only: str | None = None) -> typer.Typer:
    """All commands, or the one of this name."""
    app = typer.Typer(
        name="hailstorm",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for panel, modules in _PANELS.items():
        for module, names in modules.items():
            for name in names:
                if only in (None, name):
                    command = getattr(import_module(f"hailstorm.cli.{module}"), name)
                    app.command(rich_help_panel=panel)(command)
    for name, (module, panel) in _GROUPS.items():
        if only in (None, name):
            app.add_typer(import_module(f"hailstorm.cli.{module}").app, name=name, rich_help_panel=panel)
    app.callback()(options)
    return app


def _names() -> set[str]:
    return {name for modules in _PANELS.values() for names in modules.values() for name in names} | _GROUPS.keys()


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hailstorm {version('hailstorm')}")
        raise typer.Exit


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
    without_pydantic()
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        command_line(word if word in _names() else None)()
    except HailstormError as error:
        if os.environ.get("HAILSTORM_DEBUG"):
            raise
        show_error(error)
        sys.exit(2 if isinstance(error, WordError) else 1)
