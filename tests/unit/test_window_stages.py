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
from hailstorm.ledger.commit import Stamp
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import write_run
from hailstorm.ledger.stores import open_store
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
    grouped = GroupRows(KEY, (Lifted("c", (), arrow.lift),), hashed=("k",) if panes else None)
    stages: tuple[Stage, ...] = (AssignWindows(STEP, windows, closing, None), grouped)
    layouts = (Layout(STEP, KEY), *waiting.agendas)
    if panes:
        shared = Panes(windows)
        of_panes = Waiting(STEP, KEY, one_task=True, closing=closing)
        join = JoinPanes(of_panes, shared, cells, (("k", pa.int64()),), tasks=1, hashed=True)
        stages = (AssignPanes(STEP, shared, closing, None), grouped, join, ReduceStates(KEY, cells))
        layouts = (*layouts, Layout(f"{STEP}.panes", ("k", PANE)))
    ticks = Ticks(folder, (*stages, LookUp(shape), WriteFold(shape)), layouts, (STEP,))
    ticks.panes = Panes(windows) if panes else None
    return ticks


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


def rows_of(*told: tuple[int, int]) -> pa.Table:
    return table_of([{"k": k, "n": 1, "_time": at, "_offset": 0} for k, at in told], COLUMNS)


def windows_in(changes: list[dict[str, Any]]) -> dict[tuple[int, int], int]:
    return {(row["k"], round(row["window_end"].timestamp() * 1e6)): row["c"] for row in changes}


def test_the_agenda_has_one_entry_for_each_end_of_a_window_of_whatever_keys(tmp_path: Path) -> None:
    ticks = ticks_of(tmp_path, Windows(60, 20), "final", panes=True)
    agenda, panes = Layout(f"{STEP}.agenda", KEY, "event"), Layout(f"{STEP}.panes", ("k", PANE))

    def ends() -> list[tuple[int, int | None]]:
        return [(row["_hash"], row["k"]) for row in ticks.state(agenda)]

    ticks.tick(rows_of((1, 5), (2, 7)), None)
    assert ends() == [(20, None)]
    ticks.tick(rows_of((3, 6), (1, 31)), 6)
    assert ends() == [(20, None), (40, None)], "the one that is there is not written again"
    assert len(ticks.runs[agenda.table]) == 2
    assert windows_in(ticks.tick(None, 20)[STEP]) == {(1, 20): 1, (2, 20): 1, (3, 20): 1}
    assert ends() == [(20, None), (40, None)], "both panes are in the window that ends next"
    assert windows_in(ticks.tick(None, 70)[STEP]) == {
        **{(k, end): 1 for k in (2, 3) for end in (40, 60)}, (1, 40): 2, (1, 60): 2
    }  # fmt: skip
    assert ends()[2:] == [(80, None)]
    assert sorted(row["_pane"] for row in ticks.state(panes)) == [0, 0, 0, 20], "nobody says that panes are over"
    ticks.compact()
    assert [(row["k"], row["_pane"]) for row in ticks.state(panes)] == [(1, 20)], "compaction drops them"
    assert windows_in(ticks.tick(None, 100)[STEP]) == {(1, 80): 1}
    assert not ticks.is_due(LAST // 2), "nothing is left"


def test_entries_of_single_keys_and_tombstones_of_panes_are_read(tmp_path: Path) -> None:
    """As older ledgers have them."""
    ticks = ticks_of(tmp_path, Windows(60, 20), "final", panes=True)
    agenda, panes = Layout(f"{STEP}.agenda", KEY, "event"), Layout(f"{STEP}.panes", ("k", PANE))
    ticks.tick(rows_of((1, 5), (2, 7)), None)
    (run,) = ticks.runs[panes.table]
    rows = ticks.opened(panes).everything()
    assert rows is not None
    first = rows.slice(0, 1)
    gone, left = first.column("k").to_pylist()[0], rows.column("k").to_pylist()[1]
    rows = pa.concat_tables([first.set_column(first.column_names.index("_deleted"), "_deleted", pa.array([True]))])
    store, stamp = open_store(tmp_path), Stamp(ticks.seq + 1, 1)
    ticks.runs[panes.table] = (run, write_run(store, panes.table, rows, stamp))
    (entries,) = ticks.runs[agenda.table]
    old = ticks.opened(agenda).everything()
    assert old is not None
    old = old.set_column(old.column_names.index("k"), "k", pa.array([left]))
    old = old.set_column(old.column_names.index("_key_hash"), "_key_hash", pa.array([12345]))
    ticks.runs[agenda.table] = (write_run(store, agenda.table, old, stamp),)
    assert entries.first == 20
    ticks.seq += 1
    ticks.tick(rows_of((3, 8)), 1)
    entries_now = {(row["_hash"], row["k"]) for row in ticks.state(agenda)}
    assert entries_now == {(20, None), (20, left)}, "erasing its key may take the old one"
    ticks.compact()
    assert windows_in(ticks.tick(None, 20)[STEP]) == {(left, 20): 1, (3, 20): 1}, f"{gone} is gone"
