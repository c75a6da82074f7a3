"""CPU seconds of a tick's Python pass, stage by stage, without Spark: `python -m bench.tick_cpu`.

What a resident tick is made of, over the same rows as the benches. It counts the processor time of its threads, and the
works take turns, so that it says something on a busy machine, too. It leaves out Spark, the commit and the disk.
The stages are put together here as `engine/plan` puts them together.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import hailstorm as hs
from bench.peers.topologies import SPOUT, KeyedNumbers, words
from bench.work import Kind, Work, lines
from hailstorm.algebra.monoid import SqlMonoid
from hailstorm.clock.panes import Panes
from hailstorm.clock.watermark import BEGINNING, due_until
from hailstorm.clock.windows import Closing, Windows
from hailstorm.columns import EVENT_TIME, HASH, KIND, PANE, TIME, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.bolt import RowBolt
from hailstorm.engine.stages.chain import Stage, run_stages
from hailstorm.engine.stages.deposit import RefuseNullKeys
from hailstorm.engine.stages.event_times import EventTimes
from hailstorm.engine.stages.fold import Cell, FoldShape, LookUp, WriteFold
from hailstorm.engine.stages.group import GroupRows, Lifted
from hailstorm.engine.stages.order import Order, Report, TaskRange
from hailstorm.engine.stages.panes import AssignPanes, JoinPanes
from hailstorm.engine.stages.ranking import BY
from hailstorm.engine.stages.read import ReadLog
from hailstorm.engine.stages.reduce import ReduceStates, take_whole
from hailstorm.engine.stages.rows import ReadRows
from hailstorm.engine.stages.sessions import AssignSessions, HashBy, JoinSessions
from hailstorm.engine.stages.task import Shelf, Task
from hailstorm.engine.stages.top import KeepTop
from hailstorm.engine.stages.waiting import Waiting
from hailstorm.engine.stages.windows import AssignWindows
from hailstorm.ledger.commit import Run, Stamp, StateChange
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.live import changed_runs
from hailstorm.ledger.stores import open_store
from hailstorm.spouts.decode import decoder

_STEP = "counts"
_MINUTE = 60_000_000
_PANES = Panes(Windows(60 * _MINUTE, 5 * _MINUTE))
_START = 946_684_800_000_000  # 2000
_TASK_0 = pa.record_batch({"id": pa.array([0])})
KINDS: tuple[Kind, ...] = ("count", "tumbling", "sliding", "sessions", "words")


class Pass:
    """The pass of one work, over many ticks: what it writes in one is what it finds in the next."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder
        self.lines, self.layouts = _lines(work, folder)
        self.runs: dict[str, tuple[Run, ...]] = {}
        self.reached: dict[str, int] = {}
        self.watermark: int | None = None
        self.seq = self.offset = 0
        self.profile: cProfile.Profile | None = None
        self.seconds: dict[str, float] = {}

    def tick(self, rows: int) -> float:
        """So many rows more. CPU seconds."""
        leisure: list[Callable[[], None]] = []
        if self.work.is_json:
            text = lines(self.work, self.offset, self.offset + rows)
            times = pa.repeat(pa.scalar(_START, TIME), rows)
            hs.Log(self.folder / "log").append_arrow(pa.table({"value": text.cast(pa.binary()), "time": times}))
        shelf = Shelf(frozenset({_STEP}))
        task = Task(self._order(self.offset + rows), 0, Report(_STEP), shelf, leisure=leisure)
        gc.disable()
        if self.profile is not None:
            self.profile.enable()
        began = time.process_time()
        with _cpu_clock():
            for stages in self.lines:
                for _ in run_stages(stages, iter([_TASK_0]), task):
                    pass
            task.finish()
        spent = time.process_time() - began
        if self.profile is not None:
            self.profile.disable()
        gc.enable()
        for rest in leisure:
            rest()
        self.offset += rows
        self._take(task)
        self.seconds = dict(task.report.timings)
        return spent

    def _order(self, end: int) -> Order:
        return Order(
            ledger=str(self.folder),
            cache=str(self.folder / "cache"),
            scratch=str(self.folder / "scratch"),
            seq=self.seq + 1,
            epoch=1,
            now=_START + end * self.work.apart,
            ranges=((TaskRange(SPOUT, 0, self.offset, end),),),
            synced=False,
            watermarks={_STEP: (self.watermark, self.watermark)},
            reached=self.reached,
            runs=self.runs,
        )

    def _take(self, task: Task) -> None:
        """As the driver does after a tick: the runs, how far agendas are, the watermark; and what is to be merged."""
        self.seq += 1
        for table, added in task.report.runs.items():
            self.runs[table] = changed_runs(self.runs.get(table, ()), StateChange(added=tuple(added)))
        for layout in self.layouts:
            until = due_until(layout.clock, self.watermark, 0, self.seq - 1) if layout.clock else None
            if until is not None:
                self.reached[layout.table] = max(until, self.reached.get(layout.table, BEGINNING))
        self.watermark = _START + self.offset * self.work.apart
        for layout in self.layouts:
            runs, stamp = self.runs.get(layout.table, ()), Stamp(self.seq, 2)
            past = self._past(layout)
            merged = compact(open_store(self.folder), task.cache, layout.table, layout.key, runs, stamp, past=past)
            if merged is not None:
                self.runs[layout.table] = changed_runs(runs, merged)

    def _past(self, layout: Layout) -> int | None:
        if PANE not in layout.key:
            return self.reached.get(layout.table)
        reached = self.reached.get(f"{_STEP}.agenda")
        return None if reached is None else _PANES.over(reached)


class _cpu_clock:
    """Lets the stages be timed by the processor time of this process."""

    def __enter__(self) -> None:
        self._clock, time.perf_counter = time.perf_counter, time.process_time  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        time.perf_counter = self._clock


def _lines(work: Work, folder: Path) -> tuple[list[tuple[Stage, ...]], tuple[Layout, ...]]:
    """The lines of a pass, and its tables of state."""
    times = EventTimes(None, True, 0, 86_400_000)
    if work.kind == "words":
        decode = decoder("json", [("text", "string")])
        first = ReadLog(SPOUT, hs.Log(folder / "log").create(), decode, ("text",), times, "fail")
        return _words(first)
    numbers = KeyedNumbers(work)
    source = hs.Rate(1e6 / work.apart, rows=numbers, columns=numbers.columns, limit=1 << 40)
    stages, layouts = _stages(work.kind)
    return [(ReadLog(SPOUT, source, None, ("k", "value"), times, "fail"), *stages)], layouts


def _words(first: Stage) -> tuple[list[tuple[Stage, ...]], tuple[Layout, ...]]:
    """Trending words: a bolt, a fold with a sink, and a top of it with another one."""
    cells, grouped = _counted(("word",))
    shape = FoldShape(_STEP, ("word",), cells, False, False, ("archive",), True, False)
    bolt = RowBolt("words", words, ("text",), pa.schema([("word", pa.string())]), "fail", None)
    columns = ("word", "n", KIND, EVENT_TIME, HASH)
    top = KeepTop(
        step="top",
        table=_STEP,
        n=10,
        by="n",
        key=("word",),
        values=("n",),
        schema=pa.schema([("word", pa.string()), ("n", pa.int64()), (BY, pa.int64()), (HASH, pa.int64())]),
        sinks=("board",),
        feeds=False,
        times=False,
    )
    layouts = (Layout(_STEP, ("word",)), Layout("top", ("word",)))
    return [(first, bolt, *grouped, LookUp(shape), WriteFold(shape)), (ReadRows((_STEP,), columns, 1), top)], layouts


def _counted(key: tuple[str, ...], hashed: tuple[str, ...] | None = None) -> tuple[tuple[Cell, ...], tuple[Stage, ...]]:
    """A count by key: its one cell, and the stages that group rows."""
    monoid = hs.count()
    assert isinstance(monoid, SqlMonoid)
    arrow = monoid.pieces(()).arrow
    assert arrow is not None and arrow.lift is not None
    cells = (Cell("n", pa.int64(), pa.int64(), False, arrow.merge, None, arrow.merge),)
    return cells, (RefuseNullKeys(_STEP, key), GroupRows(key, (Lifted("n", (), arrow.lift),), hashed=hashed))


def _stages(kind: str) -> tuple[tuple[Stage, ...], tuple[Layout, ...]]:
    """The stages of a count by key, and its tables of state."""
    if kind == "sessions":
        return _sessions()
    windowed = kind != "count"
    key = ("k", WINDOW_START, WINDOW_END) if windowed else ("k",)
    final = kind == "sliding"
    cells, grouped = _counted(key, ("k",) if final else None)
    closing = Closing("final" if final else "updates")
    waiting = Waiting(_STEP, key, one_task=not final, closing=closing) if windowed else None
    shape = FoldShape(_STEP, key, cells, False, False, (), False, False, waiting)
    written = (LookUp(shape), WriteFold(shape))
    own = (Layout(_STEP, key), *(waiting.agendas if waiting is not None else ()))
    if kind == "tumbling":
        windows = Windows(5 * _MINUTE, 5 * _MINUTE)
        return (AssignWindows(_STEP, windows, closing, None), *grouped, *written), own
    if kind == "sliding":
        assert waiting is not None
        own = (*own, Layout(f"{_STEP}.panes", ("k", PANE)))
        waiting = Waiting(_STEP, key, one_task=True, closing=closing)
        join = JoinPanes(waiting, _PANES, cells, (("k", pa.int64()),), tasks=1, hashed=True)
        assign = AssignPanes(_STEP, _PANES, closing, None)
        return (assign, *grouped, join, ReduceStates(key, cells), *written), own
    return (*grouped, *written), own


def _sessions() -> tuple[tuple[Stage, ...], tuple[Layout, ...]]:
    """Of five minutes, shown when they end. The rows of the benches are a minute apart, so none does."""
    key, by = ("k", WINDOW_START, WINDOW_END), ("k",)
    cells, grouped = _counted(key)
    closing = Closing("final")
    waiting = Waiting(_STEP, key, one_task=True, closing=closing)
    whole = tuple(replace(cell, merge=take_whole) for cell in cells)
    shape = FoldShape(_STEP, key, whole, True, True, (), False, False, replace(waiting, one_task=False))
    assign = AssignSessions(_STEP, by, 5 * _MINUTE, closing, None, together=True)
    join = JoinSessions(shape.layout, by, waiting, cells, one_task=True)
    stages = (assign, *grouped, HashBy(by), join, ReduceStates(key, cells), LookUp(shape), WriteFold(shape))
    return stages, (shape.layout, *waiting.agendas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="a tick")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=5, help="of event time in a tick")
    parser.add_argument("--ticks", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=14)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:3])
    parser.add_argument("--profile", choices=KINDS, help="show what the ticks of this one do")
    wanted = parser.parse_args()
    apart = int(wanted.minutes * _MINUTE / wanted.rows)
    with tempfile.TemporaryDirectory() as folder:
        passes = {
            kind: Pass(Work(kind, wanted.rows, wanted.keys, apart=apart), Path(folder) / kind) for kind in wanted.kinds
        }
        spent, parts = defaultdict[str, list[float]](list), defaultdict[str, list[dict[str, float]]](list)
        for one in passes.values():
            one.tick(wanted.rows)
        for number in range(wanted.warm_up + wanted.ticks):
            for kind, one in passes.items():
                if kind == wanted.profile and number == wanted.warm_up:
                    one.profile = cProfile.Profile(time.process_time)
                seconds = one.tick(wanted.rows)
                if number >= wanted.warm_up:
                    spent[kind].append(seconds)
                    parts[kind].append(one.seconds)
        for kind in wanted.kinds:
            # The least of them: a busy machine adds to the others, by what it does to the processor's caches.
            phases = {phase: min(one.get(phase, 0.0) for one in parts[kind]) for phase in parts[kind][0]}
            shown = ", ".join(f"{phase} {1000 * seconds:.0f}" for phase, seconds in phases.items())
            least, middle = (1000 * of(spent[kind]) for of in (min, statistics.median))
            times = f", {min(spent[kind]) / min(spent['count']):.2f} times the plain fold" if "count" in spent else ""
            print(f"{kind:9} {least:6.1f} ms of CPU (median {middle:.1f}){times}: {shown}")
        if wanted.profile is not None:
            pstats.Stats(passes[wanted.profile].profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
