"""`hailstorm snapshot`, `snapshots` and `release`: commits with a name. Need no Spark and may run beside a run."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from typer.core import TyperGroup

from hailstorm.cli.output import JsonOption, err, out, plain_write_errors, print_json, print_json_lines, print_rows
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger
from hailstorm.errors import UsageError

if TYPE_CHECKING:
    from hailstorm.history.exporting import Contents, Progress
    from hailstorm.history.opened import OpenLedger
    from hailstorm.history.snapshots import NamedCommit

MAKE = "make"


class _MakeUnlessSaid(TyperGroup):
    """`hailstorm snapshot app.py monday` is `hailstorm snapshot make app.py monday`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [MAKE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_MakeUnlessSaid, no_args_is_help=True)


@app.callback()
def snapshot() -> None:
    """Give a commit a name; carry a named one elsewhere.

    A snapshot is kept until it is released, whatever the setting retention says.

    \b
    Examples:
      hailstorm snapshot app.py before-the-deploy
      hailstorm snapshot app.py monday --at 2026-01-26
      hailstorm snapshot export app.py monday monday.tar
      hailstorm snapshot import monday.tar .hailstorm/elsewhere
    """


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and . _ -; a letter first.")]


@app.command(name=MAKE)
def make(
    target: TargetArgument,
    name: NameArgument,
    at: Annotated[
        str, typer.Option(metavar="WHEN", help="A commit number, a clock (JSON), a time, or latest.")
    ] = "latest",
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Give a commit a name, so that it is kept. The word make may be left out.

    \b
    Examples:
      hailstorm snapshot make app.py before-the-deploy
      hailstorm snapshot app.py monday --at 2026-01-26
      hailstorm snapshot app.py then --at latest-5
    """
    from hailstorm.history.snapshots import make_snapshot
    from hailstorm.ledger.ledger import Ledger

    path = find_ledger(target, ledger)
    with plain_write_errors(Path(path)):
        made = make_snapshot(Ledger(path), name, at)
    if json:
        print_json({"snapshot": name, "commit": made.commit, "made": made.made})
    else:
        out.print(f"snapshot {name}: commit {made.commit}. To let it go: hailstorm release {target} {name}")


@app.command(name="export")
def export_(
    target: TargetArgument,
    name: NameArgument,
    to: Annotated[str, typer.Argument(metavar="FILE|FOLDER", help="A new file that ends in .tar, or a new folder.")],
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Write a snapshot to one file, or to a folder, that opens elsewhere: state, clock, dead letters and cursors.

    A folder is a ledger at once. Either becomes another ledger, with an id of its own.

    \b
    Examples:
      hailstorm snapshot export app.py monday monday.tar
      hailstorm snapshot export .hailstorm/trending monday /backup/monday
    """
    from hailstorm.history.exporting import export_snapshot
    from hailstorm.ledger.ledger import Ledger

    with plain_write_errors(Path(to)):
        contents = export_snapshot(Ledger(find_ledger(target, ledger)), name, to, _progress("exporting"))
    _tell(contents, f"exported to {to}", json)


@app.command(name="import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE|FOLDER", help="What `snapshot export` wrote.")],
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The new ledger's folder.")],
    json: JsonOption = False,
) -> None:
    """Make a ledger of an export. What is damaged, or no export, is refused and leaves nothing.

    \b
    Examples:
      hailstorm snapshot import monday.tar .hailstorm/monday
      hailstorm state .hailstorm/monday counts
    """
    from hailstorm.history.importing import import_snapshot

    with plain_write_errors(Path(ledger)):
        contents = import_snapshot(source, ledger, _progress("importing"))
    _tell(contents, f"imported to {ledger}", json)


def snapshots(target: TargetArgument, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """List the snapshots, with what they hold.

    `bytes` is all of a snapshot's state; `alone` is the part of it that the newest commit does not share.

    \b
    Examples:
      hailstorm snapshots app.py
      hailstorm snapshots .hailstorm/trending --json
    """
    from hailstorm.history.snapshots import list_snapshots
    from hailstorm.ledger.ledger import Ledger

    rows = [_row(one) for one in list_snapshots(Ledger(find_ledger(target, ledger)))]
    if json:
        print_json_lines(rows)
        return
    if not rows:
        err.print(f"there are no snapshots yet: hailstorm snapshot {target} NAME")
        return
    columns = ("snapshot", "commit", "at", "age", "bytes", "alone")
    print_rows(columns, ({**row, "bytes": decimal(row["bytes"]), "alone": decimal(row["alone"])} for row in rows))


def release(
    target: TargetArgument,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A snapshot.")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="STEP", help="Let the state of a step go that was removed from the topology.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Let a snapshot go, or with --step the state of a step that was removed.

    A snapshot's commit is kept from then on only as long as the setting retention says. The state of a step that was
    removed stays, so that the step can come back, until it is released: then it is in no new commit, and its files go
    with the older commits that name them. The topology must not be running then.

    \b
    Examples:
      hailstorm release app.py before-the-deploy
      hailstorm release app.py --step old_counts --dry-run
      hailstorm release app.py --step old_counts --yes
    """
    from hailstorm.history.opened import open_ledger

    if (name is None) == (step is None):
        hint = "hailstorm release TARGET NAME lets a snapshot go, hailstorm release TARGET --step STEP a step's state."
        raise UsageError(113, "release takes the name of a snapshot, or --step", hint=hint)
    path = find_ledger(target, ledger)
    if step is not None:
        _release_state(open_ledger(path), step, dry_run, yes, json)
        return
    assert name is not None
    with plain_write_errors(Path(path)):
        gone = open_ledger(path).release(name)
    if json:
        print_json({"snapshot": name, "commit": gone.commit})
    else:
        out.print(f"released {name}: commit {gone.commit} goes as the setting retention says")


def _release_state(ledger: OpenLedger, step: str, dry_run: bool, yes: bool, json: bool) -> None:
    from hailstorm.ledger.releasing import releasable

    kept = releasable(ledger.live(), step)
    what = f"the state of '{step}': about {kept.rows:,} rows in {kept.runs:,} runs, {decimal(kept.bytes)}"
    commit = None
    if not dry_run:
        if not yes:
            typer.confirm(f"Release {what}?", abort=True, err=True)
        with plain_write_errors(Path(ledger.address)):
            commit = ledger.release_state(step).commit
    if json:
        print_json({**asdict(kept), "commit": commit})
    elif commit is None:
        out.print(f"would release {what}", markup=False)
    else:
        out.print(f"released {what}. Commit {commit} is without it; older ones go as retention says", markup=False)


def _row(found: NamedCommit) -> dict[str, Any]:
    at = datetime.fromisoformat(found.at)
    return {
        "snapshot": found.name,
        "commit": found.commit,
        "at": at.astimezone(UTC),
        "age": _age((datetime.now(UTC) - at).total_seconds()),
        "made": found.made,
        "clock": found.clock,
        "bytes": found.bytes,
        "alone": found.alone,
    }


def _age(seconds: float) -> str:
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{int(seconds)} seconds"


def _tell(contents: Contents, what: str, json: bool) -> None:
    size = sum(file.bytes for file in contents.files.values())
    if json:
        found = {"snapshot": contents.snapshot, "commit": contents.commit, "files": len(contents.files), "bytes": size}
        print_json(found)
    else:
        out.print(
            f"{contents.snapshot} (commit {contents.commit}) {what}: {len(contents.files)} files, {decimal(size)}"
        )


def _progress(what: str) -> Progress:
    """A line per second, on a terminal only."""
    last = time.monotonic()

    def show(done: int, of: int) -> None:
        nonlocal last
        if err.is_terminal and time.monotonic() - last >= 1.0:
            last = time.monotonic()
            err.print(f"{what}: {decimal(done)} of {decimal(of)}", style="dim")

    return show
