"""`hailstorm demo`: a shipped example that runs on a log which the demo itself fills.

The example is copied into a folder of its own, so that every other command can be tried on it, and so that the copy
can be edited and run with `hailstorm run`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import err, plain_write_errors, program
from hailstorm.cli.run import run_watched, show_summary
from hailstorm.cli.target import App, load_app
from hailstorm.errors import UsageError, WordError, suggestion

if TYPE_CHECKING:
    from hailstorm.engine.progress import Progress

EXAMPLES = ("trending", "visitors", "junctions", "ads", "orders", "fraud")
UNATTENDED_SECONDS = 20.0  # nobody is there to press Ctrl-C
FIRST_ROWS, ROWS, PAUSE = 20_000, 1_000, 0.5


def demo(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help=f"One of: {', '.join(EXAMPLES)}.")] = EXAMPLES[0],
    seconds: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Stop after so long; else at Ctrl-C (in a pipe: 20).")
    ] = None,
    folder: Annotated[
        Path, typer.Option(metavar="PATH", help="Where to work; what an earlier demo left there goes.")
    ] = Path(".hailstorm/demo"),
) -> None:
    """Watch a ready topology count made-up events, live on Spark.

    \b
    Examples:
      hailstorm demo
      hailstorm demo visitors
      hailstorm demo junctions --seconds 30
    """
    if name not in EXAMPLES:
        hint = suggestion(name, EXAMPLES) or f"There are: {', '.join(EXAMPLES)}"
        raise WordError(12, f"there is no demo '{name}'", hint=hint)
    app = load_app(str(_fresh_copy(name, folder / name)))
    target = str(folder / name / "app.py")
    if seconds is None and not sys.stderr.isatty():
        seconds = UNATTENDED_SECONDS
    _show_advice(app, target, seconds)
    app.module.feed(_log(app), FIRST_ROWS, seed=0)  # so that there is something to catch up with
    stop = threading.Event()
    feeder = threading.Thread(target=_feed, args=(app, stop), name="feed", daemon=True)
    feeder.start()
    try:
        with DemoDisplay(seconds=seconds) as display:
            summary = run_watched(app.topology, display)
    finally:
        stop.set()
        feeder.join()
    show_summary(summary, target)


class DemoDisplay(ProgressDisplay):
    """The usual progress; and once the topology runs, the clock of `--seconds` does, too."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self._seconds = seconds

    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        if self._seconds is not None and progress.phase == "running":
            timer = threading.Timer(self._seconds, os.kill, (os.getpid(), signal.SIGINT))  # as a person would stop it
            timer.daemon = True
            timer.start()
            self._seconds = None


def _fresh_copy(name: str, folder: Path) -> Path:
    """The example as an app file in an empty folder. Only a folder that a demo made is emptied."""
    app = folder / "app.py"
    if folder.exists() and not app.exists() and any(folder.iterdir()):
        raise UsageError(13, f"'{folder}' has other files in it", hint="Choose another: hailstorm demo --folder PATH")
    with plain_write_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        app.write_text(files("hailstorm.examples").joinpath(f"{name}.py").read_text())
    return app


def _feed(app: App, stop: threading.Event) -> None:
    """A steady stream of new events, until the run has ended."""
    seed = 0
    while not stop.wait(PAUSE):
        seed += 1
        app.module.feed(_log(app), ROWS, seed=seed)


def _log(app: App) -> Any:
    return app.topology.spouts[0].source.resolve(app.topology.folder)


def _show_advice(app: App, target: str, seconds: float | None) -> None:
    folds = [step.name for step in app.topology.steps if step.kind == "fold"]
    typed = shlex.quote(target)
    how = f"It stops after {seconds:g} s." if seconds is not None else "Ctrl-C stops it."
    err.print(f"[bold]{app.topology.name}[/bold]: the topology is in {target}. {how}")
    err.print(
        "While it runs, try in another terminal:",
        f"  {program()} graph {typed}",
        f"  {program()} status {typed}",
        f"  {program()} state {typed} {folds[0]} --limit 5",
        f"  {program()} commits {typed}",
        sep="\n",
        markup=False,
    )
    err.print()
