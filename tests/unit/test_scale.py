"""The simulation of the driver runs the real path: its commits name all that tasks have reported."""

from __future__ import annotations

from bench.suite.scale import simulated


def test_a_simulated_tick_looks_for_every_file_and_its_files_grow_with_the_tasks() -> None:
    few, more = simulated(5, ticks=1), simulated(50, ticks=2)
    assert (few["files that are looked for"], more["files that are looked for"]) == (10, 100)
    for name in ("bytes of the order", "bytes of the commit", "bytes of a manifest"):
        assert 5 < more[name] / few[name] < 15, name
