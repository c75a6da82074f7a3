"""`hailstorm audit`: the state against what the logs give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.output import JsonOption, err, print_json_lines, print_rows
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import LedgerOption, load_app
from hailstorm.cli.watching import ready_to_look_back, watching
from hailstorm.ledger.json_value import to_json

if TYPE_CHECKING:
    from hailstorm.history.audit import Audited

DIFFERENT = 1


def audit(
    app: AppArgument,
    step: Annotated[list[str] | None, typer.Option(metavar="STEP", help="Only this step; may be repeated.")] = None,
    at: Annotated[str, typer.Option(metavar="WHEN", help="The moment to audit: a kept commit.")] = "latest",
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="WHEN", help="Believe the state of then, and audit what came later."),
    ] = None,
    keys: Annotated[
        str | None, typer.Option(metavar="LOW..HIGH", help="Compare only keys in this range of the first key column.")
    ] = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Compute the state of every step once more from the logs, and compare it with the ledger, row by row.

    It only reads, at low priority, and works beside a run. Most steps are computed in one batch over all records;
    those that depend on where ticks were cut are run tick by tick. The exit code is 1 when any row differs, or when a
    step could not be audited.

    \b
    Examples:
      hailstorm audit app.py
      hailstorm audit app.py --step counts --step hourly
      hailstorm audit app.py --at before-the-deploy
      hailstorm audit app.py --from 1200
      hailstorm audit app.py --step counts --keys a..f
    """
    loaded = load_app(app)
    ready_to_look_back(app, ledger)
    from hailstorm.history import looking_back

    with watching() as tell:
        found = looking_back.audit(
            loaded.topology, ledger=ledger, steps=step or (), at=at, since=since, keys=keys, tell=tell
        )
    if json:
        print_json_lines(_as_json(one) for one in found)
    else:
        print_rows(("step", "rows", "equal", "different", "by"), (_as_json(one) for one in found))
    _say(found)
    if any(one.comparison.different or one.skipped for one in found):
        raise typer.Exit(DIFFERENT)


def _as_json(one: Audited) -> dict[str, object]:
    if one.skipped:
        return {"step": one.step, "rows": None, "equal": None, "different": None, "skipped": one.skipped}
    compared = one.comparison
    counts = {"rows": compared.rows, "equal": compared.equal, "different": compared.different}
    return {"step": one.step, **counts, "by": one.by, "estimated": [*one.estimated, *compared.floats]}


def _say(found: tuple[Audited, ...]) -> None:
    """What a person must know beside the counts, on stderr."""
    for one in found:
        if one.skipped:
            err.print(f"not audited: {one.skipped}", markup=False)
        if one.estimated:
            columns = ", ".join(one.estimated)
            err.print(f"'{one.step}': {columns} are estimates, and were compared with a tolerance", markup=False)
        if one.comparison.floats:
            columns = ", ".join(one.comparison.floats)
            err.print(f"'{one.step}': {columns} are floats: a billionth more or less counted as equal", markup=False)
    for note in dict.fromkeys(note for one in found for note in one.notes):
        err.print(note, markup=False)
    first = next((one for one in found if one.comparison.different), None)
    if first is None:
        return
    err.print(f"'{first.step}' is the first step that differs:", markup=False, style="bold red")
    for example in first.comparison.examples:
        state, computed = ("no such key" if row is None else to_json(row) for row in (example.one, example.other))
        err.print(f"  {to_json(example.key)}  the state has {state}, the logs give {computed}", markup=False)
