"""How sliding windows that are shown when they end become flows: over panes that they share (stages/panes.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from hailstorm.algebra.monoid import SqlMonoid
from hailstorm.clock.panes import Panes, can_share
from hailstorm.columns import EVENT_TIME, HASH, MEMBERS, PANE, STATE, TIME
from hailstorm.engine.plan.flow import Flow, Job
from hailstorm.engine.plan.fold import Bound, FoldPlan
from hailstorm.engine.stages.due import ReadDue
from hailstorm.engine.stages.exchange import ReadDueOfRanges
from hailstorm.engine.stages.fold import FoldShape
from hailstorm.engine.stages.panes import JoinPanes
from hailstorm.engine.stages.reduce import ReduceStates
from hailstorm.engine.stages.waiting import DUE
from hailstorm.ledger.commit import PaneMonoid, PanesShape
from hailstorm.ledger.hashing import can_hash
from hailstorm.ledger.keyed_state import Layout
from hailstorm.topology.stateful import WindowedFold


def may_share(step: WindowedFold, flow: Flow) -> bool:
    """Whether a fold of a stream can be over panes, as far as the topology tells. The plan knows the rest."""
    return (
        step.windows is not None
        and can_share(step.windows)
        and step.closing.emit == "final"
        and all(isinstance(monoid, SqlMonoid) for monoid in step.monoids.values())
        and all(can_hash(flow.schema.field(name).type) for name in step.key[:-2])
    )


@dataclass
class PanePlan(FoldPlan):
    """A final fold by sliding windows of a stream."""

    def merges_in_arrow(self) -> bool:
        """Whether Arrow merges every state: then readers can, without the app and without Spark."""
        return all(b.cell.combine is not None for b in self._bound(self.flow.dataframe()))

    @property
    def panes(self) -> Panes:
        assert isinstance(self.step, WindowedFold) and self.step.windows is not None
        return Panes(self.step.windows)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (*super().layouts, Layout(f"{self.step.name}.panes", (*self._by, PANE)))

    def compiled(self) -> tuple[Flow, pa.Schema, Job | None]:
        rows = self.rows()
        bound = self._bound(rows)
        assert self.waiting is not None
        shape = self._shape(bound, replace(self.waiting, one_task=False))  # what is due comes out of JoinPanes
        self.keys = self.key_fields(rows)
        self.shape = self._panes_shape(bound)
        values = pa.schema([(b.name, b.cell.value_type) for b in bound])
        grouped, rejects = self._grouped_in_arrow(bound), None
        if grouped is not None and self.tasks > 1:
            grouped = self.brought_together(grouped, self._by, shape.cells)
        elif grouped is None:
            delta = self.flow.over(self._aggregated(rows, bound)).needing(*self._why_not(bound))
            grouped = delta if self.tasks == 1 else self.brought_with_due(delta, self._by)
            grouped, rejects = replace(grouped, earlier=self.passes()), self._rejects(rows)
        joined = self._joined(grouped, bound, shape, self.tasks == 1 and rejects is None)
        return self._written(joined, bound, shape), values, rejects

    @property
    def hashed(self) -> tuple[str, ...] | None:
        return self._by if self.tasks == 1 else None  # the parts of several tasks are told apart by their whole key

    def due(self, schema: pa.Schema) -> Flow:
        """What is due to leave; and to each task the range of its hashes, because it finds the windows that end in the
        panes that are its own."""
        assert self.waiting is not None
        stage = ReadDueOfRanges(ReadDue((self.waiting.expiry,), schema), self.tasks)
        return self.leaf(f"{self.step.name}!due", stage, schema, self.tasks, ())

    @property
    def _by(self) -> tuple[str, ...]:
        return self.step.key[:-2]

    def _joined(self, grouped: Flow, bound: list[Bound], shape: FoldShape, hashed: bool) -> Flow:
        assert self.waiting is not None
        types = tuple((name, self.keys[name].type) for name in self._by)
        stage = JoinPanes(self.waiting, self.panes, shape.cells, types, self.tasks, hashed)
        states = [(STATE + b.name, b.cell.state_type) for b in bound]
        known = [*self.keys.values(), (HASH, pa.int64()), *states]
        schema = pa.schema([*known, (EVENT_TIME, TIME), (DUE, pa.bool_()), (MEMBERS, pa.int64())])
        return grouped.then(stage, schema).then(ReduceStates(self.step.key, shape.cells))

    def _panes_shape(self, bound: list[Bound]) -> PanesShape:
        windows = self.panes.windows
        monoids = {}
        for b in bound:
            assert isinstance(b.monoid, SqlMonoid)
            monoids[b.name] = PaneMonoid(monoid=dict(b.monoid.describe()), types=b.sql_types)
        return PanesShape(
            size=windows.size, every=windows.every, offset=windows.offset, zone=windows.zone, monoids=monoids
        )
