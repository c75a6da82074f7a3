"""`hailstorm replay`: committed ticks once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.output import JsonOption, err, print_json_lines
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import LedgerOption, load_app
from hailstorm.cli.watching import ready_to_look_back, watching
from hailstorm.ledger.json_value import to_json

if TYPE_CHECKING:
    from hailstorm.history.replay import Replayed, Unlike

DIFFERENT = 1
_WHAT = {
    "rows": "gave two different rows when the same tick was run twice",
    "state": "has another state than was committed",
    "outbox": "got other rows than were committed",
}


def replay(
    app: AppArgument,
    since: Annotated[str, typer.Option("--from", metavar="WHEN", help="The kept commit to begin with.")],
    until: Annotated[str, typer.Option("--to", metavar="WHEN", help="The last commit to run again.")] = "latest",
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Run committed ticks again and compare states and outputs with what was committed.

    Whatever differs comes from code that is not deterministic, or that was another one then. It ends with the first
    commit that differs, names the step and shows two rows; the exit code is 1. It only reads, at low priority.

    \b
    Examples:
      hailstorm replay app.py --from 1200
      hailstorm replay app.py --from 1200 --to 1300
      hailstorm replay app.py --from before-the-deploy --json
    """
    loaded = load_app(app)
    ready_to_look_back(app, ledger)
    from hailstorm.history import looking_back

    with watching() as tell:
        found = looking_back.replay(loaded.topology, ledger=ledger, since=since, until=until, tell=tell)
    if json:
        print_json_lines(map(_as_json, found.unlike))
    _say(found)
    if found.unlike:
        raise typer.Exit(DIFFERENT)


def _as_json(one: Unlike) -> dict[str, object]:
    rows = {"committed": one.committed, "replayed": one.replayed}
    return {"commit": one.commit, "step": one.step, "what": one.what, "rows": one.rows, **rows}


def _say(found: Replayed) -> None:
    for sentence in found.left_out:
        err.print(sentence, markup=False)
    if not found.unlike:
        err.print(
            f"{found.commits:,} commits gave the same again, with the rows of {found.outboxes:,} files that sinks got"
        )
        return
    out_of = f"commit {found.unlike[0].commit:,}, the first that differs:"
    err.print(out_of, style="bold red")
    for one in found.unlike:
        err.print(f"  '{one.step}' {_WHAT[one.what]}, in {one.rows:,} rows:", markup=False)
        for row in (one.committed, one.replayed):
            err.print(f"    {'no such row' if row is None else to_json(row)}", markup=False)
