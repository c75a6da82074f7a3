"""The stages of distinct and ordered, tick by tick against plain Python: times at random, late rows, expiry."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from hailstorm.clock.watermark import END
from hailstorm.columns import HIDDEN
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.distinct import KeepDistinct
from hailstorm.engine.stages.due import AlsoDue, ReadDue
from hailstorm.engine.stages.members import HashGroups
from hailstorm.engine.stages.ordered import ReleaseInOrder
from hailstorm.engine.stages.waiting import DUE
from tests.length import seeds
from tests.unit.stage_ticks import Row, Ticks, table_of

pytestmark = pytest.mark.slow

COLUMNS = pa.schema([("k", pa.string()), ("x", pa.int64())])
WITHIN = 10


def drawn(chance: random.Random, number: int, offset: int) -> list[Row]:
    """Rows around a time that goes on, some of them far behind it."""
    rows = []
    for place in range(chance.choice([0, 0, 1, 4, 40])):
        time = number * 5 + chance.randrange(-25, 12)
        row = {"k": chance.choice("abcdef"), "x": offset + place, "_time": time, "_offset": offset + place}
        rows.append({**row, "_partition": chance.randrange(2)})
    chance.shuffle(rows)
    return rows


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_time"], row["_partition"], row["_offset"]))


def next_watermark(chance: random.Random, watermark: int | None, number: int) -> int | None:
    if chance.random() < 0.3:
        return watermark
    return max(number * 5 + chance.randrange(-12, 3), -1000 if watermark is None else watermark)


@pytest.mark.parametrize("seed", seeds(8, 30))
def test_distinct_equals_plain_python(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stage = KeepDistinct("d", ("k",), WITHIN, ("k", "x"), Outlet("d", (), True), Outlet("d.late", (), True))
    due = ReadDue((stage.agenda,), pa.schema([*COLUMNS, *HIDDEN, ("_hash", pa.int64()), (DUE, pa.bool_())]))
    ticks = Ticks(tmp_path, (HashGroups(("k",)), AlsoDue(due), stage), (stage.state, stage.agenda), ("d", "d.late"))
    seen: dict[str, int] = {}
    watermark: int | None = None
    offset = 0
    for number in range(40):
        rows = drawn(chance, number, offset)
        offset += len(rows)
        got = ticks.tick(table_of(rows, COLUMNS) if rows else None, watermark)
        if watermark is not None:
            seen = {key: time for key, time in seen.items() if time + WITHIN > watermark}
        known, firsts, late = dict(seen), [], []
        for row in in_order(rows):
            if watermark is not None and row["_time"] < watermark and row["k"] not in known:
                late.append(row["x"])
            elif row["k"] not in seen or row["_time"] >= seen[row["k"]] + WITHIN:
                firsts.append(row["x"])
                seen[row["k"]] = row["_time"]
        assert sorted(row["x"] for row in got["d"]) == sorted(firsts), f"seed {seed}, tick {number}"
        assert sorted(row["x"] for row in got["d.late"]) == sorted(late), f"seed {seed}, tick {number}"
        assert ticks.report.late.get("d", 0) == len(late)
        # What has expired has left the state.
        assert {row["k"] for row in ticks.state(stage.state)} == set(seen), f"seed {seed}, tick {number}"
        if chance.random() < 0.2:
            ticks.compact()
        watermark = next_watermark(chance, watermark, number)


@pytest.mark.parametrize("seed", seeds(8, 30))
def test_ordered_equals_plain_python(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stage = ReleaseInOrder("o", pa.schema([*COLUMNS, *HIDDEN]), Outlet("o", (), True), Outlet("o.late", (), True))
    ticks = Ticks(tmp_path, (stage,), (stage.waiting,), ("o", "o.late"))
    waiting: list[Row] = []
    watermark: int | None = None
    offset, last = 0, -(10**9)
    for number in range(41):
        rows = drawn(chance, number, offset) if number < 40 else []
        offset += len(rows)
        got = ticks.tick(table_of(rows, COLUMNS) if rows else None, watermark)
        late = [row for row in rows if watermark is not None and row["_time"] < watermark]
        waiting += [row for row in rows if row not in late]
        out = in_order([row for row in waiting if watermark is not None and row["_time"] <= watermark])
        waiting = [row for row in waiting if row not in out]
        assert [row["x"] for row in got["o"]] == [row["x"] for row in out], f"seed {seed}, tick {number}"
        assert sorted(row["x"] for row in got["o.late"]) == sorted(row["x"] for row in late)
        assert ticks.report.late.get("o", 0) == len(late)
        times = [row["_time"] for row in out]
        assert not times or (times == sorted(times) and times[0] >= last)
        last = times[-1] if times else last
        if chance.random() < 0.2:
            ticks.compact()
        watermark = END if number == 39 else next_watermark(chance, watermark, number)
    assert not waiting
