"""Squashing: several commits that follow each other become one that does the same to what is live.

    live.after(a).after(b) == live.after(squashed([a, b]).commit)

What lies between is forgotten, and with it the files that only those moments needed: a run that was added and removed
in between, or dead letters that were retried. The outbox is that of the last one: it may wait for a sink, and commits
that wait are only ever the last. That one of them changed states otherwise than by reading records is not forgotten: it
is the reason of the whole, because a rerun that began before it would go through it as if it were ticks alone. Values
only; `vacuum.py` decides what is squashed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from hailstorm.ledger.commit import Commit, Covered, DataFile, Discarded, Hole, Holes, Run, StateChange
from hailstorm.ledger.live import covered_after, last_given
from hailstorm.ledger.runs import run_name

_Value = TypeVar("_Value")

# How the fields of a squashed commit come from those of the single ones. All others are those of the last one, or have
# a rule of their own; a test knows each.
SUMMED = ("rows", "ms", "late", "errors")
NEWEST_KNOWN = ("steps", "fingerprints", "declared", "sinks", "rosters", "rewound")  # None: as before


@dataclass(frozen=True)
class Squashed:
    commit: Commit
    dropped: frozenset[str]  # files that no moment needs any more


def squashed(commits: Sequence[Commit]) -> Squashed:
    """One commit in place of these, which follow each other without a gap. No sink waits for any but the last."""
    if len(commits) == 1:
        return Squashed(commits[0], frozenset())
    dropped: set[str] = set()
    reasons = {commit.reason for commit in commits}
    otherwise = [why for commit in commits if (why := commit.changes_otherwise)]
    counted = _since_rewind(commits)
    fields: dict[str, Any] = {name: sum(getattr(commit, name) for commit in counted) for name in SUMMED}
    fields |= {name: _newest(getattr(commit, name) for commit in commits) for name in NEWEST_KNOWN}
    fields |= {
        "first": commits[0].covers_from,
        "reason": _reason(reasons, otherwise),
        "start": counted[0].start,
        "state": _state(commits, dropped),
        "outbox": commits[-1].outbox,
        "outboxes": {sink: number for commit in commits for sink, number in last_given(commit).items()},
        "whole": commits[-1].whole,
        "wholes": {sink: number for commit in commits for sink, number in _wholes(commit).items()},
        "discarded": _discarded(commits),
        **_letters(commits, dropped),
        "retried_rejects": {sink: number for commit in commits for sink, number in commit.retried_rejects.items()},
        "coverage": _coverage(commits),
        "holes": _holes(counted),
        "timings": {},
    }
    return Squashed(msgspec.structs.replace(commits[-1], **fields), frozenset(dropped))


def _reason(reasons: set[str], otherwise: Sequence[str]) -> str:
    if otherwise:
        return "rewind" if "rewind" in otherwise else otherwise[-1]
    return reasons.pop() if len(reasons) == 1 else "tick"


def _since_rewind(commits: Sequence[Commit]) -> Sequence[Commit]:
    """From the last rewind on: what was before it is undone, and in no total."""
    rewinds = [place for place, commit in enumerate(commits) if commit.rewound is not None]
    return commits[rewinds[-1] :] if rewinds else commits


def _coverage(commits: Sequence[Commit]) -> Covered | None:
    """None as long as none of them says more than what it has read. Who says it names the steps, too."""
    found: Covered | None = None
    steps: Mapping[str, str] = {}
    for commit in commits:
        steps = commit.fingerprints or steps
        if found is not None or commit.coverage is not None:
            found = covered_after(found or {}, commit, steps)
    return found


def thinned(commits: Sequence[Commit], keep: Container[int]) -> tuple[list[Commit], set[str]]:
    """Only the commits to keep, each with what the ones before it did, and the files that are not needed any more.

    The last one is always kept: what comes after it builds on it.
    """
    found: list[Commit] = []
    dropped: set[str] = set()
    pending: list[Commit] = []
    for place, commit in enumerate(commits):
        pending.append(commit)
        if commit.commit in keep or place == len(commits) - 1:
            one = squashed(pending)
            found.append(one.commit)
            dropped |= one.dropped
            pending = []
    return found, dropped


def is_waiting(commit: Commit, passed: Mapping[str, int]) -> bool:
    """Whether some sink has not got what this commit has for it."""
    return any(passed.get(sink, 0) < commit.commit for sink in {*commit.outbox, *commit.whole})


def without_delivered(commit: Commit, passed: Mapping[str, int]) -> Commit:
    """The commit without the outbox files of sinks that are past it: those files are gone."""
    waiting = {sink: files for sink, files in commit.outbox.items() if passed.get(sink, 0) < commit.commit}
    if len(waiting) == len(commit.outbox):
        return commit
    return msgspec.structs.replace(commit, outbox=waiting, outboxes=last_given(commit))


def _newest(values: Iterable[_Value | None]) -> _Value | None:
    found = None
    for value in values:
        found = found if value is None else value
    return found


def _state(commits: Iterable[Commit], dropped: set[str]) -> dict[str, StateChange]:
    added: dict[str, dict[str, Run]] = {}
    removed: dict[str, list[str]] = {}
    for commit in commits:
        for step, change in commit.state.items():
            new = added.setdefault(step, {})
            old = removed.setdefault(step, [])
            for run_id in change.removed:
                if new.pop(run_id, None) is None:
                    old.append(run_id)
                else:
                    dropped.add(run_name(step, run_id))
            new.update((run.id, run) for run in change.added)
    return {
        step: StateChange(added=tuple(new.values()), removed=tuple(removed[step]))
        for step, new in added.items()
        if new or removed[step]
    }


def _letters(commits: Iterable[Commit], dropped: set[str]) -> dict[str, Any]:
    new: dict[str, DataFile] = {}
    retried: list[str] = []
    for commit in commits:
        for path in commit.retried:
            if new.pop(path, None) is None:
                retried.append(path)
            else:
                dropped.add(path)
        new.update((file.path, file) for file in commit.dead_letters)
    return {"dead_letters": tuple(new.values()), "retried": tuple(retried)}


def _wholes(commit: Commit) -> dict[str, int]:
    return commit.wholes | dict.fromkeys(commit.whole, commit.commit)


def _discarded(commits: Iterable[Commit]) -> dict[str, Discarded]:
    found: dict[str, Discarded] = {}
    for commit in commits:
        for step, one in commit.discarded.items():
            before = found[step].letters if step in found else 0
            found[step] = Discarded(before + one.letters, one.reason)
    return found


def _holes(commits: Iterable[Commit]) -> Holes:
    """All holes; those that touch, and have one reason, are one."""
    found: Holes = {}
    for commit in commits:
        for spout, row in commit.holes.items():
            for partition, holes in row.items():
                known = found.setdefault(spout, {}).setdefault(partition, [])
                for hole in holes:
                    if known and (known[-1].end, known[-1].reason) == (hole.start, hole.reason):
                        known[-1] = Hole(known[-1].start, hole.end, hole.reason)
                    else:
                        known.append(hole)
    return found
