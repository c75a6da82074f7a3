"""What is live at a commit: the fold of all commits up to it.

A manifest is this value as JSON, so that neither start-up nor `--at` reads all commits.
"""

from __future__ import annotations

import msgspec

from hailstorm.clock.clock import Clock
from hailstorm.ledger.commit import FORMAT, GONE, Commit, DataFile, Holes, Run, StateChange, StepShape, skipped_in


class Live(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    commit: int = 0
    epoch: int = 0
    at: str = ""
    clock: dict[str, dict[str, int]] = {}
    watermark: str | None = None
    event_times: dict[str, dict[str, tuple[int, int]]] = {}
    rows: int = 0
    errors: int = 0
    late: int = 0
    runs: dict[str, tuple[Run, ...]] = {}
    steps: dict[str, StepShape] = {}
    fingerprints: dict[str, str] = {}
    since: dict[str, dict[str, dict[str, int]]] = {}
    outboxes: dict[str, int] = {}  # the last commit that has rows for each sink
    dead_letters: tuple[DataFile, ...] = ()
    retried: dict[str, int] = {}  # sink -> the last commit whose rejected rows have had their second chance
    rosters: dict[str, dict[str, str]] = {}
    holes: Holes = {}  # offsets that were gone before they were read
    skipped: dict[str, dict[str, int]] = {}  # spout -> partition -> offsets left out on overload; commits name them

    def position(self) -> Clock:
        return Clock.from_json(self.clock)

    def after(self, commit: Commit) -> Live:
        """What is live once this commit, the next one, has happened."""
        assert commit.commit == self.commit + 1, (commit.commit, self.commit)
        runs = dict(self.runs)
        for step, change in commit.state.items():
            runs[step] = changed_runs(runs.get(step, ()), change)
        retried = set(commit.retried)
        return Live(
            commit=commit.commit,
            epoch=commit.epoch,
            at=commit.at,
            clock=commit.end,
            watermark=commit.watermark,
            event_times=commit.event_times,
            rows=self.rows + commit.rows,
            errors=self.errors + commit.errors,
            late=self.late + commit.late,
            runs=runs,
            steps=self.steps if commit.steps is None else commit.steps,
            fingerprints=self.fingerprints if commit.fingerprints is None else commit.fingerprints,
            since=self.since if commit.since is None else commit.since,
            outboxes={**self.outboxes, **{sink: commit.commit for sink, files in commit.outbox.items() if files}},
            dead_letters=(*(file for file in self.dead_letters if file.path not in retried), *commit.dead_letters),
            retried={**self.retried, **commit.retried_rejects},
            rosters=self.rosters if commit.rosters is None else commit.rosters,
            holes=_with_holes(self.holes, commit.holes) if commit.holes else self.holes,
            skipped=_added(self.skipped, skipped_in(commit.holes)) if commit.holes else self.skipped,
        )


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
