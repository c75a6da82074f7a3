"""What the benches compute: statistics, the oracle of the counts, and the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.bench import Check
from bench.broker import counts_in, records, totals
from bench.contest import Ratio, Series, fastest, ratio
from bench.peers.peer import Tick
from bench.picture import doublings, picture
from bench.suite import BENCHES
from bench.turn import latencies_ms, percentiles
from bench.work import Work

WORK = Work("count", rows=10, keys=10)


def series(label: str, *rounds: float) -> Series:
    return Series(label, tuple((Tick(ms, 100),) for ms in rounds))


def check(value: float, limit: float, at_most: bool = True) -> dict[str, Any]:
    kept = Check("of a tick", Ratio(value, value, value), limit, at_most).kept
    measured = {"value": value, "low": value, "high": value}
    return {"text": "of a tick", "measured": measured, "limit": limit, "at_most": at_most, "kept": kept}


def test_a_ratio_is_taken_within_rounds() -> None:
    assert ratio(series("a", 1, 20, 3), series("b", 2, 40, 3)) == Ratio(0.5, 0.5, 0.75)


def test_a_peer_is_compared_at_its_best() -> None:
    entrants = {one.label: one for one in (series("us", 1), series("them", 9), series("them, tuned", 5))}
    assert fastest(entrants, "them").label == "them, tuned"


def test_one_tick_is_its_own_quartiles() -> None:
    assert series("a", 7).quartiles_ms == (7, 7)


def test_ticks_without_rows_have_no_rate() -> None:
    assert Series("a", ((Tick(5, 0),),)).rows_per_second == 0


def test_latencies_are_of_what_was_written_in_the_time_that_counts() -> None:
    arrivals = [(1_000, 2_000), (5_000, 9_000), (6_000, 13_500), (9_000, 10_000)]
    assert latencies_ms(arrivals, 5_000, 9_000) == [4.0, 7.5]


def test_percentiles_are_the_median_and_the_99th() -> None:
    assert percentiles(range(101)) == (50, 99)


def test_records_of_a_round_have_every_key_once_and_the_oracle_counts_them() -> None:
    found = [record.as_py() for record in records(WORK, 0, 10)]
    assert found[1] == b'{"k": 1, "v": 1}'
    assert len(set(found)) == 10
    assert totals(WORK, 10).tolist() == [1] * 10
    assert totals(WORK, 11).tolist() == [2, *[1] * 9]


def test_the_last_count_of_a_key_is_what_counts() -> None:
    written = [b'{"k":1,"n":1}', b'{"k":2,"n":5}', b'{"k":1,"n":2}']
    assert counts_in(written, 4).tolist() == [0, 2, 5, 0]
    assert not np.array_equal(counts_in(written[:2], 4), counts_in(written, 4))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (check(0.4, 0.8), 1),
        (check(0.8, 0.4), -1),
        (check(4, 2, at_most=False), 1),
        (check(1, 2, at_most=False), -1),
        (check(100, 1, at_most=False), 4),
        (check(-0.1, 0.1), 4),
    ],
)
def test_a_bar_is_as_long_as_the_result_is_better_than_required(measured: dict[str, Any], expected: float) -> None:
    assert doublings(measured["measured"]["value"], measured) == expected


def test_the_picture_has_requirement_and_result_of_every_check() -> None:
    machine = {"cores": 2, "cpu": "A & B"}
    result = {"title": "ticks", "checks": [check(0.4, 0.8), check(3, 5, at_most=False)], "machine": machine}
    drawn = picture([{**result, "at": "2026-11-16T07:01:23+00:00"}])
    for text in ("ticks", "0.40", "at most 0.8", "3.00", "at least 5", "A &amp; B", "2026-11-16"):
        assert text in drawn


def test_every_bench_has_a_name_of_its_own() -> None:
    assert len({bench.name for bench in BENCHES}) == len(BENCHES)
