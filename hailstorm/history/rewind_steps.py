"""Rewind of some steps: they, and all below them, go back to an earlier commit, and get again what was read since.

All others stay as they are, and the spouts stay where they are: so a second run (second_run.py) begins with what was
live then, reads what the ledger has read since, with the code of now, and its state takes the place of theirs in one
commit, as in a backfill. Sinks of their tables get the whole table. What sinks of streams have got stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hailstorm.engine.delivery.joining import path_to_table
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import OnProgress, ignore_progress
from hailstorm.engine.run import running
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.history.backfill import finished
from hailstorm.history.moments import When, kept_moment
from hailstorm.history.past import Past, past_since
from hailstorm.history.rewind import Rewinding, named_as_now, refuse_lost_records, seen_as_now
from hailstorm.history.second_run import SecondRun
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import under_names_of_now
from hailstorm.topology.topology import Topology


def look_back_at_steps(
    topology: Topology, to: When, steps: tuple[str, ...], ledger: str | Path | None = None
) -> Rewinding:
    """What it would do. Changes nothing; may be asked while the topology runs."""
    opened = Ledger(topology.ledger_address(ledger))
    head, then = opened.newest(), kept_moment(opened, to)
    then = under_names_of_now(then, head.called_then(then.commit))
    return _found(topology, head, past_since(topology, head, head.steps, steps, then))


def rewind_steps(
    topology: Topology,
    to: When,
    steps: tuple[str, ...],
    *,
    ledger: str | Path | None = None,
    accept: tuple[str, ...] = (),
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Rewinding:
    """Take some steps back to a kept commit, and give them again what was read since. The topology must not be running.

    `accept` names steps whose code has changed since then.
    """
    with running(topology, ledger, {}, master, conf, accept, on_progress) as (negotiator, _):
        opened, plan, number = negotiator.ledger, negotiator.plan(PREPARED), kept_moment(negotiator.ledger, to).commit
        # Before the ledger hears of new names: a rewind that is refused changes nothing.
        refuse_lost_records(negotiator.topology, opened, number, "fail", accept)
        as_now, then = seen_as_now(negotiator.topology, opened, plan, number)
        past_since(negotiator.topology, as_now, plan.stateful, steps, then)
        negotiator.rename()
        head = opened.head
        second = run_since(negotiator, number, steps, accept, on_progress)
        negotiator.start(reading=False, replacement=finished(second))
        done = replace(_found(negotiator.topology, head, second.past), commit=opened.head.commit)
        return replace(done, summary=negotiator.stop())


def run_since(
    negotiator: Negotiator,
    to: int,
    steps: tuple[str, ...],
    accept: tuple[str, ...] = (),
    on_progress: OnProgress = ignore_progress,
) -> SecondRun:
    """The run that makes the state of these steps of what it was at a commit, and of all that was read since."""
    topology, ledger = negotiator.topology, negotiator.ledger
    refuse_lost_records(topology, ledger, to, "fail", accept)
    with ledger.pinned(to):
        then = named_as_now(topology, ledger, ledger.head, to)
        past = past_since(topology, ledger.head, negotiator.plan(PREPARED).stateful, steps, then)
        return SecondRun(negotiator.spark, topology, ledger, past, on_progress=on_progress, accept=accept)


def _found(topology: Topology, head: Live, past: Past) -> Rewinding:
    then = past.base
    assert then is not None
    sinks = [sink for sink in topology.sinks if sink.is_table and sink.name in head.sinks]
    return Rewinding(
        head=head.commit,
        to=then.commit,
        at=then.at,
        records={
            spout: sum(end - (past.begin.offset(spout, partition) or 0) for partition, end in row.items())
            for spout, row in past.end.offsets.items()
        },
        keys={},
        letters=0,
        tables=tuple(sink.name for sink in sinks if path_to_table(topology, sink, set(head.steps))[-1] in past.steps),
        streams=(),
        steps=past.steps,
    )
