"""`hailstorm check`: everything that can be known of an app before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hailstorm.cli.doctor import require_java
from hailstorm.cli.output import err, out, print_rows
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import App, load_app
from hailstorm.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from hailstorm.engine.plan.plan import Plan
    from hailstorm.topology.schema import Schema
    from hailstorm.topology.step import Step


def check(app: AppArgument) -> None:
    """Look for mistakes before anything runs: schemas, settings, laws of own monoids.

    \b
    Examples:
      hailstorm check app.py
      hailstorm check app.py:storm
    """
    loaded = load_app(app)
    topology = loaded.topology
    topology.validate()
    _check_bolts(loaded)
    from hailstorm.engine.plan.needs import Found

    checked = _check_laws(loaded)
    with err.status("Asking Spark for the schemas"):
        plan = _plan(loaded)
    out.print(topology.graph().text(), markup=False)
    print_rows(("step", "kind", "declared at", "columns"), (_step_row(step, plan.schemas) for step in topology.steps))
    columns = ("setting", "value", "meaning")
    print_rows(columns, (dict(zip(columns, row, strict=True)) for row in topology.settings.explain()))
    out.print(Found(plan.can_be_resident, plan.needs).text(), markup=False)
    laws = f", and the laws of {checked} own monoid{'s' * (checked > 1)} hold" if checked else ""
    err.print(f"{app} is fine: {len(topology.steps)} steps, Spark agrees with their schemas{laws}.", markup=False)


def _check_bolts(app: App) -> None:
    """A column that no result of a bolt has would always be null: a run allows it, but nobody means it."""
    from hailstorm.topology import mistakes
    from hailstorm.topology.given import never_given
    from hailstorm.topology.stateless import Bolt

    for step in app.topology.steps:
        for column in never_given(step.function, step.schema) if isinstance(step, Bolt) else ():
            raise mistakes.gives_other_columns(step.name, f"never gives '{column}'", step.schema, "", step.at)


def _check_laws(app: App) -> int:
    """How many monoids of the user's own there are. One that breaks a law raises LawError, with a counterexample."""
    from hailstorm.algebra.monoid import Monoid
    from hailstorm.topology.stateful import Fold

    own = [
        (monoid, app.topology.step(fold.inputs[0]).schema)
        for fold in app.topology.steps
        if isinstance(fold, Fold)
        for monoid in fold.monoids.values()
        if isinstance(monoid, Monoid)
    ]
    if own:
        try:
            from hailstorm.testing.laws import check_laws
        except ImportError as error:
            hint = "Type: pip install 'hailstorm[testing]'"
            raise UsageError(14, "checking monoids needs hypothesis", hint=hint) from error
        for monoid, schema in own:
            check_laws(monoid, types=_input_types(monoid.inputs, schema))
    return len(own)


def _input_types(inputs: tuple[str, ...], schema: Schema) -> list[str] | None:
    """The types of plain columns; None when an input is an expression, and check_laws must find out itself."""
    from hailstorm.topology.sql_text import column_named

    names = [column_named(text) for text in inputs]
    types = [schema.type_of(name) if name is not None and name in schema else None for name in names]
    known = [type_ for type_ in types if type_ is not None]
    return known if len(known) == len(types) else None


def _plan(app: App) -> Plan:
    """Compile as a run would, without running: Spark resolves every expression. Raises TopologyError."""
    require_java()
    from hailstorm.engine.plan.compiler import compile_topology
    from hailstorm.engine.run import resolved
    from hailstorm.engine.spark.session import start_session

    spark = start_session(f"hailstorm check {app.topology.name}", master="local[1]")
    return compile_topology(spark, resolved(app.topology), tasks=1)


def _step_row(step: Step, schemas: Mapping[str, pa.Schema]) -> dict[str, str]:
    schema = schemas.get(step.name)
    columns = "" if schema is None else ", ".join(f"{field.name} {field.type}" for field in schema)
    return {"step": step.name, "kind": step.kind, "declared at": step.at.short, "columns": columns}
