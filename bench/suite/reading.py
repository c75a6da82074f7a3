"""Reading state: one key, all keys and what changed, now and at an old moment, in ledgers of 100k to 10M keys.

From the shell, time counts beyond that of a Python that does nothing. In Python the ledger is open, and every question
is asked of it several times before. "Old" is the commit of a hundred ticks ago. About four minutes.
"""

from __future__ import annotations

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
        nothing = _shell(rounds, "-c", "pass")
        shell: dict[str, Series] = {}
        for label, ledger, at in (
            ("one key, few", ledgers[0], "latest"),
            ("one key, many", ledgers[2], "latest"),
            ("one key, many, old", ledgers[2], f"latest-{_OLD}"),
        ):
            words = ("-m", "hailstorm", "state", str(ledger), "counts", "--key", str(_KEY), "--at", at, "--json")
            ticks = _shell(rounds, *words)
            shell[label] = Series(f"{label}, from the shell", tuple((tick,) for tick in ticks))
        say("in Python")

        def key(of: OpenLedger, back: int) -> Callable[[], object]:
            wanted = {"k": pa.array([_KEY])}
            return lambda: of.state("counts", head[id(of)] - back).of_keys(wanted)

        old_key = _timed("one key, many, old, in Python", rounds, key(many, _OLD))
        latest = _timed("all of 1M keys, latest", rounds, lambda: middle.state("counts").arrow())
        old = _timed("all of 1M keys, old", rounds, lambda: middle.state("counts", head[id(middle)] - _OLD).arrow())

        def changes(of: OpenLedger) -> Callable[[], object]:
            return lambda: of.diff("counts", head[id(of)] - 1, head[id(of)]).arrow()

        small, large = _timed("diff, few keys", rounds, changes(few)), _timed("diff, many keys", rounds, changes(many))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    start = statistics.median(tick.ms for tick in nothing)
    checks = (
        at_most("seconds for one key of 10M beyond Python's start", _seconds(shell["one key, many"], start), 0.5),
        at_most("seconds for one key of 10M at an old moment", _seconds(shell["one key, many, old"], 0), 1),
        at_most("ms for one key of 10M at an old moment, in Python", _one(old_key.median_ms), 20),
        at_most("times all of 1M keys is all of them at an old moment", ratio(old, latest), 1.5),
        at_most("times a diff at 100k keys is one at 10M", ratio(large, small), 2),
    )
    series = (*shell.values(), old_key, latest, old, small, large)
    return Outcome(series, checks, {"Python's start, ms": start})


def _filled(ledger: Path, keys: int, say: Say) -> Path:
    say(f"fill {keys:,} keys")
    with Host(Entrant(str(keys), "hailstorm", Work("count", rows=1_000, keys=keys), {"ledger": str(ledger)})) as host:
        host.prepare()
        host.burst(_TICKS)
    return ledger


def _shell(rounds: int, *words: str) -> list[Tick]:
    """How long it took, each time."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        found.append(Tick((time.perf_counter() - began) * 1000, 0))
    return found


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
