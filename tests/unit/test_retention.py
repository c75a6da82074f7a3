"""Retention: which commits stay as they grow old; and squashing, which forgets what lies between."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hailstorm.ledger import squashing
from hailstorm.ledger.commit import Commit, DataFile, Hole, Run, Stamp, StateChange, StepShape
from hailstorm.ledger.ledger import next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.restoring import restored
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.squashing import squashed, thinned, without_delivered
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.topology.retention import DEFAULT, read_retention
from hailstorm.topology.settings import Settings

SECOND = 1_000_000


def test_young_commits_all_stay_and_older_ones_by_their_tier() -> None:
    retention = read_retention("10 seconds, 1 minute: 5 seconds, rest: 1 minute")
    commits = [(n, n * SECOND) for n in range(1, 301)]
    kept = retention.kept(commits, 300 * SECOND)
    assert {n for n in kept if n >= 290} == set(range(290, 301))
    assert sorted(n for n in kept if 240 <= n < 290) == [244, 249, 254, 259, 264, 269, 274, 279, 284, 289]
    assert sorted(n for n in kept if n < 240) == [59, 119, 179, 239]


def test_what_stays_later_is_among_what_has_stayed_so_far() -> None:
    chance = random.Random(3)
    times = sorted(chance.randrange(86_400 * 40 * SECOND) for _ in range(3_000))
    commits = list(enumerate(times, 1))
    now = times[-1]
    alive = commits
    for _ in range(40):
        now += 86_400 * SECOND
        kept = DEFAULT.kept(alive, now)
        assert kept == DEFAULT.kept(commits, now), "thinning in between forgets nothing that stays"
        alive = [one for one in commits if one[0] in kept]


@pytest.mark.parametrize("times", [2, 16, 1024])
def test_a_coarser_retention_keeps_some_of_the_same_commits_from_as_long_a_time(times: int) -> None:
    chance = random.Random(times)
    commits = list(enumerate(sorted(chance.randrange(86_400 * 40 * SECOND) for _ in range(5_000)), 1))
    now = commits[-1][1]
    kept, fewer = DEFAULT.kept(commits, now), DEFAULT.coarser(times).kept(commits, now)
    assert fewer < kept
    assert len(fewer) < 3 * len(kept) / times + 10
    assert DEFAULT.coarser(2).coarser(times) == DEFAULT.coarser(2 * times)
    assert min(fewer) < 1_000 or times > 8, "it reaches as far back"
    assert read_retention("all").coarser(times).keeps_all


def test_nothing_of_the_rest_stays_when_it_is_none() -> None:
    assert read_retention("1 second, rest: none").kept([(1, 0), (2, 9 * SECOND)], 10 * SECOND) == {2}
    assert read_retention("all").kept([(1, 0), (2, 1)], 10**15) == {1, 2}


@pytest.mark.parametrize("text", ["all", "10 minutes, 1 hour: 1 second, rest: 1 day", "1 second, rest: none"])
def test_a_retention_reads_as_it_is_written(text: str) -> None:
    assert str(read_retention(text)) == text
    assert Settings().with_options({"retention": text}).retention == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "never",
        "10 minutes",
        "10 minutes, 1 hour: 1 second",
        "1 hour, 10 minutes: 1 second, rest: 1 day",
        "1 hour, rest: 1 day, 2 days: 1 hour",
        "1 hour, 2 hours, rest: 1 day",
        "1 hour, 2 hours: none, rest: 1 day",
        7,
    ],
)
def test_a_retention_that_makes_no_sense_is_refused(text: object) -> None:
    with pytest.raises(ValueError):
        read_retention(text)


# Squashing


def history(length: int, seed: int) -> list[Commit]:
    """Commits that add, merge and remove runs, dead letters, holes and what else a commit can say."""
    chance = random.Random(seed)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    live, commits = Live(), []
    for number in range(1, length + 1):
        now += timedelta(milliseconds=chance.randrange(1, 2_000))
        fields: dict[str, Any] = {"rows": chance.randrange(9), "errors": chance.randrange(2), "late": 1, "ms": 1.5}
        start = live.clock.get("t", {}).get("0", 0)
        fields["end"] = {"t": {"0": start + 5}}
        known = [run for run in live.runs.get("counts", ()) if chance.random() < 0.4]
        new = Run(id=f"run{number}", seq=number, rows=1, bytes=1, first=0, last=9)
        if chance.random() < 0.7:
            fields["state"] = {"counts": StateChange(added=(new,), removed=tuple(run.id for run in known))}
        if chance.random() < 0.3:
            fields["dead_letters"] = (DataFile(path=f"errors/{number}", rows=1, bytes=1),)
        if live.dead_letters and chance.random() < 0.2:
            fields |= {"reason": "retry", "retried": (chance.choice(live.dead_letters).path,)}
        if chance.random() < 0.4:
            fields["outbox"] = {"board": (DataFile(path=f"outbox/board/{number}", rows=1, bytes=1),)}
        if chance.random() < 0.2:
            reason = chance.choice(["gone", "dropped"])
            fields["holes"] = {"t": {"0": [Hole(start, start + 2, reason)]}}
        if chance.random() < 0.1:
            shape = StepShape(kind="fold", key=("k",), values=("n",), fingerprint=str(number))
            fields |= {"steps": {"counts": shape}, "fingerprints": {"counts": str(number)}}
            fields |= {
                "end": live.clock,
                "coverage": {**live.coverage, "counts": live.coverage.get("counts", {"t": {}})},
            }
            fields.pop("holes", None)
        if chance.random() < 0.1:
            fields["retried_rejects"] = {"board": number - 1}
        if commits and chance.random() < 0.06:
            then = live_after(commits[: chance.randrange(number)])
            fields = {"reason": "rewind", **restored(Links(), live, then, Stamp(number, 1), now)}
        commits.append(next_commit(live, fields.pop("reason", "tick"), 1, now, **fields))
        live = live.after(commits[-1])
    return commits


class Links(LocalStore):
    """A store in which files are names only."""

    def __init__(self) -> None: ...

    def link(self, name: str, other: str, durable: bool = False) -> None: ...


def live_after(commits: list[Commit]) -> Live:
    live = Live()
    for commit in commits:
        live = live.after(commit)
    return live


@pytest.mark.parametrize("seed", range(30))
def test_after_a_rewind_what_is_live_is_what_was_live_then(seed: int) -> None:
    commits = history(60, seed)
    for rewind in [commit for commit in commits if commit.rewound is not None]:
        assert rewind.rewound is not None
        found, then = live_after(commits[: rewind.commit]), live_after(commits[: rewind.rewound.to])
        same = ("clock", "watermark", "watermarks", "reached", "rows", "errors", "late", "coverage", "holes", "skipped")
        assert [getattr(found, name) for name in same] == [getattr(then, name) for name in same]
        rows = [[(run.seq, run.rows) for run in live.runs.get("counts", ())] for live in (found, then)]
        assert rows[0] == rows[1]
        assert len(found.dead_letters) == len(then.dead_letters)


@pytest.mark.parametrize("seed", range(30))
def test_squashed_commits_make_live_what_the_single_ones_made_live(seed: int) -> None:
    commits = history(60, seed)
    chance = random.Random(seed)
    keep = {commit.commit for commit in commits if chance.random() < 0.2}
    kept, dropped = thinned(commits, keep)
    assert {commit.commit for commit in kept} == keep | {60}
    for commit in kept:
        short = [one for one in kept if one.commit <= commit.commit]
        assert live_after(short) == live_after(commits[: commit.commit])
    needed = {
        run_name("counts", run.id) for c in kept for run in live_after(commits[: c.commit]).runs.get("counts", ())
    }
    needed |= {file.path for c in kept for file in live_after(commits[: c.commit]).dead_letters}
    assert not dropped & needed
    all_ = {run_name("counts", run.id) for c in commits for change in c.state.values() for run in change.added}
    all_ |= {file.path for commit in commits for file in commit.dead_letters}
    assert all_ - dropped == needed, "what no kept moment needs goes"


@pytest.mark.parametrize("seed", range(10))
def test_squashing_twice_is_squashing_once(seed: int) -> None:
    commits = history(40, seed)
    once, dropped = thinned(commits, {10, 30})
    pieces, first = thinned(commits, set(range(5, 41, 5)))
    twice, second = thinned(pieces, {10, 30})
    assert once == twice
    assert dropped == first | second


@pytest.mark.parametrize("seed", range(10))
def test_squashing_does_not_forget_what_no_rerun_can_go_through(seed: int) -> None:
    commits = history(60, seed)
    kept, _ = thinned(commits, set(range(0, 61, 7)))
    for one in kept:
        among = [commit for commit in commits if one.covers_from <= commit.commit <= one.commit]
        assert bool(one.changes_otherwise) == any(commit.changes_otherwise for commit in among)


def test_a_state_that_came_with_new_code_counts_as_a_backfill() -> None:
    run = Run(id="run", seq=1, rows=1, bytes=1, first=0, last=9)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    plain = next_commit(Live(), "evolve", 1, now, fingerprints={"counts": "1"})
    remade = next_commit(Live(commit=1), "evolve", 1, now, state={"counts": StateChange(added=(run,))})
    named = next_commit(Live(commit=2), "rename", 1, now, state={"totals": StateChange(added=(run,))})
    assert [one.changes_otherwise for one in (plain, remade, named)] == ["", "backfill", ""]
    assert squashed([plain, remade, named]).commit.changes_otherwise == "backfill"
    assert not squashed([plain, msgspec.structs.replace(named, commit=2)]).commit.changes_otherwise


def test_touching_holes_become_one() -> None:
    commits = history(1, 1)
    holes = [{"t": {"0": [Hole(0, 2, "dropped")]}}, {"t": {"0": [Hole(2, 5, "dropped"), Hole(5, 6, "gone")]}}]
    live, made = Live(), []
    for one in holes:
        made.append(next_commit(live, "tick", 1, datetime(2026, 1, 1, tzinfo=UTC), holes=one))
        live = live.after(made[-1])
    assert squashed(made).commit.holes == {"t": {"0": [Hole(0, 5, "dropped"), Hole(5, 6, "gone")]}}
    assert squashed(commits).commit == commits[0]


def test_delivered_outboxes_are_forgotten_and_their_last_commit_is_not() -> None:
    commits = [commit for commit in history(60, 1) if commit.outbox]
    commit = commits[0]
    assert without_delivered(commit, {"board": commit.commit - 1}) == commit
    lighter = without_delivered(commit, {"board": commit.commit})
    assert (lighter.outbox, lighter.outboxes) == ({}, {"board": commit.commit})


OF_THE_LAST = (
    "format",
    "commit",
    "epoch",
    "nonce",
    "at",
    "now",
    "end",
    "watermark",
    "watermarks",
    "event_times",
    "reached",
    "recent",
)
OWN_RULE = (
    "first",
    "reason",
    "start",
    "state",
    "outbox",
    "outboxes",
    "whole",
    "wholes",
    "dead_letters",
    "retried",
    "discarded",
    "retried_rejects",
    "coverage",
    "holes",
    "timings",
)


def test_every_field_of_a_commit_has_a_rule_for_squashing() -> None:
    rules = (*squashing.SUMMED, *squashing.NEWEST_KNOWN, *OF_THE_LAST, *OWN_RULE)
    assert sorted(rules) == sorted(Commit.__struct_fields__)
