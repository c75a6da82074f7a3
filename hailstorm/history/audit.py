"""Audit: the state of every step is computed once more from the logs, and compared with what the ledger has.

Steps whose state does not depend on where ticks were cut (cut.py) are computed in one batch over all records that their
coverage names, as a Spark batch job would; after it, what is due is done once for each step that waits for time. The
others are run tick by tick, as they were committed. Both go to a scratch ledger: the audited one is only read, and may
be in use. The code is the code of now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import SparkSession

from hailstorm.algebra.monoid import SqlMonoid
from hailstorm.clock.clock import Clock, Range
from hailstorm.clock.coverage import Coverage
from hailstorm.engine.ticks.bad_records import Excluded, interval_of
from hailstorm.engine.ticks.logs import Logs
from hailstorm.errors import LedgerError, suggestion
from hailstorm.history.committed import committed_between, holes_of, without
from hailstorm.history.comparing import PRESENCE, SKETCHES, Comparison, KeyRange, Tolerances, compare_states
from hailstorm.history.cut import depends_on_cut
from hailstorm.history.erasures import erased_hashes, erased_records
from hailstorm.history.rerun import Rerun, Tell, Tick, silent
from hailstorm.history.scratch import scratch_ledger
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.stores.store import read_table
from hailstorm.topology.picture import html_table
from hailstorm.topology.stateful import Fold
from hailstorm.topology.topology import Topology

# Monoids whose values are estimates. Quantiles draw random numbers, and no bound holds for the values that they give.
_SKETCHES = {"count_distinct": SKETCHES, "quantiles": PRESENCE, "frequent": PRESENCE}
_OF_WATERMARKS = ("event", "expiry", "kept")  # agendas whose entries are due by the watermark

_LETTER = ("step", "spout", "partition", "offset")
Letters = Counter[tuple[str, str, int, int]]  # by these


@dataclass(frozen=True)
class Audited:
    """What an audit found of one step. `skipped` says why it was not audited, if it was not; a note what can be done.

    In the examples of the comparison, `one` is the state and `other` what was computed.
    """

    step: str
    comparison: Comparison = field(default_factory=Comparison)
    by: str = "batch"  # or "ticks"
    estimated: tuple[str, ...] = ()  # columns that were compared with a tolerance
    notes: tuple[str, ...] = ()
    skipped: str = ""

    def _repr_html_(self) -> str:
        return AuditedSteps((self,))._repr_html_()


class AuditedSteps(tuple[Audited, ...]):
    """What an audit found, step by step, in topological order."""

    def _repr_html_(self) -> str:
        compared = [
            (one.step, one.comparison, f"not audited: {one.skipped}" if one.skipped else one.by) for one in self
        ]
        rows = [(step, found.rows, found.equal, found.different, by) for step, found, by in compared]
        steps = html_table(("step", "rows", "equal", "different", "by"), rows)
        examples = [(step, one.key, one.one, one.other) for step, found, _ in compared for one in found.examples]
        columns = ("step", "key", "the state has", "the logs give")
        return steps + (html_table(columns, examples, "keys that differ") if examples else "")


@dataclass(frozen=True)
class _Group:
    """Steps that are computed together: by ticks from a base on, or (without ticks) in one batch."""

    steps: tuple[str, ...]
    base: Live
    ranges: tuple[Range, ...] = ()  # of a batch: the records
    ticks: tuple[Tick, ...] = ()

    @property
    def by(self) -> str:
        return "ticks" if self.ticks else "batch"


def steps_to_audit(topology: Topology, at: Live, steps: Sequence[str]) -> list[str]:
    """These steps, or all that can be audited, in topological order: those that show a state. Needs no Spark."""
    shown = {name for name, shape in at.steps.items() if name in shape.tables and shape.key + shape.values}
    known = [step.name for step in topology.steps if step.name in shown]
    for name in steps:
        if name not in known:
            raise LedgerError(
                70,
                f"there is no state of a step '{name}' to audit",
                hint=f"Steps with state: {', '.join(known) or 'none'}. {suggestion(name, known)}",
            )
    return [name for name in known if name in steps or not steps]


@dataclass(frozen=True)
class Audit:
    """An audit of one moment. With a `base` it begins there, and believes what was live then."""

    spark: SparkSession
    topology: Topology
    ledger: Ledger
    at: Live
    base: Live | None = None
    keys: KeyRange | None = None
    tell: Tell = silent

    def run(self, steps: Sequence[str] = ()) -> Iterator[Audited]:
        """Audit these steps, or all that there are: one after the other, in topological order."""
        wanted = steps_to_audit(self.topology, self.at, steps)
        self._refuse_unfit_keys(wanted)
        logs = Logs(self.topology.only(wanted), self.at)
        logs.refresh()
        found: dict[str, Audited] = {}
        groups: dict[object, _Group] = {}
        for name in wanted:
            try:
                key, group = self._group_of(name)
                self._refuse_gone(name, group, logs)
            except LedgerError as error:
                found[name] = Audited(name, skipped=error.what, notes=(error.hint,))
                continue
            before = groups[key].steps if key in groups else ()
            groups[key] = _Group((*before, name), group.base, group.ranges, group.ticks)
        for group in groups.values():
            found |= {one.step: one for one in self._audited(group)}
        yield from (found[name] for name in wanted if name in found)

    def _refuse_unfit_keys(self, steps: Sequence[str]) -> None:
        if self.keys is not None:
            for step in steps:
                for column, type_ in [*State(self.ledger, self.at, step).key_types().items()][:1]:
                    self.keys.ends(column, type_)

    # How each step is computed

    def _group_of(self, step: str) -> tuple[object, _Group]:
        """How a step is computed, and what that has in common with others. Raises LedgerError when it cannot be."""
        why = depends_on_cut(self.topology, self.at).get(step, "")
        if not why and self._begins_with_all_above(step):
            ranges = self._records_of(step)
            base = self.base or Live()
            return ("batch", ranges), _Group((), base, ranges)
        base = self.base or self._when_it_began(step)
        return ("ticks", base.commit), _Group((), base, ticks=self._ticks(step, base, why))

    def _begins_with_all_above(self, step: str) -> bool:
        """Whether all steps with state above it were given the same records: not so when it was added later."""
        mine = self.at.coverage.get(step, {})
        above = (one.name for one in self.topology.only([step]).steps if one.name in self.at.coverage)
        return all(
            spans == mine.get(spout) for one in above for spout, spans in self.at.coverage[one].items() if spout in mine
        )

    def _records_of(self, step: str) -> tuple[Range, ...]:
        """The records that are in the step's state, without those that are in the base already."""
        given = Coverage.from_json(self.at.coverage.get(step, {}))
        believed = Coverage.from_json(self.base.coverage.get(step, {})) if self.base is not None else Coverage()
        return without(without(given, self._skipped), believed)

    @property
    def _skipped(self) -> tuple[Range, ...]:
        """What was left out on overload. It is inside of what steps cover, and the commits name it."""
        if not any(self.at.skipped.values()):
            return ()
        commits = (one for one in self.ledger.commits() if one.commit <= self.at.commit)
        holes = holes_of(commits, ("dropped", "sampled"))
        if sum(map(len, holes)) != sum(sum(row.values()) for row in self.at.skipped.values()):
            raise LedgerError(
                71,
                "what was left out on overload is not known any more: the commits that named it are gone",
                hint="Begin with a commit that is kept: --from WHEN",
            )
        return holes

    def _when_it_began(self, step: str) -> Live:
        """What was live when the step was new."""
        for commit in self.ledger.commits():
            if commit.commit > self.at.commit:
                break
            if self._names_of(step).intersection(commit.fingerprints or {}):
                return self.ledger.at(commit.commit) if commit.covers_from == commit.commit else Live()
        raise self._unknown_cut(step, "")

    def _names_of(self, step: str) -> set[str]:
        """The name of a step, and those that it had before it was renamed."""
        shape = self.at.steps.get(step)
        return {step, *(former.name for former in (shape.formerly if shape else ()))}

    def _ticks(self, step: str, base: Live, why: str) -> tuple[Tick, ...]:
        ticks: list[Tick] = []
        reached = base.commit
        for one in committed_between(self.ledger, base.commit, self.at.commit):
            if not one.is_passable:
                raise LedgerError(
                    72,
                    f"'{step}' is computed tick by tick, and commit {one.commit.commit} is, or stands for, a "
                    f"{one.commit.changes_otherwise}",
                    hint=f"Begin after it: --from {one.commit.commit}",
                )
            if not one.exact or one.commit.covers_from != reached + 1:
                raise self._unknown_cut(step, why)
            reached = one.commit.commit
            ticks += one.ticks
        if reached != self.at.commit:
            raise self._unknown_cut(step, why)
        return tuple(ticks)

    def _unknown_cut(self, step: str, why: str) -> LedgerError:
        because = f" ({why})" if why else ""
        return LedgerError(
            73,
            f"'{step}' depends on where ticks were cut{because}, and that is not known any more from its beginning on",
            hint="Begin with a commit that is kept: --from WHEN",
        )

    # Computing and comparing

    def _audited(self, group: _Group) -> Iterator[Audited]:
        part = self.topology.only(group.steps)
        logs = Logs(part, self.at)
        logs.refresh()
        with scratch_ledger(self.ledger, self._begun(group, part)) as scratch:
            tasks = 1 if group.ticks else self.spark.sparkContext.defaultParallelism
            rerun = Rerun(self.spark, part, scratch, logs, tasks, self.tell)
            ticks = group.ticks or tuple(self._batch(group, part))
            excluded = self._refused_records(part)
            for number, tick in enumerate(ticks, 1):
                self.tell(f"computing {', '.join(group.steps)}: {number:,} of {len(ticks):,}")
                rerun.tick(tick, excluded=excluded)
            notes = (*self._letters_that_differ(part, scratch), *self._erased_from_logs(part))
            for step in group.steps:
                self.tell(f"comparing {step}")
                tolerances = estimates(self.topology, step)
                states = State(self.ledger, self.at, step), State(scratch, scratch.head, step)
                erased = erased_hashes(self.ledger.store, self._names_of(step))
                compared = compare_states(*states, tolerances, self.keys, erased)
                yield Audited(step, compared, group.by, tuple(tolerances), notes)

    def _begun(self, group: _Group, part: Topology) -> Live:
        """What the computation begins with: the base, and the shapes of the steps where that is nothing."""
        if group.base.commit:
            return group.base
        names = {step.name for step in part.steps}
        steps = {name: shape for name, shape in self.at.steps.items() if name in names}
        return Live(steps=steps, fingerprints=dict.fromkeys(names, ""))

    def _batch(self, group: _Group, part: Topology) -> Iterator[Tick]:
        """All records at once, while nothing is late and nothing is due; then what is due, a step after the other.

        What a step releases is then never late for a step below it, as it never was.
        """
        now = round(datetime.fromisoformat(self.at.at).timestamp() * 1_000_000)
        interval = interval_of(group.ranges)
        yield Tick(interval.end, now, interval.start, only=group.ranges, watermarks={})
        for step in part.steps:
            shape = self.at.steps.get(step.name)
            agendas = [] if shape is None else [t for t, clock in shape.agendas.items() if clock in _OF_WATERMARKS]
            for time in sorted({self.at.reached[table] for table in agendas if table in self.at.reached}):
                yield Tick(Clock(), now, watermarks={step.name: (time, time)})

    def _refuse_gone(self, step: str, group: _Group, logs: Logs) -> None:
        """Raise when the logs do not have all records of a step any more, and say what can still be done."""
        spouts = {one.name for one in self.topology.only([step]).spouts}
        wanted = group.ranges or [one for tick in group.ticks for one in tick.only or ()]
        for spout in spouts:
            earliest = logs.sources[spout].earliest()
            for one in wanted:
                if one.spout == spout and one.start < earliest.get(one.partition, one.start):
                    raise LedgerError(
                        74,
                        f"'{step}': {spout}/{one.partition} begins at {earliest[one.partition]} by now, but the state "
                        f"has records from {one.start} on",
                        hint=self._what_can_be_audited(spout, one.partition, earliest[one.partition]),
                    )

    def _what_can_be_audited(self, spout: str, partition: int, earliest: int) -> str:
        for commit in self.ledger.commits():
            if commit.end.get(spout, {}).get(str(partition), -1) >= earliest:
                return f"What came since then can be audited, if the state of then is believed: --from {commit.commit}"
        return "No commit that is kept is as late as that."

    # Dead letters

    def _refused_records(self, part: Topology) -> Excluded:
        """Records that are dead letters as a whole: they are in no state, whatever the code of now makes of them."""
        spouts = {spout.name for spout in part.spouts}
        found: Excluded = {}
        for step, spout, partition, offset in _letters(self.ledger, self.at):
            if step in spouts:
                found.setdefault(spout, {}).setdefault(partition, {})[offset] = "it is a dead letter"
        return found

    def _letters_that_differ(self, part: Topology, scratch: Ledger) -> tuple[str, ...]:
        names = {step.name for step in part.steps if step.inputs}
        known = Counter({one: n for one, n in _letters(self.ledger, self.at).items() if one[0] in names})
        if self.base is not None:
            known -= _letters(self.ledger, self.base)
        new = Counter({one: n for one, n in _letters(scratch, scratch.head).items() if one[0] in names})
        through, fail = Counter[str](), Counter[str]()
        for (step, *_), count in (known - new).items():
            through[step] += count
        for (step, *_), count in (new - known).items():
            fail[step] += count
        return (
            *(
                f"{n:,} dead letters of '{step}' go through with the code of now, and are not in the state: "
                "hailstorm errors APP --retry"
                for step, n in through.items()
            ),
            *(f"{n:,} rows fail in '{step}' with the code of now, and are no dead letters" for step, n in fail.items()),
        )

    def _erased_from_logs(self, part: Topology) -> Iterator[str]:
        spouts = {spout.name for spout in part.spouts}
        for spout, count in erased_records(self.ledger.store).items():
            if spout in spouts:
                yield (
                    f"{count:,} records of '{spout}' were erased from its log: what they were in besides the keys that "
                    "were erased is in the state, and cannot be computed again"
                )


def estimates(topology: Topology, step: str) -> Tolerances:
    """The columns of a step that are estimates, and those that may be made of one, each with its tolerance."""
    found: dict[str, float] = {}
    for one in topology.only([step]).steps:
        if isinstance(one, Fold):
            sketches = {name: _SKETCHES[word] for name, m in one.monoids.items() if (word := _word(m)) in _SKETCHES}
            if sketches and one.name != step:
                worst = max(sketches.values())
                return {column.name: worst for column in topology.step(step).schema if column.name not in one.key}
            found = sketches if one.name == step else found
    return found


def _word(monoid: object) -> str:
    return monoid.word if isinstance(monoid, SqlMonoid) else ""


def _letters(ledger: Ledger, live: Live) -> Letters:
    found: Letters = Counter()
    for file in live.dead_letters:
        rows = read_table(ledger.store, file.path, _LETTER)
        found.update(zip(*(rows.column(name).to_pylist() for name in _LETTER), strict=True))
    return found
