"""`hailstorm copy`: a ledger in another store."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hailstorm.cli.output import JsonOption, err, out, print_json
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger


def copy(
    target: TargetArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="A folder, or s3://bucket/path, gs://…, az://…")],
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a ledger to another place: its state, its history, and what waits for sinks.

    Works beside a run, and copies what was committed when it began. Copying again brings the copy up to date. To move a
    ledger: copy it, stop the run, copy again (which takes a moment), and run with the new one.

    \b
    Examples:
      hailstorm copy .hailstorm/trending s3://my-bucket/ledgers/trending
      hailstorm copy s3://my-bucket/ledgers/trending backup/trending
    """
    from hailstorm.engine.wishes import check_ledger
    from hailstorm.ledger.copying import copy_ledger
    from hailstorm.ledger.ledger import Ledger

    check_ledger(to)
    source = Ledger(find_ledger(target, ledger))
    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("copying", total=None)
        found = copy_ledger(source, to, lambda done, total: progress.update(task, completed=done, total=total))
    if json:
        print_json({"commit": found.commit, "files": found.files, "bytes": found.bytes, "to": to})
    else:
        out.print(
            f"{to} is the ledger at commit {found.commit:,}: copied {found.files:,} files ({decimal(found.bytes)})",
            markup=False,
        )
