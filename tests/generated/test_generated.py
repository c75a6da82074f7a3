"""Random topologies over random rows are what a Spark batch query over all input says, whatever happens on the way.

`python -m tests.generated` runs more of them; README of it all is cases.py (what is drawn) and steps.py (how a kind of
step is added).
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.generated import edits, every_kind, looking_back, prefixes
from tests.generated.campaign import campaign
from tests.generated.cases import Case, draw_case, effort

# A quarter of all cases take as long as all others: of each hundred seeds the first ten that are of the smaller half,
# and ten of any size. The long form, and an hour of the generator, have all.
FIRST, CASES, AT_ONCE, SMALL = 9_100_000, 200, 10, 30.0
# Seeds of small cases of all kinds of steps (every_kind.py).
REWOUND = (212, 221, 642, 658)
MADE_AGAIN = (
    *(("recompute", seed) for seed in (173, 229, 1073)),
    *(("backfill", seed) for seed in (95, 386, 492)),
    *(("beside", seed) for seed in (91, 429, 704)),
)
TRACED = (429, 614, 841, 1252)
# Windows, sessions, joins of streams and of tables, processes, tops; one with an edit.
AT_EVERY_COMMIT = (1007, 1009, 1013, 1018, 1022)


@pytest.mark.parametrize("hundred", range(1, CASES // AT_ONCE))
def test_drawn_topologies_equal_a_batch_over_all_input(spark: SparkSession, tmp_path: Path, hundred: int) -> None:
    first = FIRST + 100 * hundred
    small = [seed for seed in range(first, first + 100) if effort(draw_case(seed)) <= SMALL][:AT_ONCE]
    done = campaign(spark, small, tmp_path)
    assert done.failures == {} and done.cases == AT_ONCE


def test_drawn_topologies_of_any_size_equal_a_batch_over_all_input(spark: SparkSession, tmp_path: Path) -> None:
    assert campaign(spark, range(FIRST, FIRST + AT_ONCE), tmp_path).failures == {}


@pytest.mark.soak
def test_drawn_topologies_equal_a_batch_over_all_input_for_hours(spark: SparkSession, tmp_path: Path) -> None:
    seconds = float(os.environ["HAILSTORM_SOAK"])
    assert campaign(spark, range(1_000_000, 2_000_000), tmp_path, seconds).failures == {}


@pytest.mark.parametrize("first", [31, 33])
def test_drawn_topologies_stand_up_to_an_audit_and_a_replay(spark: SparkSession, first: int) -> None:
    for case in itertools.islice(looking_back.usable(first), 2):
        assert looking_back.differences(case, spark) == [], f"seed {case.seed}"


@pytest.mark.parametrize("first", [41, 43])
def test_every_moment_of_a_drawn_topology_is_there_and_can_be_gone_back_to(spark: SparkSession, first: int) -> None:
    for case in itertools.islice(looking_back.usable(first), 4):
        assert looking_back.lost_moments(case, spark, random.Random(first)) == [], f"seed {case.seed}"


@pytest.mark.parametrize("offline", [False, True], ids=["recompute", "backfill"])
def test_an_edit_of_a_drawn_topology_gives_what_a_fresh_run_gives(spark: SparkSession, offline: bool) -> None:
    for case in itertools.islice(edits.alike(51, versions=2), 4):
        assert edits.edited(case, spark, offline) == [], f"seed {case.seed}"


def test_a_rewind_of_a_drawn_topology_leaves_no_trace_in_sinks(spark: SparkSession) -> None:
    for case in itertools.islice(edits.alike(61, versions=1), 4):
        assert edits.gone_back(case, spark, _middle(case)) == [], f"seed {case.seed}"


def test_the_records_of_a_drawn_topology_account_for_every_key_of_its_folds(spark: SparkSession) -> None:
    for case in itertools.islice(edits.short(71), 3):
        assert edits.untraced(case, spark) == [], f"seed {case.seed}"


# Of all kinds of steps: small cases, of which the long form below draws more, until it has had every kind, and on.


@pytest.mark.parametrize("seed", REWOUND)
def test_a_rewind_of_any_kind_of_step_leaves_no_trace(spark: SparkSession, seed: int) -> None:
    case = next(every_kind.plain_cases(seed))
    assert every_kind.rewound(case, spark, _middle(case)) == [], f"seed {case.seed}"


@pytest.mark.parametrize(("how", "seed"), MADE_AGAIN)
def test_the_past_that_is_made_for_any_kind_of_step_is_that_of_a_fresh_run(
    spark: SparkSession, how: every_kind.How, seed: int
) -> None:
    case = next(every_kind.edited_cases(seed))
    assert every_kind.made_again(case, spark, how) == [], f"seed {case.seed}"


@pytest.mark.parametrize("seed", TRACED)
def test_the_records_of_any_kinds_of_steps_account_for_all_that_changes(spark: SparkSession, seed: int) -> None:
    case = next(every_kind.short_cases(seed))
    assert every_kind.untraced(case, spark) == [], f"seed {case.seed}"


@pytest.mark.parametrize("seed", AT_EVERY_COMMIT)
def test_the_state_at_every_commit_is_that_of_the_log_up_to_there_for_delta_readers_too(
    spark: SparkSession, seed: int
) -> None:
    assert prefixes.unlike_prefixes(next(prefixes.drawn(seed)), spark) == [], f"seed {seed}"


@pytest.mark.soak
def test_the_state_at_every_commit_is_that_of_the_log_up_to_there_for_hours(spark: SparkSession) -> None:
    cases, until = prefixes.drawn(5_000_000), time.monotonic() + float(os.environ["HAILSTORM_SOAK"])
    while time.monotonic() < until:
        case = next(cases)
        assert prefixes.unlike_prefixes(case, spark) == [], f"seed {case.seed}"


@pytest.mark.soak
def test_rewinds_edits_and_traces_of_all_kinds_of_steps_for_hours(spark: SparkSession) -> None:
    first, until = 4_000_000, time.monotonic() + float(os.environ["HAILSTORM_SOAK"])
    of_all = every_kind.with_every_kind
    every = itertools.chain(of_all(every_kind.plain_cases(81), of=400), every_kind.plain_cases(first))
    changed = itertools.chain(of_all(every_kind.edited_cases(91), of=300, edited=True), every_kind.edited_cases(first))
    few = itertools.chain(of_all(every_kind.short_cases(101), of=300), every_kind.short_cases(first))
    ways: Iterator[every_kind.How] = itertools.cycle(("recompute", "backfill", "beside"))
    while time.monotonic() < until:
        case = next(every)
        assert every_kind.rewound(case, spark, _middle(case)) == [], f"seed {case.seed}"
        case = next(changed)
        assert every_kind.made_again(case, spark, next(ways)) == [], f"seed {case.seed}"
        case = next(few)
        assert every_kind.untraced(case, spark) == [], f"seed {case.seed}"


@pytest.mark.soak
def test_edits_rewinds_and_traces_of_drawn_topologies_for_hours(spark: SparkSession) -> None:
    first, until = 3_000_000, time.monotonic() + float(os.environ["HAILSTORM_SOAK"])
    changed, others, few = edits.alike(first, versions=2), edits.alike(first, versions=1), edits.short(first)
    while time.monotonic() < until:
        case = next(changed)
        assert edits.edited(case, spark, offline=case.seed % 2 == 0) == [], f"seed {case.seed}"
        case = next(others)
        assert edits.gone_back(case, spark, _middle(case)) == [], f"seed {case.seed}"
        case = next(few)
        assert edits.untraced(case, spark) == [], f"seed {case.seed}"


def _middle(case: Case) -> int:
    return random.Random(case.seed).randint(1, len(case.events))
