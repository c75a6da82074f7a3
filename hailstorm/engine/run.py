"""Run a topology: open everything, hand it to the negotiator, and stop gracefully when asked to.

`hailstorm run`, `hailstorm demo` and `Topology.run()` all come here.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import msgspec

from hailstorm.clock.clock import Clock
from hailstorm.engine.choosing import Logs, OnDataLoss
from hailstorm.engine.java import means_that_java_has_ended
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import OnProgress, Progress, Retried, Summary, ignore_progress
from hailstorm.engine.session import start_session
from hailstorm.errors import RunError
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.step import Sink, Spout, Step
from hailstorm.topology.topology import Topology


def run_topology(
    topology: Topology,
    *,
    ledger: str | Path | None = None,
    until: str = "never",
    every: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    accept: tuple[str, ...] = (),
    on_data_loss: OnDataLoss = "fail",
    on_progress: OnProgress = ignore_progress,
    stop: threading.Event | None = None,
) -> Summary:
    """Run until stopped, or until `until`: `never`, `caught-up` (with the logs as they end now) or a clock (JSON).

    `on_data_loss="continue"` goes on where records are gone before they were read; the hole is in the commit.
    """
    options = {**(overrides or {}), **({"every": every} if every else {})}
    stop = stop or threading.Event()
    running = _running(topology, ledger, options, master, conf, accept, on_progress, until, on_data_loss)
    # Twice, because Spark takes SIGINT for itself while it starts.
    with _stopping_on_signals(stop), running as (negotiator, target, lease), _stopping_on_signals(stop):
        negotiator.start()
        return negotiator.run(target, stop, lease.beat)


def retry_errors(
    topology: Topology,
    *,
    ledger: str | Path | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    accept: tuple[str, ...] = (),
    on_progress: OnProgress = ignore_progress,
) -> Retried:
    """Run the dead letters of a ledger once more through a mended topology, and merge what they give; offer rows that
    sinks rejected to them again. What fails again stays a dead letter. The topology may not be running.
    """
    with _running(topology, ledger, {}, master, conf, accept, on_progress) as (negotiator, _, _):
        negotiator.start()
        done = negotiator.retry()
        negotiator.stop()
        return done


@contextmanager
def _running(
    topology: Topology,
    ledger: str | Path | None,
    options: Mapping[str, str],
    master: str | None,
    conf: Mapping[str, str] | None,
    accept: tuple[str, ...],
    on_progress: OnProgress,
    until: str = "never",
    on_data_loss: OnDataLoss = "fail",
) -> Iterator[tuple[Negotiator, Clock | None, Lease]]:
    """A negotiator on an open ledger, and its target, with the lease held. What goes wrong ends the run first."""
    topology.validate()
    topology = resolved(topology)
    settings = topology.settings.with_options(options) if options else topology.settings
    opened = Ledger(topology.ledger_path(ledger), create=True)
    lease = Lease(opened.store)
    lease.take()
    try:
        # Where the logs end is asked before Spark starts: `caught-up` is with what was there when the user typed it.
        logs = Logs(topology, opened.head, on_data_loss)
        target = _target(until, logs)
        on_progress(Progress("starting", "starting Spark", commit=opened.head.commit))
        opened.cache.clear_after_reboot()
        spark = start_session(f"hailstorm {topology.name}", opened.cache.folder / "spark.log", master, conf)
        negotiator = Negotiator(spark, topology, opened, settings, on_progress, accept, logs=logs)
        try:
            yield negotiator, target, lease
        except BaseException as error:
            negotiator.fail()
            if means_that_java_has_ended(error):
                raise _java_is_gone(opened.cache.folder) from error
            raise
    finally:
        lease.release()


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


def _target(until: str, logs: Logs) -> Clock | None:
    if until == "never":
        return None
    if until == "caught-up":
        return logs.latest()
    try:
        return Clock.from_json(msgspec.json.decode(until, type=dict[str, dict[str, int]]))
    except (msgspec.DecodeError, ValueError) as error:
        raise RunError(
            7,
            f"--until '{until}' is not a clock",
            hint='Say caught-up, never, or a clock such as {"tweets": {"0": 1200}}',
        ) from error


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
