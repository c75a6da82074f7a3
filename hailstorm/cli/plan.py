"""`hailstorm plan`: what has changed in an app since its last run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from hailstorm.cli.doctor import require_java
from hailstorm.cli.output import JsonOption, err, out, print_json
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import LedgerOption, load_app

if TYPE_CHECKING:
    from hailstorm.history.planning import StepChange


def plan(
    app: AppArgument,
    ledger: LedgerOption = None,
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
    from hailstorm.history.planning import plan_topology

    with err.status("Asking Spark for the types, and the logs how far they reach back"):
        found = plan_topology(topology, ledger, master="local[1]")
    if json:
        print_json({"goes_on": not found.waits, "steps": [asdict(one) for one in found.steps]})
        return
    for one in found.steps:
        _show(one)
    if found.waits:
        out.print(f"\nrun stops until you choose for: {', '.join(found.waits)}", markup=False)
    else:
        out.print("\nrun goes on by itself.")


_SIGNS = {"unchanged": " ", "renamed": "~", "added": "+", "removed": "-", "changed": "~", "returned": "~"}


def _show(one: StepChange) -> None:
    where = f"  {one.at}" if one.at else ""
    rows = f"  about {one.rows:,} rows of state" if one.rows else ""
    out.print(f"{_SIGNS[one.change]} {one.step}  {one.change}{where}{rows}", markup=False)
    for part in one.parts:
        out.print(f"    {part}", markup=False)
    if one.remark:
        out.print(f"    {one.remark}", markup=False)
    for choice in one.choices:
        out.print(f"    {choice}", markup=False)
