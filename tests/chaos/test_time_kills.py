"""kill -9 while windows close, sessions merge and timers fire: each of them comes out exactly once."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import oracle
from tests.chaos.conftest import MakeWorld
from tests.chaos.world import World
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

KILLS = (
    ("resident", "before-commit:4"),  # what has fired in the third tick is not committed
    ("prepared", "after-commit:2"),
    ("planned", "after-write:2"),  # of several tasks, each with its part of what has fired
    ("resident", "during-delivery:2"),
)
MORE = (("resident", "after-write:3"), ("prepared", "before-commit:3"), ("planned", "before-commit:2"))


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MORE, marks=pytest.mark.soak)], ids=["kills", "more kills"])
def test_what_waits_for_time_comes_out_once_whenever_the_driver_is_killed(
    new_world: MakeWorld, jvm: WarmJvm, kills: tuple[tuple[str, str], ...]
) -> None:
    world = new_world(seed=61, jvm=jvm)
    shutil.copy(Path(__file__).with_name("app_of_time.py"), world.folder / "app.py")
    with world.feeding():
        for way, point in kills:
            world.killed_itself(world.start("--set", f"ways={way}", fault=point))
    world.run()
    some = delivered(world)
    assert some["echo"] and some["sliding"] and some["sessions"], "the kills were while such things came out"
    # Everything that is still open closes in one commit, and that one is killed.
    for point in ("before-commit:1", "after-commit:1"):
        world.killed_itself(world.start("--complete", until="caught-up", fault=point))
    world.ended(world.start("--complete", until="caught-up"), code=0)
    assert delivered(world) == expected(world)


def delivered(world: World) -> dict[str, Any]:
    with closing(sqlite3.connect(world.folder / "out/tables.db")) as db:
        rows = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in ("echo", "sliding", "sessions")}
    return {
        "echo": Counter(identity for identity, _ in rows["echo"]),
        "sliding": {(word, seconds(start), seconds(end)): n for word, start, end, n in rows["sliding"]},
        "sessions": {(word, seconds(start), seconds(end)): n for word, start, end, n, _ in rows["sessions"]},
    }


def expected(world: World) -> dict[str, Any]:
    rows = oracle.words(world.records.values())
    sliding: Counter[tuple[str, int, int]] = Counter()
    times = defaultdict[str, list[int]](list)
    for row in rows:
        at = seconds(row["at"])
        times[row["word"]].append(at)
        epoch = round(row["at"].timestamp())
        for start in range(epoch // 25 * 25, epoch - 60, -25):
            sliding[(row["word"], start - epoch + at, start - epoch + at + 60)] += 1
    sessions: dict[tuple[str, int, int], int] = {}
    for word, seen in times.items():
        session: list[int] = []
        for at in [*sorted(seen), 1 << 60]:
            if session and at - session[-1] >= 20:
                sessions[(word, session[0], session[-1] + 20)] = len(session)
                session = []
            session.append(at)
    return {"echo": Counter(row["id"] for row in rows), "sliding": dict(sliding), "sessions": sessions}


def seconds(time: datetime | str | int) -> int:
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    assert isinstance(time, datetime)
    return round((time - oracle.BEGIN).total_seconds())
