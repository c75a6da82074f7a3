"""`hailstorm plan`: what has changed in an app since its last run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.cli.doctor import require_java
from hailstorm.cli.output import JsonOption, err, out, print_json
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import LEDGER_FILE, load_app
from hailstorm.errors import UsageError

if TYPE_CHECKING:
    from hailstorm.history.planning import Choice, StepChange
    from hailstorm.topology.topology import Topology


def plan(
    app: AppArgument,
    ledger: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the state is; else .hailstorm/<name> beside the app.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what has changed since the last run, step by step, and what each choice would cost. Changes nothing.

    \b
    Examples:
      hailstorm plan app.py
      hailstorm plan app.py --json | jq '.steps[] | select(.needs_word)'
    """
    topology = load_app(app).topology
    topology.validate()
    require_java()
    with err.status("Asking Spark for the types, and the logs how far they reach back"):
        found = _changes(topology, ledger, app)
    waits = [one.step for one in found if one.needs_word]
    if json:
        print_json({"goes_on": not waits, "steps": [asdict(one) for one in found]})
        return
    for one in found:
        _show(one)
    if waits:
        out.print(f"\nrun stops until you choose for: {', '.join(waits)}", markup=False)
    else:
        out.print("\nrun goes on by itself.")


def _changes(topology: Topology, ledger: str | None, app: str) -> tuple[StepChange, ...]:
    from hailstorm.engine.plan.compiler import compile_topology
    from hailstorm.engine.run import resolved
    from hailstorm.engine.spark.session import start_session
    from hailstorm.history.planning import planned_changes
    from hailstorm.ledger.ledger import Ledger
    from hailstorm.ledger.stores import open_store

    address = topology.ledger_address(ledger)
    if open_store(address).get(LEDGER_FILE) is None:
        raise UsageError(112, f"'{app}' has never run: all of it is new", hint=f"Type: hailstorm run {app}")
    topology = resolved(topology)
    opened = Ledger(address)
    spark = start_session(f"hailstorm plan {topology.name}", master="local[1]")
    return planned_changes(topology, opened, compile_topology(spark, topology, tasks=1))


_SIGNS = {"unchanged": " ", "renamed": "~", "added": "+", "removed": "-", "changed": "~", "returned": "~"}


def _show(one: StepChange) -> None:
    where = f"  {one.at}" if one.at else ""
    rows = f"  about {one.rows:,} rows of state" if one.rows else ""
    out.print(f"{_SIGNS[one.change]} {one.step}  {one.change}{where}{rows}", markup=False)
    for part in one.parts:
        out.print(f"    {part.name}: {part.old or 'nothing'} -> {part.new or 'nothing'}", markup=False)
    if one.remark:
        out.print(f"    {one.remark}", markup=False)
    for choice in one.choices:
        out.print(f"    {_choice(choice)}", markup=False)


def _choice(choice: Choice) -> str:
    cost = f" ({choice.records:,} records to read)" if choice.records else ""
    lost = f", without {choice.lost:,} records that the logs no longer have" if choice.lost else ""
    refused = f"; refused: {choice.refused}" if choice.refused else ""
    return f"{choice.option or 'say nothing'}: {choice.meaning}{cost}{lost}{refused}"
