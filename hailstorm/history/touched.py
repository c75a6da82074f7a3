"""Which keys may differ between two moments: what `diff` and a key's life look at, instead of at the whole state.

A key that differs has its row of one of the two moments in a run that is not live at the other. So the runs that are
live at one of them only would do; but a merged run holds the whole state again, although nothing in it has changed.
Between neighbouring commits their own words are better: a tick's new rows are in runs that it wrote itself.

    a run is *fresh* when its rows are of the commit that it was written for; all others are merged ones
    a commit that stands for itself alone, and is a tick or a compaction, changes only keys in its fresh runs
    of any other (squashed, rewound, evolved) every run that it adds or removes counts
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from hailstorm.ledger.commit import Commit, Run, StateChange, stamp_of
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State

_PLAIN = frozenset({"tick", "compact", "retry", "resend", "discard"})
_ROWS_OF_A_COMMIT = 100  # so many are looked up in the time that a commit is read
_MANY_COMMITS = 20_000


def touched_runs(one: State, other: State) -> list[tuple[State, Run]]:
    """Runs that hold every key whose row differs between two states, and few others, each with the state that has it.

    A state that was run again (state_at.py) is in a ledger of its own, which shares the runs of its base by their ids.
    A step that was renamed in between has links to the same files, of which all but the ids is the same.
    """
    renamed = one.step != other.step
    here, there = (
        {_file(run) if renamed else run.id: run for run in state.live.runs.get(state.step, ())}
        for state in (one, other)
    )
    apart = [
        *((one, run) for file, run in here.items() if file not in there),
        *((other, run) for file, run in there.items() if file not in here),
    ]
    rows = sum(run.rows for _, run in apart)
    between = abs(one.live.commit - other.live.commit)
    if rows <= between * _ROWS_OF_A_COMMIT or between > _MANY_COMMITS or renamed or one.ledger is not other.ledger:
        return apart
    told = _told(one.ledger, one.step, *sorted((one.live, other.live), key=lambda live: live.commit))
    return apart if told is None or _rows(told) >= rows else [(one, run) for run in told]


def _told(ledger: Ledger, step: str, earlier: Live, later: Live) -> list[Run] | None:
    """What the commits between say; None when not all of them are there."""
    found: dict[str, Run] = {}
    live = earlier
    for commit in ledger.commits(after=earlier.commit):
        if commit.commit > later.commit:
            break
        if commit.covers_from != live.commit + 1:
            return None
        before = {run.id: run for run in live.runs.get(step, ())}
        found |= {run.id: run for run in changing(commit, step, before.values())}
        live = live.after(commit)
    # A run that has been merged since, and is in no kept moment, may be gone: its rows are in the merged one.
    kept = all(ledger.store.exists(f"state/{step}/{id_}.parquet") for id_ in found)
    return list(found.values()) if live.commit == later.commit and kept else None


def changing(commit: Commit, step: str, before: Iterable[Run]) -> Iterator[Run]:
    """The runs that hold the keys which this commit changed. `before` are the step's live runs before it."""
    change = commit.state.get(step, StateChange())
    plain = is_plain(commit)
    yield from (run for run in change.added if is_fresh(run) or not plain)
    if not plain:
        removed = set(change.removed)
        yield from (run for run in before if run.id in removed)


def is_plain(commit: Commit) -> bool:
    """Whether it changes nothing but keys in its fresh runs."""
    return commit.covers_from == commit.commit and commit.reason in _PLAIN


def is_fresh(run: Run) -> bool:
    """Whether it holds the new rows of one commit; a merged run was written for a later commit than its rows are of."""
    stamp = stamp_of(run.id)
    return stamp is not None and stamp.commit == run.seq


def _file(run: Run) -> Run:
    """What a run is, whatever it is called. Of one without checksums only its name says that."""
    return run if run.sums is None else msgspec.structs.replace(run, id="")


def _rows(runs: Iterable[Run]) -> int:
    return sum(run.rows for run in runs)
