"""Erase: a key (a person) leaves a step's state and its history, the outboxes and the dead letters.

Every file of a kept commit that holds the key is written once more without its rows, under its own name: the commits
stay as they are, and whoever reads any moment finds the key in none of them. The new file says of itself whose
successor it is (ledger/sums.py), so it is still told from a damaged one.

A row goes when it is named by columns of its table's key, so that all its versions go: without one of them an earlier
one would be seen again. Rows that have no key, such as those that a join of streams waits with, have one version, and
any of their columns may name them.

Crash-safe, because each file is replaced as a whole and by itself: a killed erasure has done a part, and doing it again
does the rest. `erased/` keeps that it happened (erasures.py).

The topology must not be running. What is outside of the ledger is only named (`Report.elsewhere`).
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import HASH, NUMBER
from hailstorm.engine.place import SCRATCH
from hailstorm.errors import LedgerError
from hailstorm.faults import fault
from hailstorm.history.erasures import Erasure, Offsets, unfinished_erasures, with_offsets
from hailstorm.history.scratch import SECOND_RUNS
from hailstorm.ledger.arrays import among
from hailstorm.ledger.commit import DataFile, Run, encode
from hailstorm.ledger.lease import Lease, turn
from hailstorm.ledger.ledger import ERASED, Ledger, cannot_write
from hailstorm.ledger.letters import REJECTED, ROW
from hailstorm.ledger.live import Live
from hailstorm.ledger.parts import columns_of
from hailstorm.ledger.reader import State, no_such_step
from hailstorm.ledger.renaming import MOMENTS
from hailstorm.ledger.runs import parquet, parquet_without, run_name
from hailstorm.ledger.stores import is_folder
from hailstorm.ledger.stores.store import read_table
from hailstorm.ledger.sums import Sums
from hailstorm.spouts.log import Log
from hailstorm.topology.picture import html_table

if TYPE_CHECKING:
    from hailstorm.topology.topology import Topology


@dataclass
class Report:
    """What was erased: rows by place, and what else may hold the key."""

    state: dict[str, int] = field(default_factory=dict)  # rows, by table of state
    outboxes: dict[str, int] = field(default_factory=dict)  # rows, by sink
    letters: int = 0
    logs: dict[str, int] = field(default_factory=dict)  # records, by spout
    files: int = 0
    published: bool = False  # the published table was removed; the next run makes it again
    elsewhere: list[str] = field(default_factory=list)

    def places(self) -> list[tuple[str, int]]:
        """Where rows of the key were, and how many."""
        found = [*self.state.items(), *((f"outbox of {sink}", rows) for sink, rows in self.outboxes.items())]
        found += [("dead letters", self.letters)] if self.letters else []
        return [*found, *((f"log of {spout}", records) for spout, records in self.logs.items() if records)]

    def _repr_html_(self) -> str:
        elsewhere = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.elsewhere)
        return html_table(("place", "rows"), self.places(), "what holds the key") + elsewhere


@dataclass(frozen=True)
class _Eraser:
    ledger: Ledger
    step: str
    wanted: Mapping[str, pa.Array]
    report: Report
    dry_run: bool
    hashes: set[int] = field(default_factory=set)  # of the keys that were found in the step's own table

    def state(self) -> None:
        """Every run of the step's tables that some kept commit names."""
        tables = _tables_of(self.ledger.newest(), self.step)
        for table, run in _runs(self.ledger, tables):
            holds = partial(self._state_holds, key=tables[table])
            count = self._file(run_name(table, run.id), run.sums, holds, is_step=_is_by_key(table))
            if count:
                self.report.state[table] = self.report.state.get(table, 0) + count

    def outboxes(self) -> None:
        """Rows that wait for a sink, or that sinks have rejected."""
        store = self.ledger.store
        for sink, file in _waiting(self.ledger):
            if count := self._file(file.path, file.sums, self._holds):
                self.report.outboxes[sink] = self.report.outboxes.get(sink, 0) + count
        for sink in store.list(REJECTED):
            for name in store.list(f"{REJECTED}/{sink}"):
                self.report.letters += self._file(f"{REJECTED}/{sink}/{name}", None, self._letter_holds)

    def letters(self) -> None:
        for file in _letters(self.ledger):
            self.report.letters += self._file(file.path, file.sums, self._letter_holds)

    def logs(self, logs: Mapping[str, Log], dry_run: bool) -> Offsets:
        """Records whose value is a JSON object with the key."""
        texts = self._texts()

        def holds(rows: pa.Table) -> pa.Array:
            return pa.array([_says(value, texts) for value in rows.column("value").to_pylist()], pa.bool_())

        found: Offsets = {}
        for spout, log in logs.items():
            erased = log.erase(holds, dry_run)
            found[spout] = {str(partition): tuple(offsets) for partition, offsets in erased.items()}
            self.report.logs[spout] = sum(map(len, erased.values()))
        return found

    def _texts(self) -> dict[str, set[str]]:
        return {name: {str(value) for value in values.to_pylist()} for name, values in self.wanted.items()}

    def _file(self, name: str, sums: Sums | None, holds: Callable[[pa.Table], pa.Array], is_step: bool = False) -> int:
        """Write a file once more without the rows that hold the key. How many those were."""
        if not self.ledger.store.exists(name):
            return 0  # delivered, and gone since
        rows = read_table(self.ledger.store, name, sums=sums)
        found = holds(rows)
        count = int(pc.sum(found).as_py() or 0)
        if count and is_step:
            self.hashes.update(rows.filter(found).column(HASH).to_pylist())
        if count and not self.dry_run:
            left = rows.filter(pc.invert(found)).replace_schema_metadata(None)
            self.ledger.store.put(name, bytes(parquet(left)) if sums is None else parquet_without(left, sums))
            self.report.files += 1
            fault("during-erase")
        return count

    def _state_holds(self, rows: pa.Table, key: tuple[str, ...]) -> pa.Array:
        if not set(self.wanted) <= _naming(key, rows.column_names):
            return pa.repeat(False, rows.num_rows)
        return self._holds(rows)

    def _holds(self, rows: pa.Table) -> pa.Array:
        if not set(self.wanted) <= set(rows.column_names):
            return pa.repeat(False, rows.num_rows)
        return _equal([(rows.column(name), values) for name, values in self.wanted.items()], rows.num_rows)

    def _letter_holds(self, letters: pa.Table) -> pa.Array:
        """By the row that the letter keeps, or by its content when that is JSON."""
        found = pa.repeat(False, letters.num_rows)
        if ROW in letters.column_names:
            row = letters.column(ROW).combine_chunks()
            names = {field.name for field in row.type}
            if set(self.wanted) <= names:
                found = _equal([(pc.struct_field(row, name), v) for name, v in self.wanted.items()], letters.num_rows)
        texts = self._texts()
        said = [_says(raw, texts) for raw in letters.column("raw").to_pylist()]
        return pc.or_(found, pa.array(said, pa.bool_()))


def erase(
    ledger: Ledger,
    step: str,
    wanted: Mapping[str, pa.Array],
    dry_run: bool = False,
    logs: Mapping[str, Log] | None = None,
) -> Report:
    """Erase the rows of which each of these columns has one of its values. Raises LedgerInUseError while a run goes on.

    `wanted` has columns of `erasable`. `dry_run` changes nothing, and reports what it would. `logs` are embedded logs,
    by spout, that are to lose the records that have the key as fields.
    """
    head = ledger.newest()
    if step not in head.steps:
        raise no_such_step(step, head)
    report = Report()
    eraser = _Eraser(ledger, step, wanted, report, dry_run)
    hashes = State(ledger, head, step).hashes_of_keys(wanted)
    mark = Erasure(
        step=step,
        columns=tuple(wanted),
        hashes=tuple(int(one) for one in (np.zeros(0) if hashes is None else hashes)),
        commit=head.commit,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        # Before anything goes: who finishes what was killed could not find them any more.
        records=eraser.logs(logs or {}, dry_run=True),
    )
    with _told_what_to_do(), contextlib.ExitStack() as held:
        if not dry_run:
            lease = Lease(ledger.store)
            held.enter_context(lease.held())
            if not held.enter_context(turn(ledger.store)):
                hint = "Type the same again in a moment."
                raise LedgerError(51, "the ledger is being cleaned up just now", hint=hint)
            name = f"{ERASED}/{uuid.uuid4().hex}.json"
            ledger.store.put(name, encode(mark))
            # Before a file is replaced: a copy of it that outlived a crash would bring the key back.
            _remove_copies(ledger, _tables_of(head, step))
            ledger.forget_copies()
            # A second run that was killed would go on with what it has read: the key among it.
            ledger.store.delete_folder(SECOND_RUNS)
        eraser.state()
        eraser.outboxes()
        eraser.letters()
        if not dry_run:
            eraser.logs(logs or {}, dry_run=False)
        report.published = bool(ledger.store.list(f"delta/{step}"))
        if not dry_run:
            ledger.store.delete_folder(f"delta/{step}")
            ledger.store.delete_folder(MOMENTS)  # of any name that the step has had
            fault("after-erase")
            known, records = eraser.hashes.union(mark.hashes), mark.records
            for other, unfinished in unfinished_erasures(ledger.store):
                if (unfinished.step, unfinished.columns) == (step, mark.columns) and other != name:
                    known |= set(unfinished.hashes)
                    records = with_offsets(records, unfinished.records)
                    ledger.store.delete(other)
            done = msgspec.structs.replace(mark, finished=True, hashes=tuple(sorted(known)), records=records)
            ledger.store.put(name, encode(done))
            ledger.forget_copies()  # also those that somebody has made of files that were not replaced yet
    report.elsewhere = list(_elsewhere(ledger, head, step, wanted, report.logs))
    return report


def erasable(ledger: Ledger, step: str) -> dict[str, pa.DataType]:
    """The columns that can name what is to be erased of a step, and their types: those of its key first, then those
    of its other tables (the members of a fold of a table, the rows that a join of streams waits with)."""
    head = ledger.newest()
    if step not in head.steps:
        raise no_such_step(step, head)
    tables = _tables_of(head, step)
    newest = dict(_runs(ledger, tables))
    schemas = {table: columns_of(ledger.cache, table, run) for table, run in newest.items()}
    found = {name: pa.string() for name in head.steps[step].key}
    for table in sorted(schemas):
        naming = _naming(tables[table], schemas[table].names)
        found |= {field.name: field.type for field in schemas[table] if field.name in naming}
    return found


@contextlib.contextmanager
def _told_what_to_do() -> Iterator[None]:
    """A disk that is full, or refuses, ends an erasure half-way: doing it again does the rest."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error) from error


def logs_above(topology: Topology, step: str) -> dict[str, Log]:
    """The embedded logs that a step is made of, by spout."""
    spouts = topology.only([step]).spouts
    return {one.name: one.source.resolve(topology.folder) for one in spouts if isinstance(one.source, Log)}


def _remove_copies(ledger: Ledger, tables: Iterable[str]) -> None:
    """What this machine's cache has of them, and of ticks and reruns that were killed. Those of other machines, of a
    ledger in an object store, are not believed any more from the next time on that one of them opens it."""
    ledger.cache.let_go({})
    if not is_folder(ledger.address):
        ledger.store.delete_folder(SCRATCH)
    for folder in (*(f"runs/{table}" for table in tables), "history", SCRATCH):
        shutil.rmtree(ledger.cache.folder / folder, ignore_errors=True)


def _names_of(head: Live, step: str) -> set[str]:
    return {step, *(former.name for former in head.steps[step].formerly)}


def _tables_of(head: Live, step: str) -> dict[str, tuple[str, ...]]:
    """The tables of state of a step and their keys, also under the names that it had: history has those."""
    tables = {step: head.steps[step].key, **head.steps[step].tables}
    return {name + table.removeprefix(step): key for name in _names_of(head, step) for table, key in tables.items()}


def _is_by_key(table: str) -> bool:
    """Whether `_hash` is that of the step's own key: in its own table, and where the members of its keys are."""
    return table.partition(".")[2] in ("", "members")


def _naming(key: tuple[str, ...], columns: Iterable[str]) -> set[str]:
    """The columns of a table that name its rows: the public ones of its key, or of rows that are only numbered, all."""
    return {name for name in (columns if NUMBER in key else key) if not name.startswith("_")}


def _runs(ledger: Ledger, tables: Mapping[str, object]) -> Iterator[tuple[str, Run]]:
    """All runs of these tables that a kept commit names, each once."""
    seen: set[str] = set()
    first = next(iter(ledger.commits()), None)
    base = ledger.at(first.commit).runs if first else {}
    named = [base, *({table: c.added for table, c in commit.state.items()} for commit in ledger.commits())]
    for runs in (*named, ledger.newest().runs):
        for table in tables.keys() & runs.keys():
            for run in runs[table]:
                if run.id not in seen:
                    seen.add(run.id)
                    yield table, run


def _waiting(ledger: Ledger) -> Iterator[tuple[str, DataFile]]:
    for commit in ledger.commits():
        for sink, files in commit.outbox.items():
            yield from ((sink, file) for file in files)


def _letters(ledger: Ledger) -> Iterator[DataFile]:
    found = {file.path: file for file in ledger.newest().dead_letters}
    for commit in ledger.commits():
        found |= {file.path: file for file in commit.dead_letters}
    yield from found.values()


def _elsewhere(
    ledger: Ledger, head: Live, step: str, wanted: Mapping[str, pa.Array], logs: Container[str]
) -> Iterator[str]:
    """What else may hold the key, and what to do there."""
    for other in sorted(head.steps):
        tables = _tables_of(head, other)
        held = {table for table, run in _runs(ledger, tables) if _run_holds(ledger, table, run, wanted)}
        named = {table for table in held if set(wanted) <= _naming(tables[table], wanted)}
        if named and other != step:
            yield f"step {other} has it in its state: erase it there, too"
        if held - named:
            yield f"step {other} has it as a value of other keys: erase those that are about it"
    for sink in sorted(head.sinks):
        yield f"sink {sink}: what was delivered is in its target"
    if not is_folder(ledger.address):
        yield f"{ledger.address}: where the store keeps versions of what is replaced, delete those that are not current"
        yield f"machines that have read it: their copies ({ledger.cache.folder.parent}) go when they open it again"
    for spout in sorted(head.clock):
        if spout in logs:
            yield f"spout {spout}: records that do not have the key as a field of a JSON object were not looked for"
            continue
        yield f"spout {spout}: its log has the records, and a rewind, a backfill or an audit reads them again"


def _run_holds(ledger: Ledger, table: str, run: Run, wanted: Mapping[str, pa.Array]) -> bool:
    if not set(wanted) <= set(columns_of(ledger.cache, table, run).names):
        return False
    rows = read_table(ledger.store, run_name(table, run.id), tuple(wanted), run.sums)
    return bool(pc.any(_equal([(rows.column(name), v) for name, v in wanted.items()], rows.num_rows)).as_py())


def _equal(pairs: list[tuple[pa.ChunkedArray | pa.Array, pa.Array]], count: int) -> pa.Array:
    found = pa.repeat(True, count)
    for column, values in pairs:
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        possible = _as(values, column.type)
        found = pc.and_(found, among(column, possible) if len(possible) else pa.repeat(False, count))
    return pc.fill_null(found, False)


def _as(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values as a column of this type has them. One that it cannot hold is in no row of it."""
    if values.type == type_:
        return values
    found = [pa.array([], type_)]
    for place in range(len(values)):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found.append(values.slice(place, 1).cast(type_))
    return pa.concat_arrays(found)


def _says(raw: bytes | None, texts: Mapping[str, set[str]]) -> bool:
    """Whether the content of a letter is a JSON object with these values."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        value = msgspec.json.decode(raw or b"")
        if isinstance(value, dict):
            return all(str(value.get(name)) in wanted for name, wanted in texts.items())
    return False
