"""Windows without Spark, in any cut into ticks, with late rows and compaction: they are what the rows make of them."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hailstorm as hs
from hailstorm.algebra.monoid import SqlMonoid
from hailstorm.clock.panes import Panes
from hailstorm.clock.windows import Closing, Windows
from hailstorm.columns import PANE, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.chain import Stage
from hailstorm.engine.stages.fold import Cell, FoldShape, LookUp, WriteFold
from hailstorm.engine.stages.group import GroupRows, Lifted
from hailstorm.engine.stages.panes import AssignPanes, JoinPanes
from hailstorm.engine.stages.reduce import ReduceStates
from hailstorm.engine.stages.waiting import Waiting
from hailstorm.engine.stages.windows import AssignWindows
from hailstorm.ledger.keyed_state import Layout
from tests.length import examples
from tests.unit.stage_ticks import Ticks, table_of

pytestmark = pytest.mark.slow

STEP, KEY = "counts", ("k", WINDOW_START, WINDOW_END)
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
LAST = 10**9
# A tick: rows of a key and a moment; how far the watermark goes after it; whether all runs are merged then.
TICKS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=8), st.integers(0, 60), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


def ticks_of(folder: Path, windows: Windows, emit: Any, panes: bool) -> Ticks:
    count = hs.count()
    assert isinstance(count, SqlMonoid)
    arrow = count.pieces(()).arrow
    assert arrow is not None and arrow.lift is not None
    closing = Closing(emit, keep=LAST)
    cells = (Cell("c", pa.int64(), pa.int64(), False, arrow.merge, None, arrow.merge),)
    waiting = Waiting(STEP, KEY, one_task=not panes, closing=closing)
    shape = FoldShape(STEP, KEY, cells, False, False, (), feeds=True, times=False, waiting=waiting)
    grouped = GroupRows(KEY, (Lifted("c", (), arrow.lift),))
    stages: tuple[Stage, ...] = (AssignWindows(STEP, windows, closing, None), grouped)
    layouts = (Layout(STEP, KEY), *waiting.agendas)
    if panes:
        shared = Panes(windows)
        join = JoinPanes(Waiting(STEP, KEY, one_task=True, closing=closing), shared, cells, one_task=True)
        stages = (AssignPanes(STEP, shared, closing, None), grouped, join, ReduceStates(KEY, cells))
        layouts = (*layouts, Layout(f"{STEP}.panes", ("k", PANE)))
    return Ticks(folder, (*stages, LookUp(shape), WriteFold(shape)), layouts, (STEP,))


@pytest.mark.parametrize(
    ("size", "every", "emit", "panes"),
    [
        (50, 50, "updates", False),
        (50, 50, "final", False),
        (60, 20, "final", False),
        (60, 20, "final", True),
        (60, 25, "final", True),
        (300, 7, "final", True),
    ],
)
@settings(max_examples=examples(10, 30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=TICKS)
def test_windows_hold_what_the_rows_make_of_them(
    size: int, every: int, emit: str, panes: bool, made: list[tuple[list[tuple[int, int]], int, bool]]
) -> None:
    windows, wanted, held = Windows(size, every), Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    with tempfile.TemporaryDirectory() as folder:
        ticks, watermark, offset = ticks_of(Path(folder), windows, emit, panes), None, 0

        def tick(rows: list[tuple[int, int]]) -> None:
            nonlocal offset
            told = [{"k": k, "n": 1, "_time": at, "_offset": offset + place} for place, (k, at) in enumerate(rows)]
            offset += len(rows)
            for change in ticks.tick(table_of(told, COLUMNS) if told else None, watermark)[STEP]:
                key = change["k"], round(change["window_start"].timestamp() * 1e6)
                assert held.get(key) == (change["_old"] or {}).get("c"), "a change says what was"
                held[key] = change["c"]
                assert emit == "updates" or key[1] + size <= (watermark or 0), "of windows that have ended"

        for rows, further, merged in made:
            tick(rows)
            wanted.update((k, s * every) for k, at in rows for s in range((at - size) // every + 1, at // every + 1))
            watermark = (watermark or 0) + further
            if merged:
                ticks.compact()
        watermark = LAST // 2
        tick([])
        tick([])
        state = {
            (row["k"], round(row["window_start"].timestamp() * 1e6)): row["c"] for row in ticks.state(Layout(STEP, KEY))
        }
    assert held == dict(wanted) == state
