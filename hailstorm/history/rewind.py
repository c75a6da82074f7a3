"""Rewind: everything goes back to an earlier commit, as a new commit.

State, clock, watermarks, what is due, dead letters and coverage are those of then; the history stays, so one can rewind
forward again. Sinks of tables get the difference (compensating.py), in the same commit: whatever they have not got of
the commits before is delivered first, and then corrected. What sinks of streams have got cannot be taken back: a rewind
that would make them get rows again needs a word.

The commit is made before the negotiator starts, so nothing runs beside it: no tick, no compaction, no delivery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from hailstorm.columns import KIND
from hailstorm.engine.delivery.joining import known_sinks, path_to_table
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.progress import OnProgress, Progress, Summary, ignore_progress
from hailstorm.engine.run import resolved, running
from hailstorm.engine.ticks.evolution import evolution, require_consent
from hailstorm.engine.ticks.logs import Logs, OnDataLoss
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.engine.ticks.renaming import as_renamed, with_names_of_now
from hailstorm.errors import LogError, RunError, TransientLogError
from hailstorm.history.compensating import Compensation, changed_keys, difference, rows_of
from hailstorm.history.moments import When, kept_moment
from hailstorm.ledger.commit import Commit, SinkShape, StepShape
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import Names, moved, under_names_of_now
from hailstorm.ledger.restoring import restored
from hailstorm.spouts.source import holes
from hailstorm.topology.ends import Sink
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.picture import html_table
from hailstorm.topology.topology import Topology

Append = Literal["refuse", "keep"]


@dataclass(frozen=True)
class Rewinding:
    """What a rewind would do, or has done: then `commit` is its own, and `summary` is how its delivery ended."""

    head: int  # the commit that it was asked at
    to: int
    at: str  # when that was
    records: Mapping[str, int]  # by spout: how many are to be read again; fewer than none when it goes forward
    keys: Mapping[str, Mapping[str, int]]  # by stateful step: how many rows come back (insert), change and go (delete)
    letters: int  # how many more dead letters there will be
    tables: tuple[str, ...]  # sinks that get the difference of their table
    streams: tuple[str, ...]  # sinks of streams that have got rows since, and will get those again
    steps: tuple[str, ...] = ()  # those that go back, with all below them; none: everything does
    commit: int = 0
    summary: Summary | None = None

    def effects(self) -> Iterator[str]:
        """What it means for each spout, step and sink: a sentence each."""
        for step in self.steps:
            yield f"step '{step}' gets its state of then, and what was read since"
        for spout, count in self.records.items():
            what = f"{count:,} records to read again" if count > 0 else f"{-count:,} records that were read then"
            yield f"spout '{spout}': {what}"
        for step, kinds in self.keys.items():
            words = {"insert": "rows come back", "update": "rows change", "delete": "rows go"}
            yield f"step '{step}': {', '.join(f'{count:,} {words[kind]}' for kind, count in kinds.items())}"
        if self.letters:
            yield f"dead letters: {abs(self.letters):,} {'more' if self.letters > 0 else 'fewer'}"
        for sink in self.tables:
            yield f"sink '{sink}' gets {'the whole of its table' if self.steps else 'the difference of its table'}"
        for sink in self.streams:
            yield f"sink '{sink}' keeps the rows that it has got since, and will get them again"

    def _repr_html_(self) -> str:
        done = f", done in commit {self.commit:,}" if self.commit else ""
        caption = f"from commit {self.head:,} back to commit {self.to:,}{done}"
        return html_table(("what happens",), ((effect,) for effect in self.effects()), caption)


def look_back(topology: Topology, ledger: Ledger, to: When) -> Rewinding:
    """What a rewind would do. Changes nothing; may be asked while the topology runs."""
    head, then = ledger.newest(), kept_moment(ledger, to)
    names = head.called_then(then.commit)
    sinks = [sink for sink in topology.sinks if sink.name in head.sinks]
    return Rewinding(
        head=head.commit,
        to=then.commit,
        at=then.at,
        records=_records(head, then),
        keys={
            step: found for step in head.steps if (found := _changed(ledger, head, then, step, names.get(step, step)))
        },
        letters=sum(file.rows for file in then.dead_letters) - sum(file.rows for file in head.dead_letters),
        tables=tuple(sink.name for sink in sinks if sink.is_table),
        streams=_streams(sinks, head, then),
    )


def look_back_at(topology: Topology, to: When, ledger: str | Path | None = None) -> Rewinding:
    """The same, for a topology as a user has it."""
    return look_back(topology, Ledger(topology.ledger_address(ledger)), to)


def refusal(found: Rewinding) -> RunError | None:
    """Why it is refused without `append="keep"`, if it is: known without Spark."""
    return _stream_sinks(found.streams, found.to) if found.streams else None


def rewind_topology(
    topology: Topology,
    to: When,
    *,
    ledger: str | Path | None = None,
    append: Append = "refuse",
    accept: tuple[str, ...] = (),
    on_data_loss: OnDataLoss = "fail",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Rewinding:
    """Go back to a kept commit, and bring the sinks of tables there, too. The topology must not be running.

    `append="keep"` leaves sinks of streams as they are, and lets the next run send them again what it makes again.
    `accept` names steps whose code has changed since then. `on_data_loss="continue"` goes back to where the logs do not
    reach any more: the next run needs the same word.
    """
    with running(topology, ledger, {}, master, conf, accept, on_progress) as (negotiator, _):
        topology, opened, plan = negotiator.topology, negotiator.ledger, negotiator.plan(PREPARED)
        number = kept_moment(opened, to).commit
        on_progress(Progress("starting", f"going back to commit {number}", commit=opened.head.commit))
        # Before the ledger hears of new names: a rewind that is refused changes nothing.
        refuse_lost_records(topology, opened, number, on_data_loss, accept)
        _refuse(topology, plan, *seen_as_now(topology, opened, plan, number), append, accept)
        negotiator.rename()
        found = look_back(topology, opened, number)
        made = rewind(negotiator.spark, topology, opened, plan, number, append, accept)
        negotiator.start(reading=False)
        return replace(found, commit=made.commit, summary=negotiator.stop())


def rewind(
    spark: SparkSession,
    topology: Topology,
    ledger: Ledger,
    plan: Plan,
    to: int,
    append: Append = "refuse",
    accept: tuple[str, ...] = (),
) -> Commit:
    """Make the commit that goes back. Nobody else may be writing to the ledger; its head is what is gone back from."""
    head = ledger.head
    with ledger.pinned(to):
        then = named_as_now(topology, ledger, head, to)
        _refuse(topology, plan, head, then, append, accept)
        now = datetime.now(UTC)
        shapes = known_sinks(topology, set(plan.stateful), head, fingerprint(topology))
        compensation = Compensation(spark, plan, ledger, head, then, int(now.timestamp() * 1_000_000))
        outbox = {}
        for sink in topology.sinks:
            if sink.is_table and (kept := _comparable(topology, sink, plan, head, shapes)):
                shapes[sink.name] = kept
                if files := compensation.outbox(sink, path_to_table(topology, sink, set(plan.stateful))[-1]):
                    outbox[sink.name] = files
        fields = restored(ledger.store, head, then, ledger.stamp, now)
        commit = next_commit(head, "rewind", ledger.epoch, now, **fields, outbox=outbox, sinks=shapes)
        ledger.commit(commit)
    return commit


def _refuse(topology: Topology, plan: Plan, head: Live, then: Live, append: Append, accept: tuple[str, ...]) -> None:
    """Raise when there is nothing to go back from, or when a word is missing. Both have the names of now."""
    if then.commit == head.commit:
        hint = "Name an earlier one: hailstorm commits APP"
        raise RunError(40, f"the ledger is at commit {then.commit} already", hint=hint)
    if append == "refuse" and (streams := _streams(topology.sinks, head, then)):
        raise _stream_sinks(streams, then.commit)
    # What was there then is what the code of now must be able to go on from.
    known = msgspec.structs.replace(then, commit=head.commit + 1, steps={**head.steps, **then.steps})
    require_consent(topology, evolution(topology, known, plan.key_types), accept)


def seen_as_now(topology: Topology, ledger: Ledger, plan: Plan, to: int) -> tuple[Live, Live]:
    """The head and an earlier commit under the names of the code, which the ledger may not know yet. Values only."""
    head = as_renamed(topology, ledger.head, set(plan.stateful))
    names = head.called_then(to)
    return head, _with_shapes_of_now(topology, under_names_of_now(ledger.at(to), names), head, names)


def named_as_now(topology: Topology, ledger: Ledger, head: Live, to: int) -> Live:
    """What was live then, under the names that the ledger's steps have now: a rewind takes no name back."""
    names = head.called_then(to)
    return _with_shapes_of_now(topology, moved(ledger.store, ledger.at(to), names, ledger.stamp), head, names)


def _with_shapes_of_now(topology: Topology, then: Live, head: Live, names: Names) -> Live:
    steps = {
        name: msgspec.structs.replace(shape, formerly=head.steps[name].formerly) if name in head.steps else shape
        for name, shape in then.steps.items()
    }
    return with_names_of_now(topology, msgspec.structs.replace(then, steps=steps), names) if names else then


def refuse_lost_records(
    topology: Topology, ledger: Ledger, to: int, on_data_loss: OnDataLoss, accept: tuple[str, ...]
) -> None:
    """Raise when the logs do not reach back to a commit: what was read since could not be read again."""
    then = ledger.at(to)
    logs = Logs(resolved(topology), then, on_data_loss, accept)
    try:
        logs.look(then.position())
        for spout, offsets in then.position().offsets.items():
            for partition, lost in holes(logs.sources[spout], offsets).items() if spout in logs.sources else ():
                if on_data_loss == "fail":
                    raise LogError(
                        43,
                        f"spout '{spout}' no longer has the offsets {lost.start} to {lost.stop - 1} of partition "
                        f"{partition}, which were read after commit {to}",
                        hint="Retention removed them: after the rewind they could not be read again. Go back to a\n"
                        "later commit, or go on without them, and have the hole in the ledger: --on-data-loss continue",
                    )
    except TransientLogError:
        return  # a log that does not answer now: the next run waits for it


def _comparable(
    topology: Topology, sink: Sink, plan: Plan, head: Live, shapes: Mapping[str, SinkShape]
) -> SinkShape | None:
    """What the ledger is to know of a sink that gets the difference; None for one that must get its whole table.

    What the target holds was made by the code of the head. When the steps on the way to the sink are others now, only
    the rows of a table that goes there as it is can be compared.
    """
    before, made = head.sinks.get(sink.name), shapes[sink.name]
    if before is None or not before.is_table:
        return None
    if made == before:
        return made
    path = path_to_table(topology, sink, set(plan.stateful))
    old, new = head.steps.get(path[-1]), plan.stateful[path[-1]]
    same = old is not None and (old.key, old.values, old.waits) == (new.key, new.values, new.waits)
    return msgspec.structs.replace(made, since=before.since) if len(path) == 1 and same else None


def _records(head: Live, then: Live) -> dict[str, int]:
    was, now = then.position(), head.position()
    return {
        spout: found
        for spout, row in now.offsets.items()
        if (found := sum(offset - (was.offset(spout, partition) or 0) for partition, offset in row.items()))
    }


def _changed(ledger: Ledger, head: Live, then: Live, step: str, was: str) -> dict[str, int]:
    """How many rows of a step's table the rewind brings back, changes and removes. `was` is its name then."""
    shape = then.steps.get(was) or head.steps[step]
    found = Counter[str]()
    if was in shape.tables or step in shape.tables:
        for keys in changed_keys(ledger, head, then, step, was):
            sides = (rows_of(ledger, head, step, keys), rows_of(ledger, then, was, keys))
            before, after = (_shown(rows, shape) for rows in sides)
            if (rows := difference(before, after, shape.key)) is not None:
                found.update(rows.column(KIND).to_pylist())
    return dict(sorted(found.items()))


def _shown(rows: pa.Table | None, shape: StepShape) -> pa.Table | None:
    if rows is None:
        return None
    if shape.waits:
        rows = rows.filter(pc.is_valid(rows.column(shape.waits)))
    return rows.select([name for name in (*shape.key, *shape.values) if name in rows.column_names])


def _streams(sinks: Sequence[Sink], head: Live, then: Live) -> tuple[str, ...]:
    return tuple(sink.name for sink in sinks if not sink.is_table and head.outboxes.get(sink.name, 0) > then.commit)


def _stream_sinks(streams: tuple[str, ...], then: int) -> RunError:
    names = ", ".join(f"'{name}'" for name in streams)
    return RunError(
        41,
        f"sinks of streams have got rows of commits after {then}, and nobody can take those back: {names}",
        hint="To leave them there, and let the next run send again what it makes again: --append keep",
    )
