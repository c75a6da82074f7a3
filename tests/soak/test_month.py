"""A month of commits without Spark, the last ten minutes of it at 150 ticks per second: what is left is bounded.

The ledger is in memory and its clock is simulated (tests/unit/simulated.py); `test_vacuum.py` has a short form.
"""

from __future__ import annotations

import time

import pytest

from hailstorm.ledger.ledger import Ledger
from tests.unit.simulated import Simulation

pytestmark = pytest.mark.soak

LIMIT = 10_000_000_000  # what history_limit is by default


def test_a_month_that_ends_in_ten_minutes_at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Simulation(monkeypatch, limit=LIMIT)
    sizes = []
    for count, seconds in ((43_200, 60.0), (3_600, 1.0), (90_000, 1 / 150)):
        for number in range(count):
            place.tick(seconds)
            if number % 1_000 == 0:
                place.clean()
                kept = {commit.commit for commit in place.ledger.commits()}
                place.lives = {commit: live for commit, live in place.lives.items() if commit in kept}
        sizes.append((place.count("state"), place.count("commits"), len(place.store.content)))
    print("runs, files of commits, files:", sizes)
    place.clean(whole=True)
    assert place.missing() == []
    # 10 GB at 256 kB per file, and what comes in a minute until they are weighed again.
    assert all(files < 39_000 + 10_000 for _, _, files in sizes)
    assert all(commits < 1_700 for _, commits, _ in sizes)
    place.store.reads = 0
    began = time.process_time()
    again = Ledger(place.ledger.root)
    opened = time.process_time() - began
    assert again.head == place.ledger.head
    assert place.store.reads < 210
    kept = [commit.commit for commit in place.ledger.commits()]
    for number in (kept[0], kept[len(kept) // 2], kept[-1]):
        place.store.reads = 0
        assert again.at(number) == place.lives[number]
        assert place.store.reads < 210, number
    print(f"opened in {opened:.3f} s")
    assert opened < 0.5
