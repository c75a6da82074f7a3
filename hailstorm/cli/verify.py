"""`hailstorm verify`: whether a ledger is whole. Needs no Spark and may run beside a run."""

from __future__ import annotations

import time
from dataclasses import asdict

import typer
from rich.filesize import decimal

from hailstorm.cli.output import JsonOption, err, out, print_json, print_rows
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger


def verify(target: TargetArgument, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Check every file that a kept commit names: that it is there, and that no byte of it has changed.

    Reads the whole ledger, and this machine's copies of runs, and changes nothing. The exit code is 1 when something
    is wrong.

    \b
    Examples:
      hailstorm verify .hailstorm/trending
      hailstorm verify app.py --json | jq .problems
    """
    from hailstorm.history.verify import verify as verified
    from hailstorm.ledger.ledger import Ledger

    last = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal last
        if err.is_terminal and time.monotonic() - last >= 1.0:
            last = time.monotonic()
            err.print(f"{done:,} of {of:,} files", style="dim")

    found = verified(Ledger(find_ledger(target, ledger)), tell)
    if json:
        print_json(asdict(found))
    else:
        if found.problems:
            print_rows(("file", "what", "affects"), [asdict(problem) for problem in found.problems])
        out.print(
            f"{len(found.problems)} problems in" if found.problems else "all is well:",
            f"{found.commits:,} commits, {found.files:,} files, {decimal(found.bytes)}",
        )
        if found.problems:
            if not all(problem.is_copy for problem in found.problems):
                err.print("Bring these files back from a backup. What they do not affect can still be read.")
            if any(problem.is_copy for problem in found.problems):
                err.print("Stop the topology, delete the damaged copies, and audit: its ticks may have read them.")
    if found.problems:
        raise typer.Exit(1)
