"""Run a topology: open everything, hand it to the negotiator, and stop gracefully when asked to.

`hailstorm run`, `hailstorm demo` and `Topology.run()` all come here.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

from hailstorm.clock.clock import Clock
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.place import SCRATCH
from hailstorm.engine.progress import OnProgress, Progress, Retried, Summary, ignore_progress
from hailstorm.engine.spark.executors import require_executors
from hailstorm.engine.spark.java import means_that_java_has_ended
from hailstorm.engine.spark.session import is_on_this_machine, start_session
from hailstorm.engine.spark.shipping import ship_by_value
from hailstorm.engine.standby import StandBy, StoodDownError
from hailstorm.engine.ticks.logs import Logs, OnDataLoss
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.engine.wishes import check_accepted, check_partitions, check_places, settings_of, target_of
from hailstorm.errors import RunError, TransientLogError, UsageError, WordError, suggestion
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger, cannot_write
from hailstorm.ledger.stores import is_folder
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
    standby: bool = False,
) -> Summary:
    """Run until stopped, or until `until`: `never`, `caught-up` (with the logs as they end now) or a clock (JSON).

    `complete` says that the logs hold all that there will be: then what waits for time is done, too.
    `on_data_loss="continue"` goes on where records are gone before they were read; the hole is in the commit.
    `first` gives state that takes the place of that of some steps, and `between` is done between ticks: see
    history/backfill.py. With `standby` the run begins when no other driver has the ledger (standby.py).
    """
    options = {**(overrides or {}), **({"every": every} if every else {})}
    stop = stop or threading.Event()
    waits = stop if standby else None
    run = running(topology, ledger, options, master, conf, accept, on_progress, until, on_data_loss, waits)
    # Twice, because Spark takes SIGINT for itself while it starts.
    with _stopping_on_signals(stop), suppress(StoodDownError), run as (negotiator, target), _stopping_on_signals(stop):
        if first is not None:
            negotiator.rename()
        negotiator.start(replacement=None if first is None else first(negotiator))
        return negotiator.run(target, stop, complete, None if between is None else between(negotiator))
    address = str(topology.ledger_address(ledger))
    commit = Ledger(address).head.commit
    return Summary(address, commit, ticks=0, rows=0, errors=0, late=0, skipped=0, rejected=0, seconds=0.0)


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
    _refuse_no_table(topology, sink)
    with running(topology, ledger, {}, None, None, (), on_progress) as (negotiator, _):
        negotiator.start(reading=False, resend=(sink,))
        return negotiator.stop()


def _refuse_no_table(topology: Topology, name: str) -> None:
    sinks = {sink.name: sink for sink in topology.sinks}
    if name not in sinks:
        raise WordError(
            50,
            f"there is no sink '{name}'",
            hint=f"Sinks: {', '.join(sinks) or 'none'}. {suggestion(name, sinks)}".rstrip(),
        )
    if not sinks[name].is_table:
        raise UsageError(
            51,
            f"sink '{name}' gets a stream, which is not kept: only a table can be sent again",
            hint="What has not been delivered waits in the outbox, and is delivered by: hailstorm run APP",
            at=sinks[name].at,
        )


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
    standby: threading.Event | None = None,
) -> Iterator[tuple[Negotiator, Clock | None]]:
    """A negotiator on an open ledger, and its target, with the lease held. What goes wrong ends the run first.

    With `standby` it waits for the lease, until that is set.
    """
    topology.validate()
    settings = settings_of(topology, options)
    check_places(topology, ledger, master, conf or {})
    check_accepted(topology, accept)
    wanted = target_of(topology, until)
    topology = resolved(topology)
    opened = Ledger(topology.ledger_address(ledger), create=True)
    log_file = opened.cache.folder / ("spark.log" if standby is None else "standby.log")
    waiting = None
    if standby is not None:
        start_spark = partial(_session_beside, topology, log_file, master, conf)
        waiting = StandBy(topology, opened, settings, accept, standby, on_progress, start_spark)
    with _ledger_that_answers(), Lease(opened.store).held(waiting):
        if waiting is not None:
            opened.catch_up()
            opened.forget_copies()  # who had it meanwhile may have erased something
        # Where the logs are is asked before Spark starts: `caught-up` is with what was there when the user typed it.
        logs = Logs(topology, opened.head, on_data_loss, accept)
        target = _target(until, wanted, logs, opened.head.position())
        spark = None if waiting is None else waiting.spark
        what = "starting Spark" if spark is None else "taking over"
        on_progress(Progress("starting", what, commit=opened.head.commit))
        opened.cache.clear_after_reboot()
        opened.cache.clear_scratch()
        if not is_folder(opened.address):
            opened.store.delete_folder(SCRATCH)
        if spark is None:
            spark = start_session(_app_name(topology), log_file, master, conf)
        if not is_on_this_machine(spark):
            on_progress(Progress("starting", "looking at the executors", commit=opened.head.commit))
            sources = {spout.name: spout.source for spout in topology.spouts}
            ship_by_value(topology.folder)
            require_executors(spark, opened.store.address, sources)
        plans = None if waiting is None else waiting.plans
        negotiator = Negotiator(spark, topology, opened, settings, on_progress, accept, logs=logs, made=plans)
        try:
            yield negotiator, target
        except BaseException as error:
            negotiator.fail()
            if means_that_java_has_ended(error):
                raise _java_is_gone(log_file) from error
            raise


@contextmanager
def _ledger_that_answers() -> Iterator[None]:
    """A store that stays away, or a disk that fails, is told in a sentence, wherever that was met."""
    try:
        yield
    except ConnectionError:  # nobody reads what we print, or Java does not answer
        raise
    except OSError as error:
        raise cannot_write(error) from error


def _app_name(topology: Topology) -> str:
    return f"hailstorm {topology.name}"


def _session_beside(
    topology: Topology, log_file: Path, master: str | None, conf: Mapping[str, str] | None
) -> SparkSession:
    """Spark, started while we wait: it takes SIGINT for itself, and the wait must still be one that can be stopped."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        return start_session(_app_name(topology), log_file, master, conf)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _java_is_gone(log_file: Path) -> RunError:
    return RunError(
        12,
        "Spark's Java process has ended",
        hint="Nothing of the tick under way was committed; run again, and it goes on from the last commit.\n"
        "If it was killed for want of memory, let it have less: --conf spark.driver.memory=2g\n"
        f"Its log is {log_file}",
    )


def resolved(topology: Topology) -> Topology:
    """The topology with relative paths of logs and sinks taken from the app file's folder."""
    folder = topology.folder
    placed = topology.with_sources(lambda spout: spout.source.resolve(folder))
    return placed.with_sinks(lambda step: step.sink.resolve(folder))


def _target(until: str | None, clock: Clock | None, logs: Logs, head: Clock) -> Clock | None:
    """None: there is none. A run that reads nothing (`until` is None) does not ask the logs."""
    if until is None:
        return None
    if until == "caught-up":
        return logs.first_look(head, at_all=True).ends
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
