"""How a process becomes a flow: events and what is due, brought to tasks by key, into one stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from hailstorm.columns import HASH, HIDDEN, LETTER_ID
from hailstorm.engine.plan.flow import Flow
from hailstorm.engine.plan.keyed import KeyedFlow
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.process import ProcessShape, RunProcess
from hailstorm.engine.stages.process_calls import OWN
from hailstorm.engine.stages.process_timers import TIMER_COLUMNS
from hailstorm.topology.arrow_types import arrow_type
from hailstorm.topology.schema import Schema
from hailstorm.topology.stateful import Process


@dataclass(frozen=True)
class ProcessPlan:
    step: Process
    tasks: int
    start: Flow  # where one task begins that reads what is due

    def shape(self, flow: Flow, outlets: Mapping[str, Outlet]) -> ProcessShape:
        hidden = (*HIDDEN.names, HASH, LETTER_ID)
        return ProcessShape(
            step=self.step.name,
            using=self.step.using,
            key=pa.schema([flow.schema.field(name) for name in self.step.by]),
            fields=self.step.fields,
            columns=tuple(name for name in flow.schema.names if name not in hidden),
            outputs=self.outputs,
            outlets=outlets,
        )

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        """The public columns of each output, the process's own among them."""
        return {OWN: _arrow(self.step.schema), **{name: _arrow(one) for name, one in self.step.outputs.items()}}

    def compiled(self, flow: Flow, shape: ProcessShape) -> Flow:
        keyed = KeyedFlow(
            self.step.name, self.step.by, tuple(shape.timers.agendas.values()), TIMER_COLUMNS, self.tasks, self.start
        )
        return keyed.over(flow).then(RunProcess(shape))

    @property
    def values(self) -> pa.Schema:
        """The columns of its state."""
        return pa.schema([field.column for field in self.step.fields])


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(one.name, arrow_type(one.type or "string"), one.nullable) for one in schema])
