"""What is live at a commit: the fold of all commits up to it.

A manifest is this value as JSON, so that neither start-up nor `--at` reads all commits.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from hailstorm.clock.clock import Clock
from hailstorm.ledger.commit import (
    FORMAT,
    GONE,
    Commit,
    Covered,
    DataFile,
    Hole,
    Holes,
    Run,
    SinkShape,
    Spans,
    StateChange,
    StepShape,
    skipped_in,
)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    commit: int = 0
    epoch: int = 0
    at: str = ""
    clock: dict[str, dict[str, int]] = {}
    watermark: str | None = None
    watermarks: dict[str, tuple[int | None, int | None]] = {}
    event_times: dict[str, dict[str, tuple[int, int]]] = {}
    reached: dict[str, int] = {}
    rows: int = 0
    errors: int = 0
    late: int = 0
    recent: tuple[tuple[int, int], ...] = ()  # rows, and bad ones among them, of the last ticks
    runs: dict[str, tuple[Run, ...]] = {}
    steps: dict[str, StepShape] = {}
    fingerprints: dict[str, str] = {}
    declared: dict[str, dict[str, str]] = {}  # step -> its parts, for people
    coverage: Covered = {}
    sinks: dict[str, SinkShape] = {}  # of the topology as it is now
    outboxes: dict[str, int] = {}  # the last commit that has rows, or the whole table, for each sink
    wholes: dict[str, int] = {}  # the last commit that has the whole table for each sink that got it
    dead_letters: tuple[DataFile, ...] = ()
    retried: dict[str, int] = {}  # sink -> the last commit whose rejected rows have had their second chance
    rosters: dict[str, dict[str, str]] = {}
    holes: Holes = {}  # offsets that were gone before they were read
    skipped: dict[str, dict[str, int]] = {}  # spout -> partition -> offsets left out on overload; commits name them
    rewound: int = 0  # the last commit that went back: state has not only grown since

    def position(self) -> Clock:
        return Clock.from_json(self.clock)

    def called_then(self, commit: int) -> dict[str, str]:
        """The steps and sinks that had another name at an earlier commit: by their name now, the one of then."""
        formerly = {
            **{name: shape.formerly for name, shape in self.sinks.items()},
            **{name: shape.formerly for name, shape in self.steps.items()},
        }
        then = {
            name: next((former.name for former in formers if commit <= former.until), name)
            for name, formers in formerly.items()
        }
        return {name: old for name, old in then.items() if old != name}

    def state_keys(self) -> dict[str, tuple[str, ...]]:
        """The columns that make a row one row, of every table of state."""
        return {table: key for shape in self.steps.values() for table, key in shape.tables.items()}

    def past(self, table: str) -> int | None:
        """Up to where the rows of a table are over, as compaction takes it: an agenda's by their time, panes by their
        number. None: none are."""
        step = table.partition(".")[0]
        panes = self.steps[step].panes if step in self.steps else None
        if panes is None or table != f"{step}.panes":
            return self.reached.get(table)
        from hailstorm.clock.panes import Panes  # with what a command that reads one key has no time for
        from hailstorm.clock.windows import Windows

        reached = self.reached.get(f"{step}.agenda")
        windows = Windows(panes.size, panes.every, panes.offset, panes.zone)
        return None if reached is None else Panes(windows).over(reached)

    def after(self, commit: Commit) -> Live:
        """What is live once this commit, the next one, has happened."""
        assert commit.covers_from == self.commit + 1, (commit.covers_from, self.commit)
        runs = dict(self.runs)
        for step, change in commit.state.items():
            runs[step] = changed_runs(runs.get(step, ()), change)
        retried = set(commit.retried)
        # What a rewind has undone is in no total.
        known = self if commit.rewound is None else commit.rewound
        return Live(
            commit=commit.commit,
            epoch=commit.epoch,
            at=commit.at,
            clock=commit.end,
            watermark=commit.watermark,
            watermarks=commit.watermarks,
            event_times=commit.event_times,
            reached=commit.reached,
            rows=known.rows + commit.rows,
            errors=known.errors + commit.errors,
            late=known.late + commit.late,
            recent=commit.recent,
            runs=runs,
            steps=self.steps if commit.steps is None else commit.steps,
            fingerprints=self.fingerprints if commit.fingerprints is None else commit.fingerprints,
            declared=self.declared if commit.declared is None else commit.declared,
            coverage=covered_after(self.coverage, commit, self.fingerprints),
            sinks=self.sinks if commit.sinks is None else commit.sinks,
            outboxes={**self.outboxes, **last_given(commit)},
            wholes={**self.wholes, **commit.wholes, **dict.fromkeys(commit.whole, commit.commit)},
            dead_letters=(*(file for file in self.dead_letters if file.path not in retried), *commit.dead_letters),
            retried={**self.retried, **commit.retried_rejects},
            rosters=self.rosters if commit.rosters is None else commit.rosters,
            holes=_with_holes(known.holes, commit.holes) if commit.holes else known.holes,
            skipped=_added(known.skipped, skipped_in(commit.holes)) if commit.holes else known.skipped,
            rewound=self.rewound if commit.rewound is None else commit.rewound.commit,
        )


def covered_after(known: Covered, commit: Commit, steps: Container[str]) -> Covered:
    """What the states of steps contain after this commit. `steps` are those of the topology: others stand still.

    What was skipped on overload counts as given: that it is left out is final, and a span for every skip would make the
    list grow with every tick. The commits name it.
    """
    if commit.coverage is not None:
        return commit.coverage
    if commit.start == commit.end:
        return known
    read: dict[str, dict[str, Spans]] = {}
    for spout, row in commit.end.items():
        for partition, end in row.items():
            start = commit.start.get(spout, {}).get(partition, end)
            holes = commit.holes.get(spout, {}).get(partition, [])
            if spans := _given(start, end, holes):
                read.setdefault(spout, {})[partition] = spans
    found: Covered = {}
    for step, spouts in known.items():
        given = read if step in steps else {}
        found[step] = {spout: _with_spans(row, given.get(spout, {})) for spout, row in spouts.items()}
    return found


def _given(start: int, end: int, holes: Sequence[Hole]) -> Spans:
    """[start, end) with what overload skipped before it, and without what was gone."""
    begin = min([start, *(hole.start for hole in holes if hole.reason != GONE)])
    spans: list[tuple[int, int]] = []
    for hole in sorted((hole for hole in holes if hole.reason == GONE), key=lambda hole: hole.start):
        spans.append((begin, min(hole.start, end)))
        begin = max(begin, hole.end)
    return tuple(span for span in (*spans, (begin, end)) if span[0] < span[1])


def _with_spans(known: dict[str, Spans], read: dict[str, Spans]) -> dict[str, Spans]:
    whole = dict(known)
    for partition, spans in read.items():
        joined = list(whole.get(partition, ()))
        for start, end in spans:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        whole[partition] = tuple(joined)
    return whole


def last_given(commit: Commit) -> dict[str, int]:
    """By sink: the last commit, of those that this one stands for, that has something for it."""
    here = {sink for sink, files in commit.outbox.items() if files}.union(commit.whole)
    return commit.outboxes | dict.fromkeys(here, commit.commit)


def changed_runs(runs: tuple[Run, ...], change: StateChange) -> tuple[Run, ...]:
    """Oldest first. A merged run takes the place of the newest run that went into it: that is its seq."""
    removed = set(change.removed)
    return tuple(sorted((*(run for run in runs if run.id not in removed), *change.added), key=lambda run: run.seq))


def _with_holes(known: Holes, new: Holes) -> Holes:
    """With what is gone for good. What overload skips would make the list grow with every tick: that is counted."""
    whole = {spout: dict(row) for spout, row in known.items()}
    for spout, row in new.items():
        for partition, ranges in row.items():
            if gone := [hole for hole in ranges if hole.reason == GONE]:
                of_spout = whole.setdefault(spout, {})
                of_spout[partition] = [*of_spout.get(partition, []), *gone]
    return whole


def _added(known: dict[str, dict[str, int]], new: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    whole = {spout: dict(row) for spout, row in known.items()}
    for spout, row in new.items():
        of_spout = whole.setdefault(spout, {})
        for partition, count in row.items():
            of_spout[partition] = of_spout.get(partition, 0) + count
    return whole
