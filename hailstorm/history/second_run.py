"""The second run: some steps, with all that is above them, over the logs once more, in an inner ledger: from the
beginning of the logs with nothing, or from an earlier commit with what was live then.

The inner ledger is `backfill/<name>` inside the ledger, and is deleted when its state has been taken over. A second run
that was killed goes on from its last commit, as any run does: the same code from the same beginning has the same name.
Only when the ledger was rewound meanwhile, to before what it has read, does it begin again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Clock
from hailstorm.clock.coverage import Spans, spans_without
from hailstorm.columns import TICK
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import OnProgress, Progress, ignore_progress
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.errors import RunError
from hailstorm.history.past import Past
from hailstorm.history.scratch import SECOND_RUNS, begin_as
from hailstorm.ledger.commit import DataFile
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.stores import below
from hailstorm.ledger.stores.store import read_table
from hailstorm.spouts.archive import Archived
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.topology import Topology

FAST_TICK_MS = 20_000  # how long a tick may take when nobody waits for it
_FAST_TICK_ROWS = 20_000_000

_Value = TypeVar("_Value")


class SecondRun:
    """The run over the past of some steps, in its inner ledger. `go` until it is there; then `replacement`."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        ledger: Ledger,
        past: Past,
        latency_ms: int = FAST_TICK_MS,
        on_progress: OnProgress = ignore_progress,
        accept: tuple[str, ...] = (),
    ) -> None:
        self.topology, self.ledger, self.past, self._tell = topology, ledger, past, on_progress
        part = topology.only(past.steps)
        self._gaps = {spout: archived.missing() for spout, archived in _archives(part).items()}
        self.folder = f"{SECOND_RUNS}/{_name(part, past)}"
        for other in ledger.store.list(SECOND_RUNS):
            if f"{SECOND_RUNS}/{other}" != self.folder:  # of other code, or from another beginning
                ledger.store.delete_folder(f"{SECOND_RUNS}/{other}")
        inner = self._inner()
        if not inner.head.commit:
            self._begin(inner, part)
        fast = latency_ms == FAST_TICK_MS
        settings = replace(
            topology.settings,
            latency_ms=latency_ms,
            max_tick_rows=max(_FAST_TICK_ROWS, topology.settings.max_tick_rows)
            if fast
            else topology.settings.max_tick_rows,
            on_overload="queue",
            publish_ms=None,
            every_ms=0,
        )
        ways = (
            (spark.sparkContext.defaultParallelism,)
            if fast and spark.sparkContext.defaultParallelism > 1
            else (PREPARED,)
        )
        self._negotiator = Negotiator(
            spark, part, inner, settings, accept=accept, ways=ways, logs=Logs(part, inner.head)
        )
        self._negotiator.start()

    def _inner(self) -> Ledger:
        """The inner ledger of a try that was cut off, or a new one."""
        address = below(self.ledger.address, self.folder)
        inner = Ledger(address, create=True)
        if self.past.end.covers(inner.head.position()):
            return inner
        # The ledger was rewound since: what was read after its end is in no state of it, and is to be read later.
        self.ledger.store.delete_folder(self.folder)
        return Ledger(address, create=True)

    def _begin(self, inner: Ledger, part: Topology) -> None:
        """Its first commit, or what it begins with. When this is cut off, it is done again."""
        past = self.past
        if past.base is not None:
            begin_as(self.ledger, inner, self.folder, _of_part(self.ledger, past.base, part, past.begin))
            return
        rosters = {s: roster for s, roster in self.ledger.head.rosters.items() if s in past.end.offsets}
        begin, now = past.begin.to_json(), datetime.now(UTC)
        inner.commit(next_commit(inner.head, "evolve", inner.epoch, now, start=begin, end=begin, rosters=rosters))

    @property
    def records_left(self) -> int:
        position = self._negotiator.position()
        return sum(max(0, end - (position.offset(s, p) or 0)) for s, p, end in self.past.end)

    def follow(self, head: Live) -> None:
        """The ledger has gone on: the end is where it is now."""
        end = {spout: dict(head.position().offsets.get(spout, {})) for spout in self.past.end.offsets}
        self.past = replace(self.past, end=Clock(end))

    def go(self) -> bool:
        """One tick. False when it has arrived."""
        negotiator = self._negotiator
        arrived = negotiator.position().covers(self.past.end) and not negotiator.due()
        if not arrived:
            negotiator.tick(self.past.end)
            done = self.past.records - self.records_left
            names = ", ".join(f"'{step}'" for step in self.past.steps)
            told = f"the past of {names}: {done:,} of {self.past.records:,} records"
            self._tell(Progress("starting", told, commit=self.ledger.head.commit, lag=self.records_left))
        return not arrived

    def replacement(self) -> Replacement:
        """Its state, for the ledger."""
        head, inner = self.ledger.head, self._negotiator.ledger.head
        counted = [t for step in self.past.steps for t, key in inner.steps[step].tables.items() if TICK in key]
        if counted and inner.commit >= head.commit:
            # Rows of such tables are told apart by the number of their commit.
            raise RunError(
                53,
                f"'{counted[0].partition('.')[0]}' cannot take over rows of commit {inner.commit} "
                f"at commit {head.commit}",
                hint="Let the topology run for some more ticks first: hailstorm run APP",
            )
        tables = [table for step in self.past.steps for table in inner.steps[step].tables]
        letters, old_letters = self._letters()
        return Replacement(
            self.past.steps,
            self.folder,
            {table: inner.runs[table] for table in tables if inner.runs.get(table)},
            {step: self._covered(inner.coverage[step]) for step in self.past.steps},
            {table: until for table, until in inner.reached.items() if table in tables},
            letters,
            old_letters,
        )

    def _covered(self, spans: Mapping[str, Mapping[str, Spans]]) -> dict[str, dict[str, Spans]]:
        """What it has read, less what nobody had: neither an archive nor the log."""
        return {
            spout: {p: spans_without(of_p, self._gaps.get(spout, {}).get(int(p), ())) for p, of_p in row.items()}
            for spout, row in spans.items()
        }

    def _letters(self) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
        """Dead letters of steps whose rows reach the replaced steps alone: those of the second run, and those that they
        take the place of.

        A letter of any other step is about steps that stay, too. It must have failed in both runs: a retry gives its
        row to all steps below, and a replaced one that has got it would count it twice.
        """
        inner, mine = self._negotiator.ledger, self._own_steps()
        old, new = _by_step(self.ledger, self.ledger.head), _by_step(inner, inner.head)
        part = {step.name for step in self.topology.only(self.past.steps).steps}
        for step in sorted(part - mine):
            before, after = (_records_of(ledger, of.get(step, [])) for ledger, of in ((self.ledger, old), (inner, new)))
            if {record for record in before if not self._is_nowhere(*record)} != after:
                raise RunError(
                    54,
                    f"dead letters of '{step}' go through by now, and other steps than {self.past.steps} wait for them",
                    at=self.topology.step(step).at,
                    hint="Give them their second chance first: hailstorm errors APP --retry",
                )
        return (
            tuple(file for step, files in new.items() if step in mine for file in files),
            tuple(file.path for step, files in old.items() if step in mine for file in files),
        )

    def _is_nowhere(self, spout: str, partition: int, offset: int) -> bool:
        """Whether neither an archive nor the log has a record. It is in no coverage: a retry passes these steps by."""
        return any(start <= offset < end for start, end in self._gaps.get(spout, {}).get(partition, ()))

    def _own_steps(self) -> set[str]:
        """The steps below which nothing keeps state, or is delivered, but the replaced ones and what is below them."""
        below: set[str] = set(self.past.steps)
        for step in self.topology.steps:
            if below.intersection(step.inputs):
                below.add(step.name)
        mine = set(below)
        for step in reversed(self.topology.steps):
            readers = self.topology.consumers(step.name)
            if readers and not step.keeps_state and all(reader.name in mine for reader in readers):
                mine.add(step.name)
        return mine

    def close(self) -> None:
        """What it has made stays: the commit that takes it over deletes it, and another try goes on from it."""
        self._negotiator.fail()


def _archives(topology: Topology) -> dict[str, Archived]:
    return {spout.name: spout.source for spout in topology.spouts if isinstance(spout.source, Archived)}


def _of_part(ledger: Ledger, base: Live, part: Topology, begin: Clock) -> Live:
    """What was live of a part of the topology. What came to sinks is not its business."""
    names = {step.name for step in part.steps}

    def of_part(values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {name: value for name, value in values.items() if name.partition(".")[0] in names}

    return msgspec.structs.replace(
        base,
        clock=begin.to_json(),
        watermarks=of_part(base.watermarks),
        event_times=of_part(base.event_times),
        reached=of_part(base.reached),
        runs=of_part(base.runs),
        steps=of_part(base.steps),
        fingerprints=of_part(base.fingerprints),
        declared=of_part(base.declared),
        coverage=of_part(base.coverage),
        sinks={},
        outboxes={},
        wholes={},
        retried={},
        dead_letters=tuple(file for files in of_part(_by_step(ledger, base)).values() for file in files),
        rosters=of_part(base.rosters),
        holes=of_part(base.holes),
        skipped=of_part(base.skipped),
    )


def _by_step(ledger: Ledger, live: Live) -> dict[str, list[DataFile]]:
    """The files of open dead letters: each has those of one step."""
    found: dict[str, list[DataFile]] = {}
    for file in live.dead_letters:
        step = read_table(ledger.store, file.path, ["step"])["step"][0].as_py()
        found.setdefault(step, []).append(file)
    return found


def _records_of(ledger: Ledger, files: list[DataFile]) -> set[tuple[str, int, int]]:
    columns = ["spout", "partition", "offset"]
    rows = [row for file in files for row in read_table(ledger.store, file.path, columns).to_pylist()]
    return {(row["spout"], row["partition"], row["offset"]) for row in rows}


def _name(part: Topology, past: Past) -> str:
    """Of the same steps with the same code, from the same beginning: then a try that was cut off can go on."""
    base = 0 if past.base is None else past.base.commit
    files = {spout: sorted(archived.archive.pieces.items()) for spout, archived in _archives(part).items()}
    text = f"{sorted(fingerprint(part).items())} {past.steps} {past.begin.to_json()} {base} {files or ''}"
    return f"{past.steps[0]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
