"""What must be there in the end: every step of the last version as a batch over all input.

Input is cut into epochs, at edits and at retries: a stream's rows are what each version made of the records that were
read under it, and a fold that was added has seen what came since.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import SparkSession

from tests.generated.batch import HIDDEN_NAMES, Batch, Input, Letter, Row
from tests.generated.cases import Advance, Case, Crash, Feed, Restart, Retry
from tests.generated.steps import Spout, Step
from tests.generated.ticks import LATENESS, Ticks

Flow = dict[str, list[Row]]  # what streams gave


@dataclass(frozen=True)
class Expected:
    rows: dict[str, list[Row]]  # by step of the last version
    letters: list[Letter]


@dataclass
class Epoch:
    """What was read under one version, after the letters of earlier epochs were retried or not."""

    version: int
    retries: bool
    records: Flow = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)  # spouts, one for each record that they make no row of


def epochs(case: Case) -> tuple[list[Epoch], Ticks]:
    found, ticks = [Epoch(0, False)], Ticks()
    spouts = [step for step in case.steps() if isinstance(step, Spout)]
    lateness = {spout.name: LATENESS if spout.lateness else timedelta() for spout in spouts}
    offsets: dict[tuple[str, int], int] = defaultdict(int)
    waiting: list[tuple[str, Row | None]] = []
    for event in case.events:
        if isinstance(event, Feed):
            place = (event.spout, event.partition)
            spout = case.spout(event.spout)
            for row in event.rows:
                time = None if isinstance(row, str) else spout.time_of(row, event.time)
                if isinstance(row, str) or time is None:
                    waiting.append((event.spout, None))
                else:
                    hidden = dict(zip(HIDDEN_NAMES, (*place, offsets[place], time), strict=True))
                    waiting.append((event.spout, {**row, **hidden}))
                offsets[place] += 1
        elif isinstance(event, Advance | Crash):
            if waiting:
                ticks.tick([record for _, record in waiting if record is not None], lateness)
            for name, record in waiting:
                if record is None:
                    found[-1].refused.append(name)
                else:
                    found[-1].records[name].append(record)
            waiting.clear()
        elif isinstance(event, Retry):
            found.append(Epoch(found[-1].version, True))
        elif isinstance(event, Restart) and event.version != found[-1].version:
            found.append(Epoch(event.version, False))
    return found, ticks


def expected(case: Case, spark: SparkSession) -> Expected:
    cut, ticks = epochs(case)
    letters: list[Letter] = []
    flowed: list[Flow] = []
    for epoch in cut:
        batch = Batch(spark, ticks)
        retried: list[Letter] = []
        if epoch.retries:
            bolts = {step.name for step in case.versions[epoch.version] if step.kind == "bolt"}
            retried = [letter for letter in letters if letter.step in bolts]
            letters = [letter for letter in letters if letter.step not in bolts]
        flowed.append(_flow(case.versions[epoch.version], epoch, retried, batch))
        letters += batch.letters + [Letter(spout, {}) for spout in epoch.refused]
    last = {step.name: step for step in case.versions[cut[-1].version]}
    rows: dict[str, list[Row]] = {}

    def seen_by(step: Step, source: Step) -> list[Row]:
        """What a step has got of a stream since it was added."""
        since = _since(case, cut, step)
        got = [row for flow in flowed[since:] for row in flow[source.name]]
        if step.kind == "sink":
            return got
        # A record that was dead when the step came is not given to it in part.
        before = {_record(row) for epoch in cut[:since] for of in epoch.records.values() for row in of}
        return [row for row in got if _record(row) not in before]

    def table_after(name: str, tick: int) -> list[Row]:
        step, source = last[name], last[last[name].inputs[0]]
        known = [row for row in seen_by(step, source) if ticks.of(row) <= tick]
        return step.rows([_input(source, known)], Batch(spark, ticks.until(tick)))

    def behind(name: str) -> list[Row]:
        return seen_by(last[name], last[last[name].inputs[0]])

    letters_of_tables: list[Letter] = []
    for step in last.values():
        final = Batch(spark, ticks, table_after, letters_of_tables, behind)
        first = last[step.inputs[0]] if step.inputs else step
        if "changes" in (step.kind, first.kind):
            rows[step.name] = []  # checked against the changes that there were
        elif step.ends:
            given = [(last[name], last[name].key is not None or last[name].ends) for name in step.inputs]
            rows[step.name] = step.rows(
                [_input(one, rows[one.name] if is_whole else seen_by(step, one)) for one, is_whole in given], final
            )
        elif step.key is None and step.kind != "sink":
            rows[step.name] = [row for flow in flowed for row in flow.get(step.name, ())]
        elif first.key is None and not first.ends:  # a fold, or a sink, of a stream
            rows[step.name] = step.rows([_input(first, seen_by(step, first))], final)
        else:
            rows[step.name] = step.rows([_input(last[name], rows[name]) for name in step.inputs], final)
    gone = _letters_of_tables_gone(case, cut, flowed)
    return Expected(rows, letters + letters_of_tables + gone)


def _record(row: Row) -> tuple[str, int, int]:
    return row["_spout"], row["_partition"], row["_offset"]


def _flow(steps: tuple[Step, ...], epoch: Epoch, retried: list[Letter], batch: Batch) -> Flow:
    """What every stream of a version makes of the records of an epoch, and of letters that are retried."""
    known, flow = {step.name: step for step in steps}, Flow()
    for step in steps:
        if isinstance(step, Spout):
            flow[step.name] = epoch.records[step.name]
        elif step.key is None and not step.ends and step.kind not in ("sink", "changes"):
            flow[step.name] = step.rows([_input(known[name], flow[name]) for name in step.inputs], batch)
            again = [letter.row for letter in retried if letter.step == step.name and letter.row is not None]
            if again:
                flow[step.name] += step.rows_of_letters(again, known[step.inputs[0]].columns, batch)
    return flow


def _letters_of_tables_gone(case: Case, cut: list[Epoch], flowed: list[Flow]) -> list[Letter]:
    """The null keys that tables had which the last version does not have, or had before it was away."""
    last = {step.name for step in case.versions[cut[-1].version]}
    found = []
    for epoch, flow in zip(cut, flowed, strict=True):
        for step in case.versions[epoch.version]:
            if (step.keeps_state or step.ends) and step.name not in last and step.inputs[0] in flow:
                found += [Letter(step.name, row) for row in flow[step.inputs[0]] if step.refuses(row)]
    return found


def _since(case: Case, cut: list[Epoch], step: Step) -> int:
    """The first epoch since which the step has been there all the time."""
    first = len(cut) - 1
    while first and any(other.name == step.name for other in case.versions[cut[first - 1].version]):
        first -= 1
    return first


def _input(step: Step, rows: list[Row]) -> Input:
    return Input(step.columns, step.key, rows)
