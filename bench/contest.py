"""A contest: entrants take turns, so that whatever else the machine does hits all of them.

Each entrant is a peer with a work in a process of its own. In every round each one runs a burst of ticks, in an
order that rotates. A ratio is taken within a round and the median over the rounds is what counts. An outsider is a
peer that needs other packages than ours: a plain script, run by the interpreter of its own environment.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.peers.peer import Tick
from bench.work import Work

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Entrant:
    label: str
    peer: str
    work: Work
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.host", self.peer, self.work.to_json(), json.dumps(dict(self.options))]


@dataclass(frozen=True)
class Outsider:
    """It understands the orders that `bench/host.py` does. `options` is the one argument of its script."""

    label: str
    python: Path
    script: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        return [str(self.python), str(self.script), json.dumps(dict(self.options))]


@dataclass(frozen=True)
class Effort:
    """How much to measure. `burst` is the ticks of a round, `warm_up` the ticks before the first round."""

    rounds: int
    burst: int
    warm_up: int


@dataclass(frozen=True)
class Series:
    """What one entrant did: its ticks, round by round, and figures such as memory."""

    label: str
    rounds: tuple[tuple[Tick, ...], ...]
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def milliseconds(self) -> list[float]:
        return sorted(tick.ms for round_ in self.rounds for tick in round_)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        if len(self.milliseconds) == 1:  # a quick run
            return self.median_ms, self.median_ms
        first, _, third = statistics.quantiles(self.milliseconds, n=4, method="inclusive")
        return first, third

    @property
    def rows_per_second(self) -> float:
        """0 where ticks have no rows, but are times of something else."""
        return self.rounds[0][0].rows / self.median_ms * 1000

    @property
    def parts(self) -> dict[str, float]:
        """The median of every part that the peer has told."""
        ticks = [tick for round_ in self.rounds for tick in round_]
        names = dict.fromkeys(name for tick in ticks for name in tick.parts)
        return {name: statistics.median(tick.parts.get(name, 0.0) for tick in ticks) for name in names}


@dataclass(frozen=True)
class Ratio:
    """The median over the rounds, and the quartiles: how sure it is."""

    value: float
    low: float
    high: float


def fastest(series: Mapping[str, Series], peer: str) -> Series:
    """Of the entrants whose label begins so, the one with the lowest median: we compare with a peer at its best.

    Our tick may run in one task. A peer that is made to shuffle into one partition a core is then handicapped.
    """
    return min((one for label, one in series.items() if label.startswith(peer)), key=lambda one: one.median_ms)


def ratio(above: Series, below: Series) -> Ratio:
    """The time of one entrant by the time of another, round by round."""
    pairs = zip(above.rounds, below.rounds, strict=True)
    values = [statistics.median(t.ms for t in a) / statistics.median(t.ms for t in b) for a, b in pairs]
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(middle, low, high)


class Host:
    """The parent's end of a peer's process."""

    def __init__(self, entrant: Entrant | Outsider) -> None:
        self.label = entrant.label
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            entrant.command,
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def prepare(self) -> Mapping[str, float]:
        return dict(self.ask(do="prepare"))

    def burst(self, ticks: int) -> tuple[Tick, ...]:
        return tuple(Tick(**tick) for tick in self.ask(do="burst", ticks=ticks))

    def figures(self) -> Mapping[str, float]:
        return dict(self.ask(do="figures"))

    def kill(self) -> None:
        """kill -9, as a machine that goes away would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()

    def ask(self, **order: Any) -> Any:
        """An order that only this peer knows; the others have a method."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it has ended"}
        if isinstance(answer, dict) and "error" in answer:
            self._errors.seek(0)
            said = self._errors.read()[-2000:]
            raise RuntimeError(f"{self.label} cannot {order['do']}: {answer['error']}\n{said}")
        return answer

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_contest(
    entrants: Sequence[Entrant | Outsider],
    effort: Effort,
    say: Callable[[str], None],
    look: Callable[[int], Mapping[str, float]] | None = None,
) -> dict[str, Series]:
    """All entrants, in turns. The answer has a series by label.

    `look` is given the process of an entrant, and reads counters: what a tick of its bursts adds to them is among its
    figures.
    """
    hosts = [Host(entrant) for entrant in entrants]
    rounds: dict[str, list[tuple[Tick, ...]]] = {host.label: [] for host in hosts}
    figures: dict[str, dict[str, float]] = {}
    counted = {host.label: Counter[str]() for host in hosts}
    try:
        for host in hosts:  # one after another: two that fill their state at once would only be slower
            say(f"{host.label}: start and warm up")
            figures[host.label] = dict(host.prepare())
            host.burst(effort.warm_up)
        for number in range(effort.rounds):
            say(f"round {number + 1} of {effort.rounds}")
            turn = number % len(hosts)
            for host in hosts[turn:] + hosts[:turn]:
                before = {} if look is None else look(host.pid)
                rounds[host.label].append(host.burst(effort.burst))
                after = {} if look is None else look(host.pid)
                counted[host.label].update({name: after[name] - before.get(name, 0.0) for name in after})
        ticks = effort.rounds * (effort.burst + 1)  # with those that do not count
        for host in hosts:
            figures[host.label] |= host.figures()
            figures[host.label] |= {f"{name} per tick": found / ticks for name, found in counted[host.label].items()}
    finally:
        for host in hosts:
            host.close()
    return {label: Series(label, tuple(found), figures.get(label, {})) for label, found in rounds.items()}
