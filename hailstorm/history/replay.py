"""Replay: committed ticks are run again, from the state that they began with, and compared with what was committed.

A tick is deterministic: the same records, `now` and watermarks give the same rows. So whatever differs comes from code
that is not (a random number, the wall clock, a service that answers differently), or that was another one then. At the
first commit that differs, its tick is run twice more: a step whose rows differ between these two is the one to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from hailstorm.columns import DELETED, HASH
from hailstorm.engine.advance import Outcome, Work, advance
from hailstorm.engine.place import nowhere
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.taps import tapped
from hailstorm.engine.ticks.logs import Logs
from hailstorm.history.audit import estimates
from hailstorm.history.committed import Committed, committed_between
from hailstorm.history.comparing import Difference, compare_states, compare_tables
from hailstorm.history.rerun import Rerun, Tell, Tick, silent
from hailstorm.history.scratch import scratch_ledger
from hailstorm.ledger.commit import Commit, DataFile, StepShape
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import merge_runs, run_name
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import Store, read_table
from hailstorm.sinks.values import python_rows
from hailstorm.topology.picture import html_table
from hailstorm.topology.topology import Topology

_GONE = "deleted"  # what `_deleted` is called while rows are compared

Row = dict[str, Any]


@dataclass(frozen=True)
class Unlike:
    """A step that gave other rows than before, and one of them as it was each time. None: there was no such row."""

    commit: int
    step: str
    what: str  # "state", "outbox", or "rows": of a step that differs between two runs of the same tick
    rows: int  # how many differ
    committed: Row | None
    replayed: Row | None


@dataclass(frozen=True)
class Replayed:
    commits: int  # that were run again and compared
    outboxes: int  # whose rows were still there to be compared
    unlike: tuple[Unlike, ...]  # of the first commit that differs, in topological order
    left_out: tuple[str, ...]  # commits that were not run again, each as a sentence that says why

    def _repr_html_(self) -> str:
        first = (
            f"; commit {self.unlike[0].commit:,} is the first that differs" if self.unlike else ", and gave the same"
        )
        rows = [(one.step, one.what, one.rows, one.committed, one.replayed) for one in self.unlike]
        columns = ("step", "what differs", "rows", "committed", "replayed")
        left_out = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.left_out)
        return html_table(columns, rows, f"{self.commits:,} commits were run again{first}") + left_out


@dataclass(frozen=True)
class Replay:
    spark: SparkSession
    topology: Topology
    ledger: Ledger
    tell: Tell = silent

    def run(self, base: Live, until: int) -> Replayed:
        """Run the commits after `base`, up to this one, again. Ends with the first that differs: what comes after it
        would begin with another state."""
        commits = outboxes = 0
        left_out: list[str] = []
        for begin, stretch in self._stretches(base, until, left_out):
            with scratch_ledger(self.ledger, begin) as scratch:
                rerun = Rerun(self.spark, self.topology, scratch, Logs(self.topology, self.ledger.newest()))
                for one in stretch:
                    self.tell(f"replaying commit {one.commit.commit:,} of {until:,}")
                    before = scratch.head
                    outcomes = [rerun.tick(tick) for tick in one.ticks][-1]
                    outboxes += sum(
                        map(self._is_there, (file for files in one.commit.outbox.values() for file in files))
                    )
                    unlike = self._unlike(one, outcomes, scratch)
                    commits += 1
                    if unlike:
                        culprit = self._culprit(one, before, scratch, rerun) if len(one.ticks) == 1 else None
                        found = unlike if culprit is None else (culprit, *unlike)
                        return Replayed(commits, outboxes, found, tuple(left_out))
        return Replayed(commits, outboxes, (), tuple(left_out))

    def _stretches(self, base: Live, until: int, left_out: list[str]) -> Iterator[tuple[Live, list[Committed]]]:
        """Ticks that follow each other, each stretch with what it begins with. Commits that change states or steps in
        another way end one, and so do those of which nobody knows any more where their ticks were cut: one large tick
        in their place may give another state, whatever the code is."""
        stretch: list[Committed] = []
        for one in committed_between(self.ledger, base.commit, until):
            commit = one.commit
            others = commit.reason not in ("tick", "complete") and commit.reason != "compact" and commit.state
            is_tick = one.is_passable and not others and commit.steps is None
            if is_tick and one.exact:
                stretch.append(one)
                continue
            why = f"({commit.reason}) is no tick, and"
            if is_tick:
                why = f"stands for all since {commit.first}, and where those were cut is not known any more: it"
            left_out.append(f"commit {commit.commit} {why} was not run again")
            if stretch:
                yield base, stretch
            base, stretch = self.ledger.at(commit.commit), []
        if stretch:
            yield base, stretch

    # One commit

    def _unlike(self, one: Committed, outcomes: tuple[Outcome, ...], scratch: Ledger) -> tuple[Unlike, ...]:
        """What differs, in topological order. The outcomes are those of its last tick: the outbox of commits that are
        kept as one is that of the last."""
        found: list[Unlike] = []
        for step in self.topology.steps:
            if not step.gives_rows:
                found += self._of_outbox(one.commit, step.name, outcomes, scratch.store)
            elif step.name in scratch.head.steps:
                found += self._of_state(one, step.name, outcomes, scratch)
        return tuple(found)

    def _of_state(self, one: Committed, step: str, outcomes: tuple[Outcome, ...], scratch: Ledger) -> list[Unlike]:
        shape, commit = scratch.head.steps[step], one.commit
        if step not in shape.tables:
            return []
        tolerances = estimates(self.topology, step)
        called = self._called(step, commit)
        if len(one.ticks) > 1 or commit.first:  # what was between is not kept: compare what it came to
            then = State(self.ledger, self.ledger.at(commit.commit), called)
            compared = compare_states(then, State(scratch, scratch.head, step), tolerances)
        else:
            added = [run for outcome in outcomes if step in outcome.state for run in outcome.state[step].added]
            kept = commit.state[called].added if called in commit.state and commit.reason != "compact" else ()
            tables = (
                _changed(self.ledger.store, called, (run.id for run in kept), shape),
                _changed(scratch.store, step, (run.id for run in added), shape),
            )
            compared = compare_tables(*tables, shape.key, (*shape.values, _GONE), tolerances)
        if not compared.different:
            return []
        first = compared.examples[0]
        return [Unlike(commit.commit, step, "state", compared.different, _whole(first, True), _whole(first, False))]

    def _of_outbox(self, commit: Commit, sink: str, outcomes: tuple[Outcome, ...], store: Store) -> list[Unlike]:
        called = self._called(sink, commit)
        files = commit.outbox.get(called, ())
        if called in commit.whole or not all(map(self._is_there, files)):
            return []
        if not files and (commit.first or called in commit.outboxes):  # delivered, and gone
            return []
        again = [file for outcome in outcomes for file in outcome.outbox.get(sink, ())]
        return _unlike_rows(commit.commit, sink, "outbox", _rows(self.ledger.store, files), _rows(store, again))

    def _called(self, step: str, commit: Commit) -> str:
        """The name that a step or a sink had at a commit."""
        return self.ledger.newest().called_then(commit.commit).get(step, step)

    def _is_there(self, file: DataFile) -> bool:
        return self.ledger.store.exists(file.path)

    # Whose fault it is

    def _culprit(self, one: Committed, before: Live, scratch: Ledger, rerun: Rerun) -> Unlike | None:
        """The first step that gives other rows when the same tick is run twice; None when none does."""
        (tick,) = one.ticks
        names = list(self.topology.givers)
        plan = compile_topology(self.spark, rerun.logs.used_by(tapped(self.topology.only(names), names)), 1)
        first, second = (self._tapped_rows(plan, tick, before, scratch, rerun, names) for _ in range(2))
        for name in names:
            if found := _unlike_rows(one.commit.commit, name, "rows", first[name], second[name]):
                return found[0]
        return None

    def _tapped_rows(
        self, plan: Any, tick: Tick, before: Live, scratch: Ledger, rerun: Rerun, names: list[str]
    ) -> dict[str, list[Row]]:
        head, scratch.head = scratch.head, before
        try:
            interval = rerun.interval_of(tick)
            with nowhere(scratch) as place:
                work = Work(scratch, before, interval, tick.now, place=place, taps=tuple(names), only=tick.only)
                outcome = advance(self.spark, plan, work)
                store = open_store(place.address)
                return {name: _rows(store, outcome.taps.get(name, ())) for name in names}
        finally:
            scratch.head = head


def _changed(store: Store, step: str, runs: Iterable[str], shape: StepShape) -> pa.Table | None:
    """The rows that these runs of one commit hold, as people see them, tombstones included."""
    tables = [read_table(store, run_name(step, run)) for run in runs]
    if not tables:
        return None
    rows = merge_runs(tables, shape.key, drop_deleted=False)
    if shape.waits:
        rows = rows.filter(pc.or_(pc.is_valid(rows.column(shape.waits)), rows.column(DELETED)))
    for name in shape.values:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    gone = rows.column(DELETED)
    return rows.select([*shape.key, *shape.values, HASH]).append_column(_GONE, gone)


def _rows(store: Store, files: Iterable[DataFile]) -> list[Row]:
    return [row for file in files for row in python_rows(read_table(store, file.path))]


def _unlike_rows(commit: int, step: str, what: str, one: list[Row], other: list[Row]) -> list[Unlike]:
    """Rows without an order, compared: how often each is there."""
    known = {text: row for row in (*one, *other) for text in (_text(row),)}
    before, after = Counter(map(_text, one)), Counter(map(_text, other))
    lost, new = before - after, after - before
    if not lost and not new:
        return []
    was, is_ = min(lost, default=None), min(new, default=None)
    count = max(lost.total(), new.total())
    return [Unlike(commit, step, what, count, None if was is None else known[was], None if is_ is None else known[is_])]


def _text(row: Row) -> str:
    return repr(sorted(row.items(), key=lambda item: item[0]))


def _whole(example: Difference, committed: bool) -> Row | None:
    values = example.one if committed else example.other
    if values is None:
        return None
    return {**example.key, **{name: value for name, value in values.items() if name != _GONE or value}}
