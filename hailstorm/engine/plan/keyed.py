"""Rows by key, and among them what is due: what flows into steps that decide key by key."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import functions as F

from hailstorm.columns import HASH, quoted
from hailstorm.engine.plan.flow import Flow
from hailstorm.engine.plan.needs import of_keys
from hailstorm.engine.plan.ranges import owned
from hailstorm.engine.stages.deposit import RefuseNullKeys
from hailstorm.engine.stages.due import AlsoDue, ReadDue
from hailstorm.engine.stages.members import HashGroups
from hailstorm.engine.stages.rows import Prune
from hailstorm.ledger.hashing import can_hash
from hailstorm.ledger.keyed_state import Layout


@dataclass(frozen=True)
class KeyedFlow:
    """Rows by key, and among them what is due: for steps that decide key by key.

    Rows without a key are refused.
    """

    step: str
    key: tuple[str, ...]
    agendas: tuple[Layout, ...]
    entries: pa.Schema  # what an entry has beside the key
    tasks: int
    start: Flow  # where one task begins that reads what is due

    def over(self, flow: Flow) -> Flow:
        """The flow with `_hash`, and entries behind its rows: all of one key in one task."""
        hashed = self._hashed(flow.then(RefuseNullKeys(self.step, self.key)))
        if not self.agendas:
            return hashed if self.tasks == 1 else hashed.over(owned(hashed.dataframe(), self.tasks))
        schema = pa.schema([*hashed.schema, *self.entries])
        due = ReadDue(self.agendas, schema)
        if self.tasks == 1:
            return hashed.then(AlsoDue(due), schema)
        rows, entries = hashed.dataframe(), self.start.then(due, schema).dataframe()
        together = rows.unionByName(entries, allowMissingColumns=True)
        return hashed.over(owned(together, self.tasks))

    def _hashed(self, flow: Flow) -> Flow:
        """With the hash of the key: Spark's, or the same in the pass that holds the rows."""
        schema = pa.schema([field for field in flow.schema if field.name != HASH])
        unknown = [name for name in self.key if not can_hash(schema.field(name).type)]
        if self.tasks == 1 and not unknown:
            if HASH in flow.schema.names:  # of a table, by its own key
                flow = flow.then(Prune(tuple(schema.names)), schema)
            return flow.then(HashGroups(self.key), pa.schema([*schema, (HASH, pa.int64())]))
        df = flow.dataframe().drop(HASH)
        hashed = flow.over(df.withColumn(HASH, F.xxhash64(*map(quoted, self.key))))
        return hashed.needing(of_keys(self.step, unknown)) if unknown else hashed
