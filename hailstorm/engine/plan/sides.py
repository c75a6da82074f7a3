"""How the inputs of a stage that has several become one flow (stages/sides.py).

One task reads them one after the other. With more, they are united and shuffled by the hash of their key, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hailstorm.columns import HASH, SIDE, quoted
from hailstorm.engine.plan.flow import Flow
from hailstorm.engine.plan.needs import of_keys
from hailstorm.engine.plan.ranges import owned
from hailstorm.engine.stages.sides import AsSide, Beside, Side, schema_of_sides


@dataclass(frozen=True)
class Input:
    """What flows into one side of a stage."""

    flow: Flow
    side: Side


def together(name: str, inputs: Sequence[Input], tasks: int) -> Flow:
    """One flow of all inputs, in which all rows of a hash are in one task."""
    sides = tuple(one.side for one in inputs)
    schema = schema_of_sides(sides)
    reads = tuple(dict.fromkeys(name for one in inputs for name in one.flow.reads))
    first = replace(inputs[0].flow.named(name), reads=reads).then(AsSide(0, sides), schema)
    if tasks == 1:
        flow = first
        for number, one in enumerate(inputs[1:], 1):
            assert not one.flow.needs_jvm, one.flow.name
            flow = flow.then(Beside(one.flow.stages, AsSide(number, sides)))
        unknown = dict.fromkeys(key for side in sides if not side.is_hashed_here for key in side.key)
        return flow if not unknown else flow.over(_hashed(flow, sides)).needing(of_keys(name, unknown))
    frame = _hashed(first, sides)
    for number, one in enumerate(inputs[1:], 1):
        frame = frame.unionAll(_hashed(one.flow.then(AsSide(number, sides), schema), sides))
    return first.over(owned(frame, tasks))


def _hashed(flow: Flow, sides: Sequence[Side]) -> DataFrame:
    """With the hashes that only the JVM can compute."""
    frame = flow.dataframe()
    hashed = F.col(HASH)
    for number, side in enumerate(sides):
        if not side.is_hashed_here:
            key = [f"_{number}.{quoted(name)}" for name in side.key]
            hashed = F.when(F.col(SIDE) == number, F.xxhash64(*key)).otherwise(hashed)
    columns = [hashed.alias(HASH) if name == HASH else F.col(quoted(name)) for name in flow.schema.names]
    return frame.select(*columns) if any(not side.is_hashed_here for side in sides) else frame
