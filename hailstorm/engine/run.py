"""Run a topology: open everything, hand it to the negotiator, and stop gracefully when asked to.

`hailstorm run`, `hailstorm demo` and `Topology.run()` all come here.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from hailstorm.clock.clock import Clock
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.place import SCRATCH
from hailstorm.engine.progress import OnProgress, Progress, Retried, Summary, ignore_progress
from hailstorm.engine.spark.executors import require_executors
from hailstorm.engine.spark.java import means_that_java_has_ended
from hailstorm.engine.spark.session import is_on_this_machine, start_session
from hailstorm.engine.spark.shipping import ship_by_value
from hailstorm.engine.ticks.logs import Logs, OnDataLoss
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.engine.wishes import check_accepted, check_partitions, check_places, settings_of, target_of
from hailstorm.errors import RunError, TransientLogError
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.stores import is_folder
from hailstorm.topology.step import Sink, Spout, Step
from hailstorm.topology.topology import Topology


def run_topology(
    topology: Topology,
    *,
    ledger: str | Path | None = None,
    until: str = "never",
    complete: bool = False,
    every: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    accept: tuple[str, ...] = (),
    on_data_loss: OnDataLoss = "fail",
    on_progress: OnProgress = ignore_progress,
    stop: threading.Event | None = None,
    first: Callable[[Negotiator], Replacement | None] | None = None,
    between: Callable[[Negotiator], Callable[[], bool]] | None = None,
) -> Summary:
    """Run until stopped, or until `until`: `never`, `caught-up` (with the logs as they end now) or a clock (JSON).

    `complete` says that the logs hold all that there will be: then what waits for time is done, too.
    `on_data_loss="continue"` goes on where records are gone before they were read; the hole is in the commit.
    `first` gives state that takes the place of that of some steps, and `between` is done between ticks: see
    history/backfill.py.
    """
    options = {**(overrides or {}), **({"every": every} if every else {})}
    stop = stop or threading.Event()
    run = running(topology, ledger, options, master, conf, accept, on_progress, until, on_data_loss)
    # Twice, because Spark takes SIGINT for itself while it starts.
    with _stopping_on_signals(stop), run as (negotiator, target), _stopping_on_signals(stop):
        if first is not None:
            negotiator.rename()
        negotiator.start(replacement=None if first is None else first(negotiator))
        return negotiator.run(target, stop, complete, None if between is None else between(negotiator))


def retry_errors(
    topology: Topology,
    *,
    ledger: str | Path | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    accept: tuple[str, ...] = (),
    on_progress: OnProgress = ignore_progress,
) -> Retried:
    """Run the dead letters of a ledger through a corrected topology, and merge what they give; offer rows that
    sinks rejected to them again. What fails again stays a dead letter. The topology must not be running.
    """
    with running(topology, ledger, {}, master, conf, accept, on_progress) as (negotiator, _):
        negotiator.start(reading=False)
        done = negotiator.retry()
        negotiator.stop()
        return done


def resend_table(
    topology: Topology,
    sink: str,
    *,
    ledger: str | Path | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Summary:
    """Give a sink the whole of its table, in place of what its target holds. The topology must not be running."""
    with running(topology, ledger, {}, None, None, (), on_progress) as (negotiator, _):
        negotiator.start(reading=False, resend=(sink,))
        return negotiator.stop()


@contextmanager
def running(
    topology: Topology,
    ledger: str | Path | None,
    options: Mapping[str, str],
    master: str | None,
    conf: Mapping[str, str] | None,
    accept: tuple[str, ...],
    on_progress: OnProgress,
    until: str | None = None,
    on_data_loss: OnDataLoss = "fail",
) -> Iterator[tuple[Negotiator, Clock | None]]:
    """A negotiator on an open ledger, and its target, with the lease held. What goes wrong ends the run first."""
    topology.validate()
    settings = settings_of(topology, options)
    check_places(topology, ledger, master, conf or {})
    check_accepted(topology, accept)
    wanted = target_of(topology, until)
    topology = resolved(topology)
    opened = Ledger(topology.ledger_address(ledger), create=True)
    with Lease(opened.store).held():
        # Where the logs are is asked before Spark starts: `caught-up` is with what was there when the user typed it.
        logs = Logs(topology, opened.head, on_data_loss, accept)
        target = _target(until, wanted, logs, opened.head.position())
        on_progress(Progress("starting", "starting Spark", commit=opened.head.commit))
        opened.cache.clear_after_reboot()
        opened.cache.clear_scratch()
        if not is_folder(opened.address):
            opened.store.delete_folder(SCRATCH)
        spark = start_session(f"hailstorm {topology.name}", opened.cache.folder / "spark.log", master, conf)
        if not is_on_this_machine(spark):
            on_progress(Progress("starting", "looking at the executors", commit=opened.head.commit))
            sources = {step.name: step.source for step in topology.steps if isinstance(step, Spout)}
            ship_by_value(topology.folder)
            require_executors(spark, opened.store.address, sources)
        negotiator = Negotiator(spark, topology, opened, settings, on_progress, accept, logs=logs)
        try:
            yield negotiator, target
        except BaseException as error:
            negotiator.fail()
            if means_that_java_has_ended(error):
                raise _java_is_gone(opened.cache.folder) from error
            raise


def _java_is_gone(cache: Path) -> RunError:
    return RunError(
        12,
        "Spark's Java process has ended",
        hint="Nothing of the tick under way was committed; run again, and it goes on from the last commit.\n"
        "If it was killed for want of memory, let it have less: --conf spark.driver.memory=2g\n"
        f"Its log is {cache / 'spark.log'}",
    )


def resolved(topology: Topology) -> Topology:
    """The topology with relative paths of logs and sinks taken from the app file's folder."""

    def place(step: Step) -> Step:
        if isinstance(step, Spout):
            return replace(step, source=step.source.resolve(topology.folder))
        if isinstance(step, Sink):
            return replace(step, sink=step.sink.resolve(topology.folder))
        return step

    return topology.with_steps(place)


def _target(until: str | None, clock: Clock | None, logs: Logs, head: Clock) -> Clock | None:
    """None: there is none. A run that reads nothing (`until` is None) does not ask the logs."""
    if until is None:
        return None
    if until == "caught-up":
        return logs.first_look(head).ends
    with suppress(TransientLogError):  # then the first tick waits for it
        ends = logs.first_look(head).ends
        if clock is not None:
            check_partitions(clock, ends)
    return clock


@contextmanager
def _stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a graceful stop; the second one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
