"""The kinds of steps that read a stream with a state of its own (`Step.ends`): what a join, a look-up, `distinct`,
`ordered` or a process gave is filtered, folded, and cut into windows.

They are there from the beginning of what they read, so their oracle is a batch over all that it gave. What a step
releases is never late for a step below it; so a window over it loses nothing, whatever it does with late rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.generated.batch import Batch, Input, Row
from tests.generated.expressions import Expressions
from tests.generated.steps import Fold, Step, Where, draw_key, draw_monoids
from tests.generated.steps_of_joins import Joined
from tests.generated.steps_of_ticks import Distinct, Ordered
from tests.generated.steps_of_time import BOUNDS, Closing, Window
from tests.generated.values import Chance


def _ends(known: Sequence[Step]) -> list[Step]:
    return [step for step in known if step.ends]


def _without_place(source: Input) -> Input:
    """As of a table: where its rows came from is not asked."""
    return replace(source, key=())


@dataclass(frozen=True)
class WhereOfEnd(Where):
    kind = "end-where"
    ends = True
    reads_ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = _ends(known)
        if not sources:
            return None
        source = chance.choice(sources)
        return cls(name, (source.name,), source.columns, None, Expressions(chance, source.columns).predicate())

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        return super().rows([_without_place(inputs[0])], batch)


@dataclass(frozen=True)
class FoldOfEnd(Fold):
    kind = "end-fold"
    reads_ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = _ends(known)
        if not sources:
            return None
        source = chance.choice(sources)
        key = draw_key(chance, source, known, [0, 1, 1, 2])
        monoids = draw_monoids(chance, replace(source, key=()), key)
        columns = (*(source.column(column) for column in key), *(monoid.column for monoid in monoids))
        return cls(name, (source.name,), columns, key, monoids)

    def folded(self, source: Input, batch: Batch) -> list[Row]:
        return super().folded(_without_place(source), batch)


@dataclass(frozen=True)
class WindowOfEnd(Window):
    kind = "end-window"
    reads_ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = [step for step in _ends(known) if _is_on_time(step)]
        if not sources:
            return None
        source = chance.choice(sources)
        by = draw_key(chance, source, known, [0, 1, 1, 2])
        bounds = tuple(column.name for column in BOUNDS)
        monoids = draw_monoids(chance, replace(source, key=()), by)
        columns = (*(source.column(column) for column in by), *BOUNDS, *(monoid.column for monoid in monoids))
        closing = Closing("updates", chance.choice(["correct", "side", "drop", "drop"]))
        return cls(name, (source.name,), columns, (*by, *bounds), monoids, closing, *cls.draw_cut(chance))

    def folded(self, source: Input, batch: Batch) -> list[Row]:
        # Without spouts the watermark is the beginning of time: nothing is late.
        return super().folded(_without_place(source), batch)


def _is_on_time(step: Step) -> bool:
    """Whether all rows of a step have a time that is in no commit's past, and the oracle knows it."""
    return isinstance(step, Ordered) or (isinstance(step, Joined | Distinct) and not step.late)


KINDS: tuple[tuple[type[Step], int], ...] = ((WhereOfEnd, 2), (FoldOfEnd, 4), (WindowOfEnd, 10))
