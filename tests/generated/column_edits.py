"""Edits of columns: a spout's schema or a fold gets one more. An edit the other way round takes one away.

Nothing reads the new column by its name, so what is below it stays what it is, or passes the column on. A step that
can do neither keeps its topology from such an edit (`Step.over`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tests.generated.expressions import Column
from tests.generated.monoids import draw_monoid
from tests.generated.steps import Fold, Sink, Spout, Step, draw_names
from tests.generated.targets import TARGETS
from tests.generated.values import Chance, draw_type

Item = TypeVar("Item")
Steps = tuple[Step, ...]


def of_a_spout(chance: Chance, steps: Steps) -> Steps | None:
    """The steps with a column more in a spout, and in those that are like it: a union may unite them. None when what
    reads it cannot have that."""
    spouts = [step for step in steps if isinstance(step, Spout)]
    columns = chance.choice(spouts).columns
    wider = _with_one_more(chance, columns, Column(_new_name(chance, steps), draw_type(chance)))
    return _edited(steps, [replace(step, columns=wider) for step in spouts if step.columns == columns])


def of_a_fold(chance: Chance, steps: Steps) -> Steps | None:
    """The steps with a column more in a fold of a stream; None when there is no such fold, or what reads it cannot
    have that."""
    sources = {step.name: step for step in steps if step.key is None and not step.ends}
    folds = [step for step in steps if type(step) is Fold and step.inputs[0] in sources]
    if not folds:
        return None
    fold = chance.choice(folds)
    monoid = draw_monoid(chance, _new_name(chance, steps), sources[fold.inputs[0]].columns, table=False)
    monoids = _with_one_more(chance, fold.monoids, monoid)
    columns = (*(fold.column(name) for name in fold.by), *(one.column for one in monoids))
    return _edited(steps, [replace(fold, monoids=monoids, columns=columns)])


def _edited(steps: Steps, changed: Sequence[Step]) -> Steps | None:
    """The steps with these in place of those of their names; None when a step, or the target of a sink, does not take
    the other columns."""
    made = with_other_columns(steps, changed)
    same = {*steps}
    sinks = [step for step in made or () if isinstance(step, Sink) and step not in same]
    return made if all(TARGETS[sink.target].takes_other_columns for sink in sinks) else None


def with_other_columns(steps: Steps, changed: Sequence[Step]) -> Steps | None:
    """The steps with these in place of those of their names, and what is below them with what it has of their columns;
    None when a step cannot follow."""
    known = {step.name: step for step in changed}
    others = set(known)
    for step in steps:
        if step.name not in known:
            sources = [known[name] for name in step.inputs]
            follower = step.over(sources) if others.intersection(step.inputs) else step
            if follower is None:
                return None
            if follower != step:
                others.add(step.name)
            known[step.name] = follower
    return tuple(known[step.name] for step in steps)


def _with_one_more(chance: Chance, items: tuple[Item, ...], new: Item) -> tuple[Item, ...]:
    at = chance.randint(0, len(items))
    return (*items[:at], new, *items[at:])


def _new_name(chance: Chance, steps: Steps) -> str:
    """A name that no column of any step has: so nothing means the new column by chance."""
    (name,) = draw_names(chance, 1, [column.name for step in steps for column in step.columns])
    return name
