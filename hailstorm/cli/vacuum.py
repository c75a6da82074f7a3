"""`hailstorm vacuum` and `hailstorm compact`: housekeeping by hand. A run does both by itself."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from hailstorm.cli.output import JsonOption, out, print_json
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger, is_app, load_app

if TYPE_CHECKING:
    from hailstorm.ledger.ledger import Ledger
    from hailstorm.topology.retention import Retention


def vacuum(
    target: TargetArgument,
    retention: Annotated[
        str | None, typer.Option(metavar="TIERS", help="Instead of the app's own (check shows them), or all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Forget old commits as the setting retention says, and delete what nobody needs any more.

    Works beside a run, which does the same by itself. What snapshots, readers and sinks still need stays.

    \b
    Examples:
      hailstorm vacuum app.py --dry-run
      hailstorm vacuum .hailstorm/trending --retention "1 day, rest: 1 day"
    """
    from hailstorm.ledger.lease import turn
    from hailstorm.ledger.ledger import Ledger
    from hailstorm.ledger.vacuum import Vacuum, would_go

    tiers = _tiers(target, retention)
    opened = Ledger(find_ledger(target, ledger))
    before = {file.name: file.bytes for file in opened.store.files("")}
    if dry_run:
        names, commits = would_go(opened, tiers, time.time())
        found = {"files": len(names), "bytes": sum(before.get(name, 0) for name in names), "commits": commits}
    else:
        work = Vacuum(opened, tiers)
        while True:
            with turn(opened.store) as ours:
                if ours and not work.work(whole=True):
                    break
            if not ours:
                time.sleep(0.1)  # the run is at it
        after = {file.name for file in opened.store.files("")}
        gone = before.keys() - after
        found = {"files": len(gone), "bytes": sum(before[name] for name in gone), "commits": work.cleared.commits}
    if json:
        print_json(found)
    else:
        does = "would delete" if dry_run else "deleted"
        out.print(
            f"{does} {found['files']:,} files ({decimal(found['bytes'])}), forgetting {found['commits']:,} commits"
        )


def compact(target: TargetArgument, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Merge the runs of every step's state into as few as possible.

    A run does so by itself, little by little; it must not be running.

    \b
    Examples:
      hailstorm compact app.py
      hailstorm compact .hailstorm/trending && hailstorm vacuum .hailstorm/trending
    """
    from hailstorm.ledger.lease import Lease
    from hailstorm.ledger.ledger import Ledger

    path = find_ledger(target, ledger)
    lease = Lease(Ledger(path).store)
    lease.take()
    try:
        found = _compacted(Ledger(path))
    finally:
        lease.release()
    if json:
        print_json(found)
    else:
        out.print(
            "\n".join(f"{step}: {had} runs are {has}" for step, (had, has) in found.items()) or "nothing to merge"
        )


def _compacted(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """By step that had something to merge: how many runs there were, and are."""
    from hailstorm.ledger.compaction import compact as merge
    from hailstorm.ledger.ledger import next_commit

    head = ledger.head
    changes = {}
    keys: dict[str, tuple[str, ...]] = {}
    for step, shape in head.steps.items():
        keys |= shape.tables or {step: shape.key}
    for table, key in keys.items():
        runs = head.runs.get(table, ())
        past = head.past(table)
        change = merge(ledger.store, ledger.cache, table, key, runs, ledger.stamp, everything=True, past=past)
        if change is not None:
            changes[table] = change
    if changes:
        ledger.commit(next_commit(head, "compact", ledger.epoch, datetime.now(UTC), state=changes))
        ledger.write_manifest(ledger.head)
    return {step: (len(head.runs[step]), len(ledger.head.runs[step])) for step in changes}


def _tiers(target: str, retention: str | None) -> Retention:
    from hailstorm.topology.retention import DEFAULT, read_retention

    if retention is not None:
        try:
            return read_retention(retention)
        except ValueError as error:
            hint = 'all, or tiers such as "10 minutes, 1 hour: 1 second, rest: 1 day"'
            raise typer.BadParameter(f"'{retention}' is not a retention: {hint}", param_hint="--retention") from error
    return load_app(target).topology.settings.tiers if is_app(target) else DEFAULT
