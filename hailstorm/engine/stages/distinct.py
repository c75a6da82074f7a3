"""Distinct: the first row of a key, and then none until some time has passed since that row.

The state has one row per key, whose `_updated` is the time of the last row that went on. It is forgotten once the
watermark has come to the end of that span: no row that is on time can fall into it any more. A late row of a key that
is not known may be a repetition of one that is forgotten, so it goes to `late`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import BEGINNING
from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, KEY_HASH, TIME, UPDATED
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.group import groups_of
from hailstorm.engine.stages.process_events import in_order, numbers
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.engine.stages.waiting import DUE
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import Positions, hashes_of

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeepDistinct:
    """In: rows with the `_hash` of their key, and the entries that are due (`_due` is true)."""

    step: str
    key: tuple[str, ...]
    within_us: int
    columns: tuple[str, ...]
    own: Outlet
    late: Outlet | None

    phase = "merge"

    @property
    def state(self) -> Layout:
        return Layout(self.step, self.key)

    @property
    def agenda(self) -> Layout:
        return Layout(f"{self.step}.agenda", self.key, "expiry")

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            _Tick(self, task, pa.Table.from_batches(rows).combine_chunks()).run()
        yield from ()


@dataclass
class _Tick:
    step: KeepDistinct
    task: Task
    given: pa.Table  # rows and entries

    def run(self) -> None:
        task, step = self.task, self.step
        is_row = pc.is_null(self.given.column(DUE)).to_numpy(zero_copy_only=False)
        order = in_order(self.given, self._groups, step.columns)
        order = order[is_row[order]]
        times, groups = self._times[order], self._groups[order]
        watermark = task.watermark(step.step)
        late = np.zeros(len(order), dtype=np.bool_)
        if watermark is not None:
            late = (times < watermark) & (self._ends[groups] == BEGINNING)
        public = self.given.select([*step.columns, *HIDDEN.names])
        if late.any():
            task.report.late[step.step] = task.report.late.get(step.step, 0) + int(late.sum())
            if step.late is not None:
                step.late.give(public.take(pa.array(order[late])), task)
        order, times, groups = order[~late], times[~late], groups[~late]
        first = first_within(groups, times, self._ends, step.within_us)
        step.own.give(public.take(pa.array(order[first])), task)
        self._write(times[first], groups[first], np.unique(self._groups[~is_row]))

    @cached_property
    def _grouped(self) -> tuple[Positions, Positions]:
        return groups_of(self.given.select(list(self.step.key)), hashes_of(self.given))

    @cached_property
    def _groups(self) -> Positions:
        """The number of each row's key."""
        order, starts = self._grouped
        begins = np.zeros(len(order), dtype=np.int64)
        begins[starts[1:]] = 1
        groups = np.empty(len(order), dtype=np.int64)
        groups[order] = np.cumsum(begins)
        return groups

    @cached_property
    def _keys(self) -> pa.Table:
        order, starts = self._grouped
        return self.given.select([HASH, *self.step.key]).take(pa.array(order[starts]))

    @property
    def _times(self) -> Times:
        return numbers(self.given, EVENT_TIME)

    @cached_property
    def _ends(self) -> Times:
        """Of each key, until when no further row goes on; the beginning of time for one that is not known.

        One whose span has ended by the watermark is not, whether or not it has left the state.
        """
        seen = self.task.state(self.step.state).prior(self._keys).column(UPDATED, TIME).cast(pa.int64())
        ends = np.where(
            seen.is_valid().to_numpy(zero_copy_only=False),
            seen.fill_null(0).to_numpy(zero_copy_only=False) + self.step.within_us,
            BEGINNING,
        )
        watermark = self.task.watermark(self.step.step)
        return ends if watermark is None else np.where(ends <= watermark, BEGINNING, ends)

    def _write(self, times: Times, groups: Positions, due: Positions) -> None:
        """The last row of each key that went on, and no row for keys whose time is over."""
        seen = np.full(self._keys.num_rows, BEGINNING, dtype=np.int64)
        np.maximum.at(seen, groups, times)
        (kept,) = np.nonzero(seen > BEGINNING)
        # An entry may be of an earlier row than the one that the key has now.
        gone = due[(seen[due] == BEGINNING) & (self._ends[due] == BEGINNING)]
        changed = np.concatenate((kept, gone))
        if not len(changed):
            return
        keys = self._keys.take(pa.array(changed))
        updated = pa.array(seen[changed], mask=seen[changed] == BEGINNING).cast(TIME)
        columns = {name: keys.column(name) for name in (HASH, *self.step.key)}
        self.task.state(self.step.state).write(columns, updated, pa.array(np.arange(len(changed)) >= len(kept)))
        if len(kept):
            keys = keys.slice(0, len(kept))
            entries = {name: keys.column(name) for name in self.step.key}
            entries |= {KEY_HASH: keys.column(HASH), DUE: pa.repeat(True, len(kept))}
            until = pa.array(seen[kept] + self.step.within_us)
            self.task.state(self.step.agenda).write({HASH: until, **entries}, until.cast(TIME))


def first_within(groups: Positions, times: Times, ends: Times, within: int) -> Positions:
    """The rows that go on: of each group the first at or after its end, then the first so much later, and so on.

    Rows are sorted by group and time. A round takes one row of every group, so there are as many rounds as rows go on
    of the busiest one.
    """
    if not len(times):
        return np.zeros(0, dtype=np.int64)
    known = np.unique(times)
    width = len(known) + 1
    places = groups * width + np.searchsorted(known, times)  # sorted, as the rows are
    active = np.unique(groups)
    bounds = ends[active]
    found = []
    while len(active):
        at = np.searchsorted(places, active * width + np.searchsorted(known, bounds))
        more = at < len(places)
        more[more] = groups[at[more]] == active[more]
        active, at = active[more], at[more]
        bounds = times[at] + within
        found.append(at)
    return np.sort(np.concatenate(found))
