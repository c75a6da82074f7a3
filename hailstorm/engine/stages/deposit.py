"""Where rows go: to outboxes, to the steps that read them, or to the dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, SIGN, TIME
from hailstorm.engine.stages.bolt import refuse_row
from hailstorm.engine.stages.marks import marked
from hailstorm.engine.stages.task import Batches, Refused, Task
from hailstorm.ledger.keyed_state import seen_changes
from hailstorm.ledger.letters import letters_table

_MOST_BYTES = 128 << 20  # of rows that wait in memory to be written for sinks


@dataclass(frozen=True)
class Deliver:
    """Write the rows of a step for its sinks, and pass them on. Many rows (a whole table) become several files."""

    step: str
    sinks: tuple[str, ...]
    times: bool = False  # of a table whose changes may be of the time alone: sinks do not get those

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept: list[pa.RecordBatch] = []
        held = 0
        for batch in batches:
            if batch.num_rows:
                kept.append(batch)
                held += batch.nbytes
                yield batch
            if held >= _MOST_BYTES:
                write_outboxes(self.sinks, pa.Table.from_batches(kept), task, self.times)
                kept, held = [], 0
        if kept:
            write_outboxes(self.sinks, pa.Table.from_batches(kept), task, self.times)


@dataclass(frozen=True)
class Leave:
    """The end of a line: leave its rows for those who read the step."""

    step: str

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if kept:
            task.leave(self.step, pa.Table.from_batches(kept))
        yield from ()


def write_outboxes(sinks: tuple[str, ...], rows: pa.Table, task: Task, times: bool) -> None:
    """The public columns, and of a table `_kind` and `_old`, once per sink."""
    if sinks and times:
        rows = seen_changes(rows)
    if not rows.num_rows:
        return
    public = rows.drop_columns([name for name in (*HIDDEN.names, HASH) if name in rows.column_names])
    for sink in sinks:
        task.write_outbox(sink, public)


@dataclass(frozen=True)
class Outlet:
    """Where the rows of a named output go: to its sinks, and to the steps that read it."""

    name: str
    sinks: tuple[str, ...]
    feeds: bool
    marks: bool = False  # whether rows say which they are (marks.py)

    def give(self, rows: pa.Table, task: Task, of: pa.Table | None = None) -> None:
        """The public columns of these rows, and the hidden ones that every row has. Their marks say what is in `of`,
        where that is not the rows themselves."""
        if self.marks and self.feeds:
            rows = marked(self.name, rows, of)
        hand_on(self.name, rows, self.sinks, self.feeds, task)


def hand_on(step: str, changes: pa.Table, sinks: tuple[str, ...], feeds: bool, task: Task, times: bool = False) -> None:
    """The changes of a stateful step go to its sinks and, when somebody reads them, to later steps.

    `times`: some of them may be of the time alone.
    """
    if changes.num_rows:
        write_outboxes(sinks, changes, task, times)
        if feeds:
            task.leave(step, changes)


@dataclass(frozen=True)
class GiveErrors:
    """Comes after a step: gives its new dead letters to those who read them as a stream. The rows pass through."""

    step: str
    outlet: Outlet

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        task.readers[self.step] = lambda refused: self._give(refused, task)
        yield from batches
        task.write_letters()

    def _give(self, refused: Refused, task: Task) -> None:
        letters = letters_table([letter for letter, _ in refused])
        times = pa.array([_time_of(row, task.order.now) for _, row in refused], TIME)
        hidden = [*(letters.column(name) for name in ("spout", "partition", "offset")), times]
        for name, column in zip(HIDDEN.names, hidden, strict=True):
            letters = letters.append_column(name, column)
        self.outlet.give(letters, task)


def _time_of(row: pa.RecordBatch, now: int) -> int:
    """When a refused row was: its event time, or the record's own; of a record that has neither, now."""
    for name in (EVENT_TIME, "time"):
        if name in row.schema.names and row.column(name)[0].is_valid:
            return int(row.column(name)[0].cast(TIME).value)
    return now


@dataclass(frozen=True)
class RefuseNullKeys:
    """Rows behind a null key are dead letters, one each; the others go on."""

    step: str
    key: tuple[str, ...]

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            keys = [batch.column(name) for name in self.key]
            if any(key.null_count for key in keys):
                null = reduce(pc.or_, map(pc.is_null, keys))
                # Of a table's rows, one that goes was refused when it came.
                came = pc.and_(null, pc.greater(batch.column(SIGN), 0)) if SIGN in batch.schema.names else null
                for index in pc.indices_nonzero(came).to_pylist():
                    refuse_row(batch, index, self.step, "the key is null", "dead-letter", task)
                batch = batch.filter(pc.invert(null))
            yield batch
