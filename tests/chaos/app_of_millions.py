"""The topology that test_millions.py kills: each row has a window of its own, and each team is a group of its own.

It comes into a folder of its own; WINDOWS and PLAYERS are what the test compares with. The long form of the tests has
millions of them, the short form a tenth.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

import hailstorm as hs

Offsets = npt.NDArray[np.int64]

WINDOWS = 1_000_000 if os.environ.get("HAILSTORM_SOAK") else 100_000
PLAYERS = 2 * WINDOWS
TEAMS, ROWS = PLAYERS // 2, 2 * PLAYERS
MINUTE = 60_000_000  # microseconds


def windowed(offsets: Offsets, partition: int) -> dict[str, Any]:
    """A key for each row, all of them within one minute."""
    return {"key": offsets * 2_654_435_761 % WINDOWS, "at": (offsets % MINUTE).astype("datetime64[us]")}


def scored(offsets: Offsets, partition: int) -> dict[str, Any]:
    """Two rows for each player, of which the second takes points away, and two players for each team."""
    player = offsets % PLAYERS
    points = offsets * 2_654_435_761 % 1999
    return {"player": player, "team": player % TEAMS, "points": np.where(offsets < PLAYERS, points, -points // 2)}


storm = hs.Topology("storm", ledger="ledger", publish="off", retention="all", max_tick_rows=7 * WINDOWS // 10)
clicks = storm.spout(
    "clicks",
    hs.Rate(1e6, rows=windowed, columns="key BIGINT, at TIMESTAMP", limit=WINDOWS),
    event_time="at",
    lateness="1 minute",
)
minutes = clicks.window("1 minute", emit="final", keep="1 day").fold("minutes", by="key", n=hs.count())
minutes.sink("minutes_sqlite", hs.Sqlite("out/tables.db", table="minutes"))

points = storm.spout(
    "points", hs.Rate(1e6, rows=scored, columns="player BIGINT, team BIGINT, points BIGINT", limit=ROWS)
)
scores = points.fold("scores", by="player", team=hs.max("team"), points=hs.sum("points"))
scores.where("winning", "points > 0").top("best", 1, by="points", per="team")
