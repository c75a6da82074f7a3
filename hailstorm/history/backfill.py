"""Backfill: steps get the past that the logs still hold. Also `run --recompute`, for steps that are to begin again.

A second negotiator runs the steps in question, with all that is above and below them, over the logs from their
beginning, in a ledger of its own inside the ledger (second_run.py). When it has come to where the ledger is, its
state takes the place of theirs in one commit (engine/ticks/replacing.py). So the result is that of a fresh run by
construction, for every kind of step; nothing is counted twice, because nothing is merged; and a crash loses nothing:
the inner ledger has its own commits, and the next try goes on from the last one.

Offline it runs at full speed (`first`); beside live ticks a piece at a time (`Beside`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import OnProgress, Summary, ignore_progress
from hailstorm.engine.run import running
from hailstorm.engine.ticks.logs import OnDataLoss
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.history.archives import with_archives
from hailstorm.history.moments import When, moment_of
from hailstorm.history.past import Past, past_of, refuse_unfit, refuse_without_state
from hailstorm.history.second_run import FAST_TICK_MS, SecondRun
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.topology import Topology


def made_first(
    steps: tuple[str, ...],
    lose: bool,
    since: When = None,
    on_progress: OnProgress = ignore_progress,
    from_files: Mapping[str, str] | None = None,
    on_data_loss: OnDataLoss = "fail",
) -> Callable[[Negotiator], Replacement | None]:
    """For `run_topology(first=)`: the state of these steps, made again at full speed before anything else is done."""

    def first(negotiator: Negotiator) -> Replacement | None:
        if not negotiator.ledger.head.commit:
            return None  # nothing was ever run: all steps begin at the beginning
        files, head = from_files or {}, negotiator.ledger.head
        archived = with_archives(negotiator.topology, head, steps[0], files, on_data_loss)
        return finished(second_run(negotiator, steps, lose, since, on_progress, archived=archived))

    return first


def finished(second: SecondRun) -> Replacement:
    """At full speed to its end."""
    try:
        while second.go():
            pass
        return second.replacement()
    finally:
        second.close()


def second_run(
    negotiator: Negotiator,
    steps: tuple[str, ...],
    lose: bool,
    since: When = None,
    on_progress: OnProgress = ignore_progress,
    latency_ms: int = FAST_TICK_MS,
    archived: Topology | None = None,
) -> SecondRun:
    """`archived` is the topology with archives before its logs, where there are any."""
    topology, ledger = archived or negotiator.topology, negotiator.ledger
    stateful = negotiator.plan(PREPARED).stateful
    past = past_of(topology, ledger, stateful, steps, since)
    refuse_unfit(topology, ledger.head, stateful, past, lose)
    return SecondRun(negotiator.spark, topology, ledger, past, latency_ms, on_progress)


@dataclass
class Beside:
    """A backfill in pieces between the ticks of a run. `speed` is the share of the time that it may take."""

    negotiator: Negotiator
    second: SecondRun | None
    speed: float
    next_piece: float = 0.0

    def __call__(self) -> bool:
        """A piece of it; whether there is more."""
        if self.second is None:
            return False
        began = time.monotonic()
        if began < self.next_piece:
            return True
        self.second.follow(self.negotiator.ledger.head)
        if not self.second.go():
            made = self.second.replacement()
            self.second.close()
            self.second = None
            self.negotiator.replace(made)
            return False
        took = time.monotonic() - began
        self.next_piece = began + took / self.speed
        return True


def made_beside(
    steps: tuple[str, ...], speed: float = 0.5, on_progress: OnProgress = ignore_progress
) -> Callable[[Negotiator], Beside]:
    """For `run_topology(between=)`: the past of these steps, made while live ticks go on."""

    def between(negotiator: Negotiator) -> Beside:
        stateful = negotiator.plan(PREPARED).stateful
        if not past_of(negotiator.topology, negotiator.ledger, stateful, steps).missing:
            return Beside(negotiator, None, speed)  # they have it: a run that is started again with the same words
        latency = max(100, negotiator.settings.latency_ms // 2)
        return Beside(negotiator, second_run(negotiator, steps, False, None, on_progress, latency), speed)

    return between


def backfill_topology(
    topology: Topology,
    step: str,
    *,
    since: When = None,
    from_files: Mapping[str, str] | None = None,
    on_data_loss: OnDataLoss = "fail",
    ledger: str | Path | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Past, Summary]:
    """Give a step, and what is below it, the past that the logs still hold. The topology must not be running.

    `from_files` says by spout where records are that its log no longer has (archives.py); "" is the only spout.
    """
    refuse_without_state(topology, (step,))
    if since is not None:
        moment_of(Ledger(topology.ledger_address(ledger)), since)  # that it is none is said before Spark starts
    with running(topology, ledger, {}, master, conf, (), on_progress) as (negotiator, _):
        stateful = negotiator.plan(PREPARED).stateful
        head, files = negotiator.ledger.head, from_files or {}
        archived = with_archives(negotiator.topology, head, step, files, on_data_loss)
        past = past_of(archived, negotiator.ledger, stateful, (step,), since)
        made = None
        if past.missing:
            made = finished(second_run(negotiator, (step,), False, since, on_progress, archived=archived))
        negotiator.start(reading=False, replacement=made)
        return past, negotiator.stop()
