"""The keys of a state that an advance changed, each as it was before and as it is after. `trace.py` asks.

Windows that are shown only when they end are among them while they are open: that is what a record does to them. Where
windows share panes, a record changes a pane, and every open window that holds it has another value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hailstorm.columns import DELETED, HASH, STATE, WINDOW_END
from hailstorm.engine.advance import Outcome
from hailstorm.ledger.commit import PanesShape, StepShape
from hailstorm.ledger.open_windows import open_windows
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import merge_runs, run_name
from hailstorm.ledger.same_value import same_value
from hailstorm.ledger.stores.store import Store, read_table
from hailstorm.sinks.values import python_rows

Row = dict[str, Any]


@dataclass(frozen=True)
class ChangedKey:
    """None: there was no row, or there is none any more."""

    key: Row
    before: Row | None
    after: Row | None


def changed_keys(state: State, outcome: Outcome, store: Store) -> Iterator[ChangedKey]:
    """What an advance made of a step's state before it. `store` is where its files are."""
    shape = state.live.steps[state.step]
    changed = list(_of_rows(state, shape, outcome, store))
    if shape.panes is not None:
        changed += _of_panes(state, shape, shape.panes, outcome, store)
    yield from (one for one in changed if not same_value(one.before, one.after))


def _of_rows(state: State, shape: StepShape, outcome: Outcome, store: Store) -> Iterator[ChangedKey]:
    is_windows = WINDOW_END in shape.key
    seen = (state, replace(state, open=True)) if is_windows else (state,)
    for row in python_rows(_written(state.step, outcome, store)):
        key = {name: row[name] for name in shape.key}
        known = (_row_of(one, row[HASH], key) for one in seen)
        is_seen = not row[DELETED] and (is_windows or not shape.waits or row[shape.waits] is not None)
        after = {name: row.get(name) for name in shape.values} if is_seen else None
        yield ChangedKey(key, next((one for one in known if one is not None), None), after)


def _of_panes(
    state: State, shape: StepShape, panes: PanesShape, outcome: Outcome, store: Store
) -> Iterator[ChangedKey]:
    """The open windows over the panes that were written."""
    table = f"{state.step}.panes"
    new = _written(table, outcome, store)
    if not new.num_rows:
        return
    key, values = shape.tables[table], tuple(STATE + name for name in panes.monoids)
    kept = replace(state, step=table, shape=StepShape(kind=shape.kind, key=key, values=values))
    old = kept.of_hashes(np.unique(new.column(HASH).to_numpy()))
    both = [new, *([] if old is None else [old])]
    watermark = state.live.watermarks.get(state.step, (None, None))[0]

    def windows(rows: pa.Table) -> dict[str, Row]:
        found = python_rows(open_windows(rows, shape.key[:-2], panes, watermark))
        return {repr([row[name] for name in shape.key]): row for row in found}

    before = {} if old is None else windows(old)
    for text, row in windows(merge_runs(both, key, drop_deleted=True)).items():
        was = before.get(text)
        values_of = [None if one is None else {name: one[name] for name in shape.values} for one in (was, row)]
        yield ChangedKey({name: row[name] for name in shape.key}, *values_of)


def _written(table: str, outcome: Outcome, store: Store) -> pa.Table:
    """The rows that an advance wrote to a table of state."""
    runs = outcome.state[table].added if table in outcome.state else ()
    tables = [read_table(store, run_name(table, run.id)) for run in runs]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _row_of(state: State, hash_: int, key: Row) -> Row | None:
    rows = state.hashed(hash_, hash_)
    for row in () if rows is None else python_rows(rows):
        if same_value({name: row[name] for name in key}, key):
            return {name: value for name, value in row.items() if name not in key and name != HASH}
    return None
