"""Reading state: one key, all keys and what changed, now and at an old moment, in ledgers of 100k to 10M keys.

From the shell, time counts beyond that of a Python that does nothing, and memory (the most that a process held of its
own, looked at every millisecond; pages of mapped files are the system's, which takes them back when it wants) beyond
that of one that imports the same and reads nothing. Modules are compiled before, as pip does it. In Python the ledger
is open, and every question is asked of it several times before. "Old" is the commit of a hundred ticks ago. A diff is
of the newest tick and the commit before it: a compaction changes nothing. "No copies" is without the cache of the run,
as on another machine. About four minutes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import hailstorm as hs
from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import ROOT, Entrant, Host, Ratio, Series, ratio
from bench.peers.peer import Tick, scratch_folder
from bench.work import Work
from hailstorm.history.opened import OpenLedger

_TICKS, _OLD = 120, 100
_KEY = 77_777


def measure(quick: bool, say: Say) -> Outcome:
    sizes = (100_000, 200_000, 400_000) if quick else (100_000, 1_000_000, 10_000_000)
    rounds = 3 if quick else 11
    folder = scratch_folder("reading")
    try:
        ledgers = [_filled(folder / str(size), size, say) for size in sizes]
        few, middle, many = (hs.open_ledger(ledger) for ledger in ledgers)
        head = {id(one): one.live().commit for one in (few, middle, many)}
        say("one key, from the shell")
        nothing = _shell(folder, rounds, "-c", "pass")
        shell: dict[str, Series] = {}
        for label, ledger, at in (
            ("one key, few", ledgers[0], "latest"),
            ("one key, many", ledgers[2], "latest"),
            ("one key, many, old", ledgers[2], f"latest-{_OLD}"),
        ):
            ticks = _shell(folder, rounds, "-m", "hailstorm", *_words(ledger, at))
            shell[label] = Series(f"{label}, from the shell", tuple((tick,) for tick in ticks))
        say("memory")
        imported, held = _memory_mb(_IMPORTS), _memory_mb(_READS, *_words(ledgers[2], "latest"))
        say("in Python")

        def key(of: OpenLedger, back: int) -> Callable[[], object]:
            wanted = {"k": pa.array([_KEY])}
            return lambda: of.state("counts", head[id(of)] - back).of_keys(wanted)

        old_key = _timed("one key, many, old, in Python", rounds, key(many, _OLD))
        latest = _timed("all of 1M keys, latest", rounds, lambda: middle.state("counts").arrow())
        old = _timed("all of 1M keys, old", rounds, lambda: middle.state("counts", head[id(middle)] - _OLD).arrow())

        def changes(of: OpenLedger) -> Callable[[], object]:
            tick = max(commit.commit for commit in of.commits(head[id(of)] - _OLD) if commit.reason == "tick")
            return lambda: of.diff("counts", tick - 1, tick).arrow()

        small, large = _timed("diff, few keys", rounds, changes(few)), _timed("diff, many keys", rounds, changes(many))
        shutil.rmtree(many.cache_folder)
        ticks = _shell(folder, rounds, "-m", "hailstorm", *_words(ledgers[2], "latest"))
        shell["no copies"] = Series("one key, many, no copies, from the shell", tuple((tick,) for tick in ticks))
        again = hs.open_ledger(ledgers[2])
        head[id(again)] = head[id(many)]
        bare_key = _timed("one key, many, old, no copies, in Python", rounds, key(again, _OLD))
        bare_diff = _timed("diff, many keys, no copies", rounds, changes(again))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    start = statistics.median(tick.ms for tick in nothing)
    checks = (
        at_most("seconds for one key of 10M beyond Python's start", _seconds(shell["one key, many"], start), 0.5),
        at_most("seconds for one key of 10M at an old moment", _seconds(shell["one key, many, old"], 0), 1),
        at_most("MB for one key of 10M beyond the imports", _one(held - imported), 10),
        at_most("ms for one key of 10M at an old moment, in Python", _one(old_key.median_ms), 20),
        at_most("times all of 1M keys is all of them at an old moment", ratio(old, latest), 1.5),
        at_most("times a diff at 100k keys is one at 10M", ratio(large, small), 2),
    )
    series = (*shell.values(), old_key, bare_key, latest, old, small, large, bare_diff)
    return Outcome(
        series, checks, {"Python's start, ms": start, "MB of the imports": imported, "MB with one key": held}
    )


def _filled(ledger: Path, keys: int, say: Say) -> Path:
    say(f"fill {keys:,} keys")
    with Host(Entrant(str(keys), "hailstorm", Work("count", rows=1_000, keys=keys), {"ledger": str(ledger)})) as host:
        host.prepare()
        host.burst(_TICKS)
    return ledger


def _shell(folder: Path, rounds: int, *words: str) -> list[Tick]:
    """How long it took, each time but the first."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    found = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, check=True)
        found.append(Tick((time.perf_counter() - began) * 1000, 0))
    return found[1:]


def _words(ledger: Path, at: str) -> tuple[str, ...]:
    return "state", str(ledger), "counts", "--key", str(_KEY), "--at", at, "--json"


_HELD = """
import atexit, sys, threading, time
from hailstorm.cli import main
from hailstorm.cli.without_pandas import without_pandas
held = []
def look():
    with open("/proc/self/status") as status:
        held.append(max(int(line.split()[1]) for line in status if line.startswith("RssAnon:")))
def watch():
    while True:
        look()
        time.sleep(0.001)
threading.Thread(target=watch, daemon=True).start()
atexit.register(lambda: (look(), print(max(held), file=sys.stderr)))
without_pandas()
"""
_IMPORTS = (
    f"{_HELD}import hailstorm.cli.commands, hailstorm.cli.state, hailstorm.history.moments, hailstorm.ledger.reader"
)
_READS = f"{_HELD}main()"


def _memory_mb(script: str, *words: str) -> float:
    """The most that a process held."""
    done = subprocess.run([sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) / 1024


def _timed(label: str, rounds: int, ask: Callable[[], object]) -> Series:
    found = []
    for _ in range(rounds + 3):
        began = time.perf_counter()
        ask()
        found.append((Tick((time.perf_counter() - began) * 1000, 0),))
    return Series(label, tuple(found[3:]))


def _seconds(series: Series, less: float) -> Ratio:
    low, high = series.quartiles_ms
    return Ratio(*((ms - less) / 1000 for ms in (series.median_ms, low, high)))


def _one(value: float) -> Ratio:
    return Ratio(value, value, value)


BENCH = Bench("reading", "one key, all keys and what changed, now and long ago", measure)
