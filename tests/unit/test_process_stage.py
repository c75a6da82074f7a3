"""The stage of processes, tick by tick against plain Python: events, timers of both clocks, errors, compaction."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.clock.watermark import END
from hailstorm.columns import HIDDEN
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.due import AlsoDue, ReadDue
from hailstorm.engine.stages.members import HashGroups
from hailstorm.engine.stages.process import ProcessShape, RunProcess
from hailstorm.engine.stages.process_timers import TIMER_COLUMNS
from hailstorm.errors import Location
from hailstorm.topology.process import Process, moment
from hailstorm.topology.state_fields import state_fields
from tests.length import seeds
from tests.unit.stage_ticks import Row, Ticks, table_of

pytestmark = pytest.mark.slow

COLUMNS = pa.schema([("k", pa.string()), ("op", pa.string()), ("x", pa.int64())])
RETURNS = pa.schema([("k", pa.string()), ("said", pa.string()), ("log", pa.list_(pa.string()))])
ALERTS = pa.schema([pa.field("k", pa.string(), nullable=False), ("at", pa.int64())])
MINUTE = 60_000_000


@dataclass
class Memory:
    n: int = 0
    log: list[str] = field(default_factory=list)
    note: str | None = None


class Busy(Process):
    """Does whatever its events say."""

    state = Memory
    returns = "k STRING, said STRING, log ARRAY<STRING>"

    def on_event(self, key: str, event: Any, state: Memory, timers: Any) -> Any:
        state.n += event.x
        state.log.append(f"{event.op}{event.x}{'!' if event.is_late else ''}")
        when = event._time + timedelta(minutes=event.x)
        match event.op:
            case "set":
                timers.set(f"t{event.x % 3}", when)
            case "wall":
                timers.set("wall", timers.now + timedelta(minutes=event.x), clock="system")
            case "cancel":
                timers.cancel(f"t{event.x % 3}")
            case "forget":
                state.n, state.note = 0, None
                state.log.clear()
            case "raise":
                timers.set("never", when)
                state.log = ["garbage"]
                yield {"k": key, "said": "nothing", "log": []}
                raise ValueError("asked to")
            case "misfit":
                timers.set("never", when)
                state.n = "text"  # type: ignore[assignment]
            case "column":
                yield {"k": key, "other": 1}
            case "none":
                state.log = None  # type: ignore[assignment]
            case "unknown":
                yield "nowhere", {"k": key}
            case "alert":
                yield "alerts", {"k": key, "at": event.x}
            case "bad alert":
                yield "alerts", {"k": None, "at": event.x}
        yield {"k": key, "said": event.op, "log": state.log}

    def on_timer(self, key: str, timer: Any, state: Memory, timers: Any) -> Any:
        if state.n % 7 == 6:
            state.n = 0
            timers.set("lost", timer.time + timedelta(minutes=1))
            raise RuntimeError("the timer fails")
        state.log.append(timer.name)
        state.note = timer.name
        yield {"k": key, "said": f"{timer.name}@{timer.time.isoformat()}", "log": state.log}
        if timer.name == "t1":  # goes on by itself, sometimes several times within a tick
            timers.set("t1", timer.time + timedelta(minutes=2))
            timers.cancel("t2")
        if timer.name == "t2":  # into the past: in the next tick
            timers.set("back", timer.time - timedelta(minutes=1))


OUTPUTS = {"": RETURNS, "alerts": ALERTS}


def ticks(folder: Path, using: type[Process] = Busy, columns: pa.Schema = COLUMNS) -> tuple[Ticks, ProcessShape]:
    shape = ProcessShape(
        step="p",
        using=using,
        key=pa.schema([("k", columns.field("k").type)]),
        fields=state_fields("p", using.state, ("k",), Location("test.py", 1)),
        columns=tuple(columns.names),
        outputs=OUTPUTS,
        outlets={"": Outlet("p", (), True), "alerts": Outlet("p.alerts", (), True)},
    )
    due = ReadDue(
        tuple(shape.timers.agendas.values()), pa.schema([*columns, *HIDDEN, ("_hash", pa.int64()), *TIMER_COLUMNS])
    )
    stages = (HashGroups(("k",)), AlsoDue(due), RunProcess(shape))
    return Ticks(folder, stages, shape.layouts, ("p", "p.alerts")), shape


class Oracle:
    """The same in plain Python: everything of a key in dicts, nothing of it in columns."""

    def __init__(self) -> None:
        self.states: dict[str, Memory] = {}
        self.timers: dict[tuple[str, str], tuple[int, str, bool]] = {}  # at, clock, and whether it can ever fire

    def tick(self, events: list[Row], watermark: int | None, now: int) -> tuple[list[Row], list[Row], int]:
        self.rows: list[Row] = []
        self.alerts: list[Row] = []
        self.letters = 0
        until = {"event": watermark, "system": now}
        waiting = {
            (at, *who, clock)
            for who, (at, clock, can) in self.timers.items()
            if can and until[clock] is not None and at <= until[clock]  # type: ignore[operator]
        }
        while waiting:
            first = min(waiting)
            waiting.discard(first)
            at, key, name, clock = first
            held = self.timers.get((key, name))
            if held is None or held[:2] != (at, clock):
                continue
            del self.timers[key, name]
            for new_at, new_clock, new_name in self._timer(key, name, at, clock, watermark):
                if new_clock == clock and new_at > at and new_at <= until[clock] and watermark != END:  # type: ignore[operator]
                    waiting.add((new_at, key, new_name, new_clock))
        for event in sorted(events, key=lambda one: (one["_time"], one["_offset"])):
            self._event(event, watermark, now)
        for key in list(self.states):
            if self.states[key] == Memory() and not any(who[0] == key for who in self.timers):
                del self.states[key]
        return self.rows, self.alerts, self.letters

    def _timer(self, key: str, name: str, at: int, clock: str, watermark: int | None) -> list[tuple[int, str, str]]:
        state = self.states.setdefault(key, Memory())
        if state.n % 7 == 6:
            self.letters += 1
            return []
        state.log.append(name)
        state.note = name
        self.rows.append({"k": key, "said": f"{name}@{moment(at).isoformat()}", "log": list(state.log)})
        can = watermark != END
        if name == "t1":
            self.timers[key, "t1"] = (at + 2 * MINUTE, "event", can)
            self.timers.pop((key, "t2"), None)
            return [(at + 2 * MINUTE, "event", "t1")]
        if name == "t2":
            self.timers[key, "back"] = (at - MINUTE, "event", can)
            return [(at - MINUTE, "event", "back")]
        return []

    def _event(self, event: Row, watermark: int | None, now: int) -> None:
        key, op, x = event["k"], event["op"], event["x"]
        if op in ("raise", "misfit", "column", "none", "unknown", "bad alert"):
            self.letters += 1
            return
        state = self.states.setdefault(key, Memory())
        state.n += x
        late = watermark is not None and event["_time"] < watermark
        state.log.append(f"{op}{x}{'!' if late else ''}")
        if op == "set":
            self.timers[key, f"t{x % 3}"] = (event["_time"] + x * MINUTE, "event", True)
        if op == "wall":
            self.timers[key, "wall"] = (now + x * MINUTE, "system", True)
        if op == "cancel":
            self.timers.pop((key, f"t{x % 3}"), None)
        if op == "forget":
            self.states[key] = state = Memory()
        if op == "alert":
            self.alerts.append({"k": key, "at": x})
        self.rows.append({"k": key, "said": op, "log": list(state.log)})


GOOD = ["set", "set", "set", "wall", "cancel", "forget", "alert", "look"]
BAD = ["raise", "misfit", "column", "none", "unknown", "bad alert"]


def by_key(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of a key in order; that of keys is nobody's business."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["k"], []).append({name: row[name] for name in row if not name.startswith("_")})
    return found


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_random_ticks_equal_plain_python(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stage, shape = ticks(tmp_path)
    oracle = Oracle()
    watermark: int | None = None
    now = offset = 0
    ops = GOOD + (BAD if seed % 2 else ["raise"] if seed % 4 == 0 else [])
    for number in range(25):
        events = []
        for _ in range(chance.choice([0, 0, 1, 5, 30])):
            time = chance.randrange(-5, 60) * MINUTE // 2 + number * MINUTE * 5
            row = {"k": chance.choice("abcdefgh"), "op": chance.choice(ops), "x": chance.randint(-3, 12)}
            events.append({**row, "_time": time, "_offset": offset})
            offset += 1
        chance.shuffle(events)
        now += chance.choice([0, 0, 3, 10]) * MINUTE
        got = stage.tick(table_of(events, COLUMNS) if events else None, watermark, now)
        rows, alerts, letters = oracle.tick(events, watermark, now)
        where = f"seed {seed}, tick {number}"
        assert by_key(got["p"]) == by_key(rows), where
        assert by_key(got["p.alerts"]) == by_key(alerts), where
        assert len(stage.letters) == letters, where
        states = {row["k"]: Memory(row["n"], row["log"], row["note"]) for row in stage.state(shape.state)}
        kept = {key: Memory() for key, _ in oracle.timers} | oracle.states
        assert states == kept, where
        timers = {(row["k"], row["_timer"]): (row["_at"], row["_clock"]) for row in stage.state(shape.timers.set)}
        assert timers == {who: timer[:2] for who, timer in oracle.timers.items()}, where
        if chance.random() < 0.2:
            stage.compact()
        if chance.random() < 0.7:
            watermark = max(watermark or 0, number * MINUTE * 5 + chance.randrange(0, 20) * MINUTE)
        if number == 23:
            watermark = END
