"""Rate: a record depends on its offset and on nothing else."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from hailstorm.errors import LogError, TopologyError
from hailstorm.spouts import Rate

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def read(rate: Rate, partition: int, start: int, end: int) -> list[dict[str, Any]]:
    return list(pa.Table.from_batches(rate.read(partition, start, end)).to_pylist())


def test_values_count_over_all_partitions_and_times_follow_the_rate() -> None:
    rate = Rate(10, partitions=2, start=NOON, limit=100)
    assert read(rate, 0, 0, 2) + read(rate, 1, 1, 2) == [
        {"offset": 0, "time": NOON, "value": 0, "at": NOON},
        {"offset": 1, "time": NOON + timedelta(seconds=0.2), "value": 2, "at": NOON + timedelta(seconds=0.2)},
        {"offset": 1, "time": NOON + timedelta(seconds=0.3), "value": 3, "at": NOON + timedelta(seconds=0.3)},
    ]


def test_the_log_grows_with_time_up_to_its_limit() -> None:
    rate = Rate(1000, partitions=2, start=datetime.now(UTC) - timedelta(seconds=10))
    first = rate.latest()
    assert 4990 <= first[0] <= 5600 and first[0] == first[1]
    time.sleep(0.02)
    assert rate.latest()[0] >= first[0] + 9
    assert Rate(1000, start=datetime.now(UTC) + timedelta(hours=1)).latest() == {0: 0}
    assert Rate(1000, start=NOON, limit=7).latest() == {0: 7}


def test_with_a_limit_and_no_start_all_records_are_there() -> None:
    assert Rate(1, limit=1_000_000).latest() == {0: 1_000_000}
    with pytest.raises(LogError, match="ends at 10"):
        list(Rate(1, limit=10).read(0, 5, 11))


def test_an_endless_rate_needs_a_start_that_is_written_down() -> None:
    with pytest.raises(TopologyError, match=r'hs.Rate\(1000, start="20..-'):
        Rate(1000)


def test_a_restart_finds_the_same_records() -> None:
    one, other = (Rate(7.5, start="2024-05-01T12:00:00") for _ in range(2))
    assert read(one, 0, 1000, 1010) == read(other, 0, 1000, 1010)
    assert one.describe() == other.describe() == {**one.describe(), "start": "2024-05-01T12:00:00+00:00"}


def words(offsets: npt.NDArray[np.int64], partition: int) -> dict[str, Any]:
    return {"word": np.array(["rain", "snow"])[offsets % 2], "n": offsets * 10 + partition}


def test_rows_are_computed_from_offsets() -> None:
    rate = Rate(1, partitions=3, rows=words, columns="word STRING, n INT", limit=10)
    assert rate.columns == "word STRING, n INT"
    batch = next(rate.read(2, 3, 5))
    assert batch.schema.field("n").type == pa.int32()
    assert batch.drop_columns(["time"]).to_pylist() == [
        {"offset": 3, "word": "snow", "n": 32},
        {"offset": 4, "word": "rain", "n": 42},
    ]


@pytest.mark.parametrize(
    ("columns", "says"), [("word STRING, m INT", "lack the column 'm'"), ("word STRING, short INT", "has 1 rows for 2")]
)
def test_rows_that_do_not_match_their_columns_are_an_error(columns: str, says: str) -> None:
    rate = Rate(1, rows=lambda offsets, _: {**words(offsets, 0), "short": [1]}, columns=columns, limit=10)
    with pytest.raises(LogError, match=says):
        list(rate.read(0, 0, 2))


@pytest.mark.parametrize(
    "wrong", [{"per_second": 0}, {"partitions": 0}, {"limit": -1}, {"columns": "a INT"}, {"start": "noon"}]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TopologyError):
        Rate(**{"per_second": 1, "limit": 1, **wrong})
