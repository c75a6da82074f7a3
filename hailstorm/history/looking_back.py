"""Spark, a topology and its ledger, for whoever looks back: audit, replay, trace, and states at any moment.

It takes no lease and commits nothing, so it works beside a run. `hailstorm audit` and `Topology.audit` come through
here, and so do the others.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from hailstorm.engine.run import resolved
from hailstorm.engine.spark.session import start_session
from hailstorm.engine.ticks.renaming import renames
from hailstorm.errors import LedgerError, RunError
from hailstorm.history.audit import Audit, AuditedSteps, steps_to_audit
from hailstorm.history.comparing import KeyRange
from hailstorm.history.diff import Diff
from hailstorm.history.made_of import reaches_back
from hailstorm.history.makers import MadeOf, Makers, sink_called, wanted_rows
from hailstorm.history.moments import When, kept_moment, moment_of, shown
from hailstorm.history.one_record import Record
from hailstorm.history.replay import Replay, Replayed
from hailstorm.history.rerun import Tell, silent
from hailstorm.history.state_at import state_at
from hailstorm.history.trace import Trace, Tracer, refuse_unknown_spout
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.pins import LIMIT_SECONDS, pinned
from hailstorm.ledger.reader import SHOWN, Rows, State, state_of
from hailstorm.sinks.values import python_rows
from hailstorm.topology.picture import html_table
from hailstorm.topology.topology import Topology


@dataclass(frozen=True)
class LookingBack:
    spark: SparkSession
    topology: Topology  # with its paths resolved
    ledger: Ledger


@contextmanager
def looking_back(
    topology: Topology, ledger: str | Path | None, tell: Tell, check: Callable[[Ledger], object] = lambda opened: None
) -> Iterator[LookingBack]:
    """Open everything. Spark goes on afterwards: another look needs it again. `check` may refuse before it starts."""
    topology.validate()
    opened = Ledger(topology.ledger_address(ledger))
    if names := renames(topology, opened.head):
        name, old = next(iter(names.items()))
        raise RunError(
            66,
            f"the code calls '{name}' what the ledger calls '{old}'",
            at=topology.step(name).at,
            hint="The next run lets the ledger know: hailstorm run APP. Or look back with the code of the last run.",
        )
    check(opened)
    tell("starting Spark")
    log = opened.cache.folder / "spark-history.log"
    yield LookingBack(start_session(f"hailstorm {topology.name}", log), resolved(topology), opened)


@contextmanager
def held(ledger: Ledger, commit: int) -> Iterator[None]:
    """Keep a commit and its files for as long as it takes. A single pin is for an hour, so that none is left for ever
    by who was killed."""
    done = threading.Event()

    def renew(pin: ExitStack) -> None:
        while not done.wait(LIMIT_SECONDS / 3):
            with suppress(OSError), ExitStack() as newer:
                newer.enter_context(pinned(ledger.store, commit))
                pin.close()
                pin = newer.pop_all()
        pin.close()

    first = ExitStack()
    first.enter_context(ledger.pinned(commit))
    thread = threading.Thread(target=renew, args=(first,), name="pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def audit(
    topology: Topology,
    *,
    ledger: str | Path | None = None,
    steps: Sequence[str] = (),
    at: When = None,
    since: When = None,
    keys: str | None = None,
    tell: Tell = silent,
) -> AuditedSteps:
    """Compute the states of these steps, or of all, once more from the logs, and compare. See `audit.py`.

    `at` is the moment that is audited. With `since` the state of then is believed, and what came later is computed.
    `keys` is a range of the first key column, `a..f`.
    """
    within = None if keys is None else KeyRange.parse(keys)

    def check(opened: Ledger) -> None:
        steps_to_audit(topology, kept_moment(opened, at), steps)
        if since is not None:
            kept_moment(opened, since)

    with looking_back(topology, ledger, tell, check) as here:
        live = kept_moment(here.ledger, at)
        base = None if since is None else kept_moment(here.ledger, since)
        with held(here.ledger, live.commit):
            return AuditedSteps(Audit(here.spark, here.topology, here.ledger, live, base, within, tell).run(steps))


def replay(
    topology: Topology,
    *,
    since: When,
    until: When = None,
    ledger: str | Path | None = None,
    tell: Tell = silent,
) -> Replayed:
    """Run the commits after `since`, up to `until`, again, and compare with what was committed. See `replay.py`."""

    def moments(opened: Ledger) -> tuple[Live, Live]:
        base, last = kept_moment(opened, since), kept_moment(opened, until)
        if base.commit >= last.commit:
            raise _nothing_between(base.commit, last.commit)
        return base, last

    with looking_back(topology, ledger, tell, moments) as here:
        base, last = moments(here.ledger)
        with held(here.ledger, base.commit):
            return Replay(here.spark, here.topology, here.ledger, tell).run(base, last.commit)


def _nothing_between(base: int, last: int) -> LedgerError:
    what = f"there is nothing between commit {base} and commit {last}"
    return LedgerError(83, what, hint="--from must be before --to, and before the commit of --output.")


def trace(topology: Topology, record: str, *, ledger: str | Path | None = None, tell: Tell = silent) -> Trace:
    """What became of one record, `spout/partition@offset`: its tuple tree. See `trace.py`."""
    wanted = Record.parse(record)
    refuse_unknown_spout(topology, wanted)
    with looking_back(topology, ledger, tell) as here:
        return Tracer(here.spark, here.topology, here.ledger, tell).trace(wanted)


@dataclass(frozen=True)
class Looked(Rows):
    """Rows of a moment that was had again: what they were made of is gone, so they are all here."""

    table: pa.Table
    caption: str

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def _repr_html_(self) -> str:
        few = (tuple(row.values()) for row in python_rows(self.table.slice(0, SHOWN)))
        return html_table(self.table.column_names, few, f"{self.caption}: {self.table.num_rows:,} rows")


def state(
    topology: Topology, step: str, *, at: When = None, ledger: str | Path | None = None, tell: Tell = silent
) -> Looked:
    """A step's state at any moment. See `state_at.py`. Spark is only started for a moment between two kept commits."""
    with _states(topology, ledger, (at,), step, tell) as (found,):
        return Looked(found.arrow(), f"{step} at {shown(at)}")


def diff(
    topology: Topology, step: str, a: When, b: When = None, *, ledger: str | Path | None = None, tell: Tell = silent
) -> Looked:
    """What changed in a step from one moment to another. See `diff.py`."""
    with _states(topology, ledger, (a, b), step, tell) as (one, other):
        return Looked(Diff(one, other).arrow(), f"{step} from {shown(a)} to {shown(b)}")


@contextmanager
def _states(
    topology: Topology, ledger: str | Path | None, whens: Sequence[When], step: str, tell: Tell
) -> Iterator[list[State]]:
    """A step's state at each of these moments, to be read before the block ends. What a person must know of the answer
    is a warning."""
    opened = Ledger(topology.ledger_address(ledger))
    moments = [moment_of(opened, when) for when in whens]
    for moment in moments:
        _warn(moment.remark)
    with ExitStack() as stack:
        if all(moment.is_kept for moment in moments):
            yield [state_of(opened, moment.base, step) for moment in moments]
            return
        here = stack.enter_context(looking_back(topology, ledger, tell))
        yield [
            stack.enter_context(state_at(here.topology, here.spark, here.ledger, moment, step, tell, _warn))
            for moment in moments
        ]


def _warn(remark: str) -> None:
    if remark:
        warnings.warn(remark, stacklevel=2)


def makers(
    topology: Topology,
    step: str,
    key: Mapping[str, Any],
    *,
    since: When,
    until: When = None,
    ledger: str | Path | None = None,
    tell: Tell = silent,
) -> MadeOf:
    """The records between two kept commits of which this key of a step was made. See `makers.py`."""

    def check(opened: Ledger) -> None:
        kept_moment(opened, since)
        wanted_rows(topology, opened, kept_moment(opened, until), step, key)

    with looking_back(topology, ledger, tell, check) as here:
        base, last = kept_moment(here.ledger, since), kept_moment(here.ledger, until)
        with held(here.ledger, last.commit):
            found = Makers(here.spark, here.topology, here.ledger, base, last, tell).of_key(step, key)
        return MadeOf.within(found, base.commit, last.commit)


def makers_of_output(
    topology: Topology,
    sink: str,
    commit: int,
    row: int,
    *,
    since: When = None,
    ledger: str | Path | None = None,
    tell: Tell = silent,
) -> MadeOf:
    """The records that made a row of a sink's outbox, of those that were read after `since`, up to its commit.

    Without `since` they are looked for in the commit itself; where rows may have waited, or met what was there before
    (a window that is shown at its end, a join, a timer), from the beginning on.
    """
    source = sink_called(topology, sink).inputs[0]

    def check(opened: Ledger) -> None:
        opened.at(commit)
        if since is not None:
            kept_moment(opened, since)

    with looking_back(topology, ledger, tell, check) as here:
        found, last = here.ledger.read_commit(commit), here.ledger.at(commit)
        before = last.commit - 1 if found is None else found.covers_from - 1
        base = here.ledger.at(0 if reaches_back(topology, source) else before)
        if since is not None:
            base = kept_moment(here.ledger, since)
        if base.commit >= commit:
            raise _nothing_between(base.commit, commit)
        with held(here.ledger, last.commit):
            made = Makers(here.spark, here.topology, here.ledger, base, last, tell).of_output(sink, row)
        return MadeOf.within(made, base.commit, last.commit)
