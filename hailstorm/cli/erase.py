"""`hailstorm erase`: a key leaves state, history, outboxes and dead letters. Needs no Spark, and no run beside it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.output import JsonOption, err, out, print_json
from hailstorm.cli.rows import parsed_keys
from hailstorm.cli.target import LedgerOption, TargetArgument, find_ledger, is_app, load_app
from hailstorm.errors import UsageError

if TYPE_CHECKING:
    from hailstorm.spouts.log import Log


def erase(
    target: TargetArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step with state.")],
    key: Annotated[
        list[str], typer.Option(metavar="K", help="The key: user=ada, or ada when there is one key column.")
    ],
    logs: Annotated[
        bool, typer.Option("--logs", help="Also erase its records from embedded logs. TARGET must be the app.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be erased.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a key from a step: from its state at every commit, from outboxes and from dead letters.

    It cannot be undone. The topology must not be running. A key of which only some columns are named is erased
    with all values of the others (all windows of a user, say). Of rows that a step keeps without showing them (members
    of groups, rows that wait to be joined), their columns are named the same way. What else may hold the key is named.
    With --logs the embedded logs above the step lose the records that are JSON objects with the key as a field; others
    keep their offsets.

    \b
    Examples:
      hailstorm erase app.py accounts --key user=ada --dry-run
      hailstorm erase app.py accounts --key user=ada --yes
      hailstorm erase app.py accounts --key user=ada --logs --yes
      hailstorm erase app.py clicks_and_orders --key user=ada --yes
    """
    from hailstorm.history.erase import erasable
    from hailstorm.history.erase import erase as erased
    from hailstorm.ledger.ledger import Ledger

    opened = Ledger(find_ledger(target, ledger))
    columns = erasable(opened, step)
    wanted = parsed_keys(opened.head.steps[step].key, key, columns, also=tuple(columns))
    if not (dry_run or yes):
        also = ", and from its logs" if logs else ""
        typer.confirm(f"Erase {', '.join(key)} from '{step}', at every commit{also}, for good?", abort=True, err=True)
    report = erased(opened, step, wanted, dry_run, _logs_above(target, step) if logs else {})
    if json:
        print_json(asdict(report))
        return
    does = "would be" if dry_run else "were"
    for place, rows in report.places():
        out.print(f"{place}: {rows:,} rows {does} erased", markup=False)
    if not report.places():
        out.print(f"'{step}' has no such key, at any commit that is kept", markup=False)
    if report.published:
        out.print(f"the published table delta/{step} {'would be' if dry_run else 'was'} removed; the next run makes it")
    for sentence in report.elsewhere:
        err.print(sentence, markup=False)


def _logs_above(target: str, step: str) -> dict[str, Log]:
    from hailstorm.history.erase import logs_above

    if not is_app(target):
        hint = f"Name the app: hailstorm erase app.py {step} --key ... --logs"
        raise UsageError(114, "--logs needs the app: a ledger does not know where its logs are", hint=hint)
    return logs_above(load_app(target).topology, step)
