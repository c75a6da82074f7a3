"""The past of steps: what a second run over the logs would read, whose state it would make, and what it cannot get.

`backfill.py`, `rewind_steps.py`, `second_run.py` and `planning.py` ask. Nothing is run here; the logs are asked how far
they reach back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from hailstorm.clock.clock import Clock
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.replacing import with_all_below
from hailstorm.errors import RunError, WordError, suggestion
from hailstorm.history.moments import When, moment_of
from hailstorm.ledger.commit import StepShape
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.topology.topology import Topology


@dataclass(frozen=True)
class Past:
    """What is to be run again: which steps get new state, over what, and what of their old state cannot be made."""

    steps: tuple[str, ...]  # that are replaced
    begin: Clock
    end: Clock
    lost: Mapping[str, int]  # by step: records that its state has, and the logs have no more
    missing: int  # records that the logs have, and the state of one of the steps has not
    base: Live | None = None  # what it begins with, under the names of now; None: with nothing

    @property
    def records(self) -> int:
        return sum(offset - (self.begin.offset(spout, p) or 0) for spout, p, offset in self.end)


def past_of(
    topology: Topology, ledger: Ledger, stateful: Mapping[str, StepShape], steps: tuple[str, ...], since: When = None
) -> Past:
    """What giving these steps their past would mean. Asks the logs how far they reach back."""
    wanted = _chosen(topology, stateful, steps)
    head, end = ledger.head, _end(topology, ledger.head, wanted)
    spouts = tuple(end.offsets)
    begin = _beginnings(topology, head, end)
    if since is not None:
        moment = moment_of(ledger, since)
        asked = moment.base.position() if moment.clock is None else moment.clock
        _refuse_gone(topology, begin, asked, since)
        begin = begin.join(Clock({s: dict(asked.offsets.get(s, {})) for s in spouts if s in asked.offsets}))
    lost = {step: found for step in wanted if (found := _before(head, step, begin))}
    missing = max(_missing(head, topology, step, begin, end) for step in wanted)
    return Past(wanted, begin, end, lost, missing)


def past_since(
    topology: Topology, head: Live, stateful: Mapping[str, StepShape], steps: tuple[str, ...], then: Live
) -> Past:
    """What it would mean to take these steps back to `then`, and to give them again what was read since."""
    wanted = _chosen(topology, stateful, steps)
    for step in wanted:
        if step not in then.coverage:
            raise RunError(
                55,
                f"step '{step}' was not there at commit {then.commit}",
                at=topology.step(step).at,
                hint=f"Name a later commit (hailstorm commits APP), or make it from all that the logs hold:\n"
                f"hailstorm run APP --recompute {step}",
            )
    end = _end(topology, head, wanted)
    begin = _beginnings(topology, head, end).join(
        Clock({spout: row for spout, row in then.position().offsets.items() if spout in end.offsets})
    )
    if not end.covers(begin):  # what their state of then holds would be read, and counted, once more
        raise RunError(
            55,
            f"commit {then.commit} has read more than the ledger has now, which was rewound since",
            hint="Name a commit from before, or from after that rewind: hailstorm commits APP",
        )
    past = Past(wanted, begin, end, {}, 0, then)
    return replace(past, missing=past.records)


def refuse_without_state(topology: Topology, steps: tuple[str, ...], known: Collection[str] = ()) -> None:
    """Raise when one of these is not there, or when neither it nor any step below it keeps state. Needs no Spark.

    `known` are those with state that matter, where these are not all.
    """
    names = [step.name for step in topology.steps]
    stateful = known or [step.name for step in topology.steps if step.keeps_state]
    for step in steps:
        if step not in names:
            hint = f"Steps with state: {', '.join(stateful)}. {suggestion(step, stateful)}".rstrip()
            raise WordError(111, f"there is no step '{step}'", hint=hint)
        if not with_all_below(topology, (step,), stateful):
            hint = f"Steps with state: {', '.join(stateful)}."
            raise WordError(111, f"neither '{step}' nor any step below it keeps state", hint=hint)


def _chosen(topology: Topology, stateful: Mapping[str, StepShape], steps: tuple[str, ...]) -> tuple[str, ...]:
    """These steps and all below them, as far as they keep state."""
    refuse_without_state(topology, steps, stateful)
    return with_all_below(topology, steps, stateful)


def _end(topology: Topology, head: Live, steps: tuple[str, ...]) -> Clock:
    """Where the ledger is, as far as these steps are concerned."""
    spouts = topology.only(steps).spouts
    return Clock({spout.name: dict(head.position().offsets.get(spout.name, {})) for spout in spouts})


def refuse_unfit(topology: Topology, head: Live, stateful: Mapping[str, StepShape], past: Past, lose: bool) -> None:
    """Raise when a second run could not make what belongs there; with `lose`, what logs no longer have may go."""
    for step, count in past.lost.items() if not lose else ():
        raise RunError(
            51,
            f"step '{step}' contains {count:,} records that the logs no longer have: a backfill would lose them",
            at=topology.step(step).at,
            hint=f"If files have them: hailstorm backfill APP {step} --from-files PATH\n"
            f"To begin again without them all the same: hailstorm run APP --recompute {step}",
        )
    for above in topology.only(past.steps).steps:
        name = above.name
        if name in stateful and name not in past.steps and not _covers(head, name, past):
            raise RunError(
                52,
                f"'{past.steps[0]}' is made of '{name}', whose own state does not begin where the logs do",
                at=above.at,
                hint=f"Give '{name}' its past, and what is below it comes along: hailstorm backfill APP {name}",
            )


def _beginnings(topology: Topology, head: Live, end: Clock) -> Clock:
    """Where the logs begin now, as far as the ledger has read them."""
    logs = Logs(topology, head)
    found: dict[str, dict[int, int]] = {}
    for spout, offsets in end.offsets.items():
        earliest = logs.sources[spout].earliest()
        found[spout] = {p: min(earliest.get(p, offset), offset) for p, offset in offsets.items()}
    return Clock(found)


def _refuse_gone(topology: Topology, begin: Clock, asked: Clock, since: When) -> None:
    """Raise when the logs begin after where somebody asks to begin: a part of what was asked for would be missing."""
    for spout, partition, first in begin:
        wanted = asked.offset(spout, partition)
        if wanted is not None and wanted < first:
            raise RunError(
                67,
                f"the log of '{spout}' no longer has {spout}/{partition}@{wanted} up to offset {first - 1}, "
                f"which came after {since}",
                at=topology.step(spout).at,
                hint="Name a later moment, or leave --from out: then it begins where the logs do.\n"
                "If files have these records: --from-files PATH",
            )


def _before(head: Live, step: str, begin: Clock) -> int:
    """How many records from before this clock a step's state contains."""
    return sum(
        max(0, min(end, begin.offset(spout, int(p)) or 0) - start)
        for spout, row in head.coverage.get(step, {}).items()
        for p, spans in row.items()
        for start, end in spans
    )


def _missing(head: Live, topology: Topology, step: str, begin: Clock, end: Clock) -> int:
    """How many records between two clocks a step's state does not contain."""
    found = 0
    for spout in (one.name for one in topology.only([step]).spouts):
        for p, until in end.offsets.get(spout, {}).items():
            start = begin.offset(spout, p) or 0
            spans = head.coverage.get(step, {}).get(spout, {}).get(str(p), ())
            found += until - start - sum(max(0, min(b, until) - max(a, start)) for a, b in spans)
    return found


def _covers(head: Live, step: str, past: Past) -> bool:
    """Whether a step's state begins where a second run would begin."""
    known = head.coverage.get(step, {})
    if _before(head, step, past.begin):
        return False
    for spout, row in past.begin.offsets.items():
        for p, begin in row.items():
            spans = known.get(spout, {}).get(str(p), ())
            end = past.end.offset(spout, p) or 0
            if spout in known and begin < end and (not spans or spans[0][0] > begin):
                return False
    return True
