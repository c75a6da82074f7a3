"""What a topology costs that has nothing to do: trending words with default settings, after it has caught up.

Counted is the CPU time of the driver, the JVM and the workers. About two minutes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Ratio, Series
from bench.peers.memory import family
from bench.peers.peer import Tick, scratch_folder
from hailstorm.examples import trending
from hailstorm.spouts import Log

_QUIET = 0.02  # seconds of CPU in a second: what is above that still starts


def measure(quick: bool, say: Say) -> Outcome:
    seconds = 10 if quick else 60
    folder = scratch_folder("idle")
    shutil.copy(trending.__file__, folder / "app.py")
    trending.feed(Log(folder / "data/tweets"), 1_000, seed=1)
    command = [sys.executable, "-m", "hailstorm", "run", "app.py"]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        say("start, and wait until it rests")
        _wait_for_rest(process.pid)
        say(f"count for {seconds} seconds")
        percent = 100 * _spent(process.pid, seconds) / seconds
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
    series = Series("Hailstorm, CPU per second", ((Tick(percent * 10, 0),),))
    return Outcome((series,), (at_most("percent of a core", Ratio(percent, percent, percent), 1.0),))


def _wait_for_rest(process: int) -> None:
    deadline = time.monotonic() + 180
    resting = 0
    while resting < 10:
        assert time.monotonic() < deadline, "it does not come to rest"
        before = _used(process)
        time.sleep(1)
        resting = resting + 1 if before > 0 and _used(process) - before < _QUIET else 0


def _spent(process: int, seconds: int) -> float:
    """Seconds of CPU that a process and its descendants use from now on. Some of them may come and go meanwhile."""
    spent, known = 0.0, {pid: _used_alone(pid) for pid in family(process)}
    for _ in range(seconds):
        time.sleep(1)
        now = {pid: _used_alone(pid) for pid in family(process)}
        spent += sum(max(0.0, used - known.get(pid, 0.0)) for pid, used in now.items())
        known = now
    return spent


def _used(process: int) -> float:
    """Seconds of CPU that a process and its descendants have used."""
    return sum(_used_alone(pid) for pid in family(process))


def _used_alone(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BENCH = Bench("idle", "a topology with nothing to do", measure)
