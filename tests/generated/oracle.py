"""What must be there in the end: every step of the last version as a batch over all input.

Input is cut into epochs, at edits and at retries: a stream's rows are what each version made of the records that were
read under it, and a fold that was added has seen what came since.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from tests.generated.batch import HIDDEN_NAMES, Batch, Input, Letter, Row
from tests.generated.cases import Advance, Case, Crash, Feed, Restart, Retry
from tests.generated.compare import plain
from tests.generated.expressions import Columns
from tests.generated.monoids import Drawn
from tests.generated.steps import Fold, Spout, Step
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
    refused: Flow = field(default_factory=lambda: defaultdict(list))  # where the records were of which it makes no row


def epochs(case: Case) -> tuple[list[Epoch], Ticks]:
    found, ticks = [Epoch(0, False)], Ticks()
    spouts = [step for step in case.steps() if isinstance(step, Spout)]
    lateness = {spout.name: LATENESS if spout.lateness else timedelta() for spout in spouts}
    offsets: dict[tuple[str, int], int] = defaultdict(int)
    waiting: list[tuple[bool, Row]] = []  # whether it is a row, and the row or where it would be
    for event in case.events:
        if isinstance(event, Feed):
            place = (event.spout, event.partition)
            spout = case.spout(event.spout)
            for row in event.rows:
                time = None if isinstance(row, str) else spout.time_of(row, event.time)
                hidden = dict(zip(HIDDEN_NAMES, (*place, offsets[place], time or event.time), strict=True))
                waiting.append((time is not None, hidden if isinstance(row, str) else {**row, **hidden}))
                offsets[place] += 1
        elif isinstance(event, Advance | Crash):
            if waiting:
                ticks.tick([record for is_row, record in waiting if is_row], lateness)
            columns = {step.name: step.columns for step in case.versions[found[-1].version]}
            for is_row, record in waiting:
                name = record["_spout"]
                if is_row:  # with the columns that the spout has by now
                    found[-1].records[name].append(_filled(record, columns[name]))
                else:
                    found[-1].refused[name].append(record)
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
        letters += batch.letters + [Letter(spout, row) for spout, rows in epoch.refused.items() for row in rows]
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

    def of_stream(step: Step, source: Step, batch: Batch) -> list[Row]:
        """A column that a fold has got in an edit is of the rows since then; of a key that had none of these, null."""
        whole = _input(source, seen_by(step, source))
        if type(step) is not Fold:
            return step.rows([whole], batch)
        of_ages: dict[int, list[Drawn]] = defaultdict(list)
        own = _since(case, cut, step)
        for monoid in step.monoids:
            of_ages[max(own, _column_since(case, cut, step, monoid))].append(monoid)
        made = replace(step, monoids=tuple(of_ages.pop(own))).rows([whole], batch)
        for since, monoids in of_ages.items():
            younger = replace(step, monoids=tuple(monoids))
            recent = _input(source, [row for flow in flowed[since:] for row in flow[source.name]])
            of_keys = {_key_of(step, row): row for row in younger.rows([recent], Batch(spark, ticks))}
            names = [monoid.column.name for monoid in monoids]
            made = [{**row, **{n: of_keys.get(_key_of(step, row), {}).get(n) for n in names}} for row in made]
        return made

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
            rows[step.name] = of_stream(step, first, final)
        else:
            rows[step.name] = step.rows([_input(last[name], rows[name]) for name in step.inputs], final)
    gone = _letters_of_tables_gone(case, cut, flowed)
    return Expected(rows, letters + letters_of_tables + gone)


def _record(row: Row) -> tuple[str, int, int]:
    return row["_spout"], row["_partition"], row["_offset"]


def _flow(steps: tuple[Step, ...], epoch: Epoch, retried: list[Letter], batch: Batch) -> Flow:
    """What every stream of a version makes of the records of an epoch, and of letters that are retried."""
    known, flow = {step.name: step for step in steps}, Flow()
    refused: Flow = defaultdict(list, epoch.refused)
    for step in steps:
        if isinstance(step, Spout):
            flow[step.name] = epoch.records[step.name]
        elif step.key is None and not step.ends and step.kind not in ("sink", "changes"):
            given, before = refused if step.reads_letters else flow, len(batch.letters)
            flow[step.name] = step.rows([_input(known[name], given[name]) for name in step.inputs], batch)
            refused[step.name] = [letter.row for letter in batch.letters[before:] if letter.row is not None]
            # What a retry refuses again is no new letter.
            again = [letter.row for letter in retried if letter.step == step.name and letter.row is not None]
            if again:
                source = known[step.inputs[0]]
                flow[step.name] += step.rows_of_letters(_input(source, again).rows, source.columns, batch)
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


def _column_since(case: Case, cut: list[Epoch], step: Step, monoid: Drawn) -> int:
    """The first epoch since which the fold has had this column all the time."""
    first = len(cut) - 1
    while first and any(
        other.name == step.name and isinstance(other, Fold) and monoid in other.monoids
        for other in case.versions[cut[first - 1].version]
    ):
        first -= 1
    return first


def _key_of(step: Step, row: Row) -> tuple[Any, ...]:
    return tuple(plain(row[name], False) for name in step.key or ())


def _input(step: Step, rows: list[Row]) -> Input:
    return Input(step.columns, step.key, [_filled(row, step.columns) for row in rows])


def _filled(row: Row, columns: Columns) -> Row:
    """The row with nulls for the columns that it did not have in another version, and without those that are gone."""
    hidden = {name: row[name] for name in HIDDEN_NAMES if name in row}
    return {**{column.name: row.get(column.name) for column in columns}, **hidden}
