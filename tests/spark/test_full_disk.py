"""A disk that fills up while the time machine works: a sentence that says so, and a ledger that is as it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.run import retry_errors, run_topology
from hailstorm.errors import HailstormError
from hailstorm.history.backfill import backfill_topology
from hailstorm.history.opened import open_ledger
from hailstorm.history.rewind import rewind_topology
from hailstorm.history.rewind_steps import rewind_steps
from hailstorm.history.verify import verify
from hailstorm.ledger.ledger import Ledger
from hailstorm.spouts import Log

pytestmark = pytest.mark.spark

BLOCK = 4096
COMMANDS: dict[str, Callable[[hs.Topology, int], object]] = {
    "rewind": lambda storm, to: rewind_topology(storm, to),
    "rewind of steps": lambda storm, to: rewind_steps(storm, to, ("counts",)),
    "retry": lambda storm, to: retry_errors(storm),
    "backfill": lambda storm, to: backfill_topology(storm, "more"),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("only root can make a disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, blocks: int) -> Path:
    """Fill it, but for so many blocks."""
    ballast = disk / "ballast"
    space = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max((space.f_bfree - blocks) * space.f_bsize, 1))
    return ballast


def counting(folder: Path, disk: Path, more: bool = True) -> hs.Topology:
    storm = hs.Topology("counting", ledger=str(disk / "ledger"))
    lines = storm.spout("lines", hs.Log(str(folder / "lines")), schema="word STRING")

    def good(line: Any) -> dict[str, str]:
        if line.word == "bad" and not (folder / "fixed").exists():
            raise ValueError("a bad word")
        return {"word": line.word}

    words = lines.bolt(good, name="good", returns="word STRING")
    words.fold("counts", by="word", n=hs.count()).sink("board", hs.Sqlite(str(folder / "board.db"), "board"))
    if more:
        words.fold("more", by="word", n=hs.count())
    return storm


def test_a_full_disk_changes_nothing_and_the_same_command_works_later(
    spark: SparkSession, tmp_path: Path, disk: Path
) -> None:
    log, root = Log(tmp_path / "lines").create(1), disk / "ledger"
    for some in (("hail", "bad"), ("rain", "hail"), ("snow",)):
        log.append([{"word": word} for word in some])
        to = Ledger(root).head.commit if root.exists() else 0
        run_topology(counting(tmp_path, disk, more="bad" not in some), until="caught-up")

    def shown() -> list[list[dict[str, Any]]]:
        return [sorted(open_ledger(root).state(step).arrow().to_pylist(), key=repr) for step in ("counts", "more")]

    refused: dict[str, int] = dict.fromkeys(COMMANDS, 0)
    for name, command in COMMANDS.items():
        if name == "retry":
            (tmp_path / "fixed").touch()
        for blocks in (0, 2, 5, 12):
            before, head = shown(), Ledger(root).head.commit
            ballast = fill(disk, blocks)
            try:
                command(counting(tmp_path, disk), to)
                break  # that was room enough
            except HailstormError as error:
                assert "space" in str(error).lower(), (name, blocks)
                refused[name] += 1
            finally:
                ballast.unlink()
            assert verify(Ledger(root)).problems == [], (name, blocks)
            if Ledger(root).head.commit > head:
                break  # it was for the commit, and not for what comes after it
            assert shown() == before, (name, blocks)
        else:
            command(counting(tmp_path, disk), to)
        assert verify(Ledger(root)).problems == [], name
        run_topology(counting(tmp_path, disk), until="caught-up")
    assert min(refused.values()) > 0
    everything = [{"word": w, "n": n} for w, n in (("bad", 1), ("hail", 2), ("rain", 1), ("snow", 1))]
    assert shown() == [sorted(everything, key=repr)] * 2
