"""What the stages of one pass share: the order, the ledger as it was, and the report that they fill in.

A stage takes batches and gives batches (chain.py). What else it does, it tells the task: runs and files written, rows
refused, rows left for others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import pyarrow as pa

from hailstorm.clock.watermark import BEGINNING, due_until
from hailstorm.columns import LETTER_ID
from hailstorm.engine.stages.between import leave_rows, rows_left
from hailstorm.engine.stages.failure import as_failure
from hailstorm.engine.stages.order import Failures, Order, Report
from hailstorm.ledger.cache import OpenRun, RunCache, cache_of_this_machine
from hailstorm.ledger.commit import DataFile, Run
from hailstorm.ledger.keyed_state import KeyedState, Layout
from hailstorm.ledger.letters import letters_table, with_rows
from hailstorm.ledger.runs import run_name, write_rows, write_run
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import Store

Batches = Iterator[pa.RecordBatch]

Letter = tuple[str | None, int | None, int | None, str, str, bytes | None]  # as LETTER in ledger/letters.py

Refused = list[tuple[Letter, pa.RecordBatch]]  # letters, each with its row

_MOST_LETTERS, _MOST_LETTER_BYTES = 10_000, 32 << 20  # of a task, in memory
_LONGEST_REASON = 1_000
_SMALL_OUTBOX = 1 << 20  # bytes
_LARGE_RUN = 20_000  # rows: to write them takes milliseconds, which another core may have
_WRITERS = 4


@dataclass
class Shelf:
    """What the lines of a pass leave for each other (`kept`), and for later passes as well (`left`)."""

    kept: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    rows: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)


@dataclass
class Task:
    """What the stages of one pass share: the order, the ledger, and the report that they fill in."""

    order: Order
    partition: int
    report: Report
    shelf: Shelf = field(default_factory=lambda: Shelf())
    letters: Refused = field(default_factory=list)  # not written yet
    letter_bytes: int = 0
    parts: list[Task] = field(default_factory=list)
    readers: dict[str, Callable[[Refused], None]] = field(default_factory=dict)  # of new letters as they are written
    leisure: list[Callable[[], None]] | None = None  # of a worker that stays: what can be done after its answer
    small: dict[str, pa.Table] = field(default_factory=dict)  # of such a worker: outboxes that go with its answer
    writing: list[tuple[str, pa.Table, Future[Run]]] = field(default_factory=list)  # large runs, beside the stages

    def part(self, name: str) -> Task:
        """For one line of several, which may run beside others: it has a report of its own."""
        report = Report(f"{self.report.slot}/{name}")
        self.parts.append(Task(self.order, self.partition, report, self.shelf, leisure=self.leisure))
        return self.parts[-1]

    def leave(self, name: str, rows: pa.Table) -> None:
        """Leave rows under a name for those who read it: other lines of this pass, or later passes."""
        if name in self.shelf.kept:
            self.shelf.rows.setdefault(name, []).extend(rows.to_batches(max_chunksize=100_000))
        if name in self.shelf.left or name not in self.shelf.kept:
            self.report.scratch.setdefault(name, []).append(leave_rows(self.order.scratch, name, rows))

    def rows_left(self, name: str, share: int, tasks: int) -> Batches:
        """One task's share of what was left under a name."""
        if name in self.shelf.kept:
            yield from self.shelf.rows.get(name, ())
            return
        for index, file in enumerate(self.order.inputs.get(name, ())):
            if index % tasks == share:
                yield from rows_left(self.order.scratch, file).to_batches(max_chunksize=100_000)

    @cached_property
    def store(self) -> Store:
        """The ledger that the advance starts from: only read."""
        return _store_at(self.order.ledger)

    @cached_property
    def cache(self) -> RunCache:
        return RunCache(self.store, self._cache_folder, self.order.copies)

    @cached_property
    def _cache_folder(self) -> Path:
        order = self.order
        return cache_of_this_machine(order.ledger, order.copies) if order.cache is None else Path(order.cache)

    def state(self, layout: Layout, with_this_tick: bool = False) -> KeyedState:
        """A table of state as it was before this tick, or as it is by now."""
        live = reversed(self.order.runs.get(layout.table, ()))
        runs = [run for run in live if with_this_tick or run.seq < self.order.seq]
        return KeyedState(layout, runs, self._open_run, self._write_run)

    def _open_run(self, table: str, run: Run) -> OpenRun:
        return (self.place if run.id in self.order.written else self.cache).open(table, run)

    def watermark(self, step: str) -> int | None:
        """By which rows are late for the step and things are due: that of the commit before. None: there is none."""
        return self.order.watermarks.get(step, (None, None))[0]

    def due(self, agenda: Layout) -> pa.Table | None:
        """What has become due since the last tick, in the order of time. Nothing is, for dead letters: they have ticks
        of their own beside those that go on in time."""
        if self.order.letters:
            return None
        until = due_until(agenda.clock, self.watermark(agenda.step), self.order.now, self.order.seq - 1)
        if until is None:
            return None
        return self.state(agenda).due(self.order.reached.get(agenda.table, BEGINNING), until)

    @cached_property
    def place(self) -> RunCache:
        """Where files go, and the copies of runs that were written there."""
        elsewhere = self.order.place
        if elsewhere is None:
            return self.cache
        address, cache = elsewhere
        return RunCache(_store_at(address), self._cache_folder if cache is None else Path(cache))

    def _write_run(self, table: str, rows: pa.Table) -> None:
        """A large run is written while the stages go on: Arrow does that without Python."""
        if rows.num_rows >= _LARGE_RUN or any(table == other for other, _, _ in self.writing):
            self.writing.append((table, rows, _writer().submit(self._written, table, rows, self.place.store)))
        else:
            self._take_run(table, rows, self._written(table, rows, self.place.store))

    def _written(self, table: str, rows: pa.Table, store: Store) -> Run:
        return write_run(store, table, rows, self.order.stamp, synced=self.order.synced)

    def _take_run(self, table: str, rows: pa.Table, run: Run) -> None:
        cache = self.place
        if self.leisure is None or self.order.place is not None:
            cache.put(table, run.id, rows)
        else:
            # The next tick needs no copy, and others can wait for theirs: until then they read the run itself.
            cache.keep(table, run, rows)
            self.leisure.append(lambda: cache.put(table, run.id, rows))
        self.report.runs.setdefault(table, []).append(run)

    def _wait_for_runs(self) -> None:
        if not self.writing:
            return
        began = time.perf_counter()
        while self.writing:
            table, rows, run = self.writing[0]
            self._take_run(table, rows, run.result())
            del self.writing[0]
        self.report.timings["write"] = self.report.timings.get("write", 0.0) + time.perf_counter() - began

    def write_outbox(self, sink: str, rows: pa.Table) -> None:
        file = self.write_file(f"outbox/{sink}", rows)
        self.report.outbox.setdefault(sink, []).append(file)
        if self.leisure is not None and rows.nbytes <= _SMALL_OUTBOX:
            self.small[file.path] = rows

    def attached(self) -> dict[str, pa.Table]:
        """The rows of small outboxes, by file: so delivery need not read what was just written."""
        return {**self.small, **{name: rows for part in self.parts for name, rows in part.attached().items()}}

    def refuse(
        self,
        step: str,
        reason: str,
        on_error: str,
        origin: tuple[str | None, int | None, int | None],
        raw: bytes | None,
        row: pa.RecordBatch,
    ) -> None:
        """A row that cannot go on: counted, and kept as a dead letter unless the step says otherwise.

        `row` is the row as it entered the step, hidden columns included; of a record, what is around its value.
        """
        # What user code says may be of any length and need not be valid text.
        reason = reason[:_LONGEST_REASON].encode(errors="replace").decode()
        if LETTER_ID in row.schema.names:
            letter = row.column(LETTER_ID)[0].as_py()
            row = row.drop_columns([LETTER_ID])
            if letter is not None:  # it stays the letter that it is, whatever the step says of new ones
                self.report.again[letter] = reason
                return
        failures = self.report.failures.setdefault(step, Failures())
        failures.count += 1
        failures.reason = failures.reason or reason
        failures.fatal = failures.fatal or on_error == "fail"
        if on_error == "dead-letter":
            self.letters.append(((*origin, step, reason, raw), row))
            self.letter_bytes += row.nbytes + len(raw or b"")
            if len(self.letters) >= _MOST_LETTERS or self.letter_bytes >= _MOST_LETTER_BYTES:
                self.write_letters()

    def write_letters(self) -> None:
        """Those so far. Who reads a step's letters gets them now, too: nobody keeps all of a task in memory."""
        for alike in _alike(self.letters):
            rows = pa.Table.from_batches([row for _, row in alike])
            letters = with_rows(letters_table([letter for letter, _ in alike]), rows)
            self.report.letters.append(self.write_file("errors", letters))
            (_, _, _, step, _, _), _ = alike[0]
            if step in self.readers:
                self.readers[step](alike)
        self.letters, self.letter_bytes = [], 0

    def finish(self) -> list[Report]:
        """The reports of the task and of its parts, with what they refused written down."""
        self.write_letters()
        self._wait_for_runs()
        return [self.report, *(report for part in self.parts for report in part.finish())]

    @contextmanager
    def without_traces_of_failure(self) -> Iterator[None]:
        """An error in here leaves as one that can be told to the driver. What was written by then nobody will name."""
        try:
            yield
        except Exception as error:
            for task in (self, *self.parts):
                for name in (*task.report.files(), *task._names_of_runs_not_taken()):
                    self.place.store.delete(name)
            failure = as_failure(error)
            if failure is error:
                raise
            raise failure from error

    def _names_of_runs_not_taken(self) -> list[str]:
        wait([run for _, _, run in self.writing])
        written = ((table, run) for table, _, run in self.writing if run.exception() is None)
        return [run_name(table, run.result().id) for table, run in written]

    def write_file(self, folder: str, rows: pa.Table) -> DataFile:
        return write_rows(self.place.store, folder, rows, self.order.stamp, self.order.synced)


@lru_cache(1)
def _writer() -> ThreadPoolExecutor:
    """The threads of a worker that write large runs."""
    return ThreadPoolExecutor(_WRITERS, thread_name_prefix="runs")


@lru_cache(16)
def _store_at(address: str) -> Store:
    """A worker lives for many ticks of few ledgers."""
    return open_store(address)


def _alike(rows: Refused) -> Iterable[Refused]:
    """Letters that fit into one file: of one step, with rows of one schema."""
    groups: dict[tuple[str, pa.Schema], Refused] = {}
    for letter, row in rows:
        groups.setdefault((letter[3], row.schema), []).append((letter, row))
    return groups.values()
