"""Compensating: what the sinks of tables must get so that they hold what they held at an earlier moment.

A rewind calls this. The rows of the keys that may differ, now and then, go through the steps between the table and its
sink; the difference of the two is what the sink gets: values of then, and deletes of keys that were not there. So it is
exact for targets that are tables and for those that are logs of changes, and its cost follows what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval
from hailstorm.columns import DELETED, HASH, HIDDEN, KIND, OLD
from hailstorm.engine.advance import Work, whole_table
from hailstorm.engine.place import Place, nowhere
from hailstorm.engine.plan.plan import Plan
from hailstorm.ledger.arrays import order_of
from hailstorm.ledger.commit import DataFile, Run
from hailstorm.ledger.compaction import hash_ranges
from hailstorm.ledger.keyed_state import changes
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.lookup import look_up
from hailstorm.ledger.restoring import changed_tables
from hailstorm.ledger.runs import Positions, key_numbers, merge_runs, shaped, write_rows, write_run
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import read_table
from hailstorm.topology.ends import Sink


@dataclass(frozen=True)
class Compensation:
    """The difference of tables between what is live now (`head`) and what is to be live again (`then`)."""

    spark: SparkSession
    plan: Plan
    ledger: Ledger
    head: Live
    then: Live
    now: int  # µs

    def outbox(self, sink: Sink, table: str) -> tuple[DataFile, ...]:
        """The changes for a sink of the table that a stateful step keeps, written for its outbox."""
        found = []
        for keys in changed_keys(self.ledger, self.head, self.then, table):
            before, after = (self._given(sink, table, live, keys) for live in (self.head, self.then))
            rows = difference(before, after, sink.key)
            if rows is not None and rows.num_rows:
                found.append(write_rows(self.ledger.store, f"outbox/{sink.name}", rows, self.ledger.stamp))
        return tuple(found)

    def _given(self, sink: Sink, table: str, live: Live, keys: pa.Table) -> pa.Table | None:
        """What the sink's table has for these keys at a moment; None when it has none of them."""
        rows = rows_of(self.ledger, live, table, keys)
        if rows is None or not rows.num_rows:
            return None
        with nowhere(self.ledger) as place:
            run = write_run(open_store(place.address), table, rows, self.ledger.stamp)
            return self._through_steps(sink, live, {table: (run,)}, place)

    def _through_steps(
        self, sink: Sink, live: Live, runs: Mapping[str, tuple[Run, ...]], place: Place
    ) -> pa.Table | None:
        base = msgspec.structs.replace(live, runs={**live.runs, **runs})
        position = base.position()
        work = Work(self.ledger, base, Interval(position, position), self.now, place=place)
        files = whole_table(self.spark, self.plan, work, sink.name, [run.id for new in runs.values() for run in new])
        store = open_store(place.address)
        return pa.concat_tables([read_table(store, file.path) for file in files]) if files else None


def changed_keys(ledger: Ledger, head: Live, then: Live, table: str, was: str = "") -> Iterator[pa.Table]:
    """The keys of a table whose rows may differ between two moments, sorted by `_hash`, in pieces.

    They are those of the runs that only one of the moments has. `was` is what the table was called then, if that was
    another name.
    """
    was = was or table
    gone, back = changed_tables(head, then).get(table, ((), ()))
    if was != table:
        gone, back = head.runs.get(table, ()), then.runs.get(was, ())
    key = key_of(head, then, table)
    changed = (*((table, run) for run in gone), *((was, run) for run in back))
    opened = [ledger.cache.open(name, run, checked=True) for name, run in changed]
    for tables in hash_ranges(opened) if opened else ():
        named = [rows.select([HASH, *dict.fromkeys(key), DELETED]) for rows in tables]
        yield merge_runs(named, key, drop_deleted=False).select([HASH, *key])


def key_of(head: Live, then: Live, table: str) -> tuple[str, ...]:
    """The columns that make a row one row."""
    return {**head.state_keys(), **then.state_keys()}[table]


def rows_of(ledger: Ledger, live: Live, table: str, keys: pa.Table) -> pa.Table | None:
    """The rows of a table of state at a moment, of these keys; None when it had no run then."""
    runs = live.runs.get(table, ())
    if not runs:
        return None
    opened = [ledger.cache.open(table, run, checked=True) for run in reversed(runs)]
    key = [name for name in keys.column_names if name != HASH]
    matches = look_up(keys, key, opened)
    types = {field.name: field.type for run in reversed(opened) for field in run.table.schema}
    found = matches.found()
    columns = {name: matches.column(name, type_).filter(found) for name, type_ in types.items() if name != DELETED}
    return pa.table({**columns, DELETED: pa.repeat(False, found.true_count)})


def difference(before: pa.Table | None, after: pa.Table | None, key: Sequence[str]) -> pa.Table | None:
    """The changes that make the second table out of the first, as an outbox has them. Both are inserts of one step."""
    known = [rows.schema.empty_table() for rows in (after, before) if rows is not None]
    if not known:
        return None
    schema = pa.concat_tables(known, promote_options="permissive").schema
    old, new = (schema.empty_table() if rows is None else shaped(rows, schema) for rows in (before, after))
    numbers = key_numbers(pa.concat_tables([new, old]).select(list(key)), np.arange(new.num_rows + old.num_rows))
    mine, theirs = numbers[: new.num_rows], numbers[new.num_rows :]
    everyone = np.union1d(mine, theirs)
    at_new, at_old = _places(mine, everyone), _places(theirs, everyone)
    gone = at_new < 0
    # A key that is gone is known from the rows before.
    either = pa.concat_tables([new, old]).take(pa.array(np.where(gone, new.num_rows + at_old, at_new)))
    values = [name for name in schema.names if name not in (*key, KIND, OLD)]
    count = len(everyone)
    rows = changes(
        {name: either.column(name) for name in key},
        {name: _taken(new, name, at_new) for name in values},
        {name: _taken(old, name, at_old) for name in values},
        pa.array(at_old >= 0),
        pa.array(gone),
        pa.nulls(count, pa.timestamp("us", "UTC")),
        pa.nulls(count, pa.int64()),
    )
    return rows.drop_columns([*HIDDEN.names, HASH])


def _places(numbers: Positions, wanted: Positions) -> Positions:
    """Where each of the wanted ones is; -1 where it is not."""
    if not len(numbers):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = order_of(numbers)
    at = np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)
    places = order[at]
    return np.where(numbers[places] == wanted, places, -1)


def _taken(rows: pa.Table, name: str, places: Positions) -> pa.Array:
    return rows.column(name).combine_chunks().take(pa.array(places, mask=places < 0))
