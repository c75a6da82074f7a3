"""`python -m bench`: run the benches, print, keep, draw. Exit code 1 when a required figure is not kept."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import Annotated

import typer
from rich.console import Console

from bench import record
from bench.bench import Bench, Outcome
from bench.contest import ROOT
from bench.document import write_table
from bench.picture import draw
from bench.report import show
from bench.suite import BENCHES, nexmark
from bench.suite.nexmark import write_page

console = Console(width=160)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Which benches; else all.")] = None,
    quick: Annotated[bool, typer.Option(help="Few ticks: to see that it works. Never drawn.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Name the benches and stop.")] = False,
) -> None:
    if list_:
        for bench in BENCHES:
            console.print(f"{bench.name:16} {bench.title}")
        return
    unknown = set(names or ()) - {bench.name for bench in BENCHES}
    if unknown:
        raise typer.BadParameter(f"no such bench: {', '.join(sorted(unknown))}; --list names them")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that servers and peers are ended
    chosen = [bench for bench in BENCHES if not names or bench.name in names]
    kept = True
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        os.environ["BENCH_SCRATCH"] = scratch  # all peers work below it, so that nothing stays, whoever is killed
        for bench in chosen:
            os.sync()  # what the bench before has left to be written would be in this one's way
            before = record.machine()
            outcome = _measured(bench, quick)
            show(console, bench, outcome)
            console.print(f"  kept in {record.save(bench, outcome, quick, before).relative_to(ROOT)}\n")
            kept = kept and all(check.kept for check in outcome.checks)
    if not quick:
        order = [bench.name for bench in BENCHES]
        results = sorted(record.newest(), key=lambda result: order.index(result["bench"]))
        draw(results)
        write_table([result for result in results if result["bench"] != nexmark.BENCH.name])
        write_page(next((result for result in results if result["bench"] == nexmark.BENCH.name), None))
    raise typer.Exit(0 if kept else 1)


def _measured(bench: Bench, quick: bool) -> Outcome:
    """With a line that says what is going on; minutes of silence look like a hang."""
    if not console.is_terminal:
        return bench.measure(quick, lambda text: console.print(f"{bench.name}: {text}", style="dim"))
    with console.status(bench.name) as status:
        return bench.measure(quick, lambda text: status.update(f"{bench.name}: {text}"))


if __name__ == "__main__":
    typer.run(main)
