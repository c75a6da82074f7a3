"""A run on a cluster that goes on while it is hurt: drivers on machines of their own, a store behind an unkind proxy,
and the judge, who compares what is committed with the oracle.

Every driver stands by for the one before it: so whoever kills one has the next one ready, as with `--standby`. The
proxy sees all requests, so a test can act at the moment at which a task writes its state or the driver its commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from hailstorm.ledger.compaction import layers_of
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import LedgerReader, open_ledger
from hailstorm.spouts import Log
from tests.chaos.cluster import HERE, SMALL, Cluster
from tests.chaos.world import PATIENCE, wait_for
from tests.connectors.servers.s3 import BUCKET, UnkindProxy
from tests.connectors.tally import CLUSTER, suffered, went_on
from tests.jvm import quick

KEYS, PER_SECOND, SECONDS = 500, 100, 5  # as cluster_fault_app.py has them
LEDGER, HEARD = f"s3://{BUCKET}/storm", Log(f"s3://{BUCKET}/storm-heard", partitions=2)
PLANNED = ("--set", "ways=planned", "--set", "max_tick_rows=2000")
# A task that takes two seconds gets a duplicate, also where it is the only one of its stage.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.task.duration.threshold": "2s",
}
_DAEMON = b"hailstorm.engine.spark.daemon"  # in the command line of every Python process of an executor

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Driver:
    """`order` is the file that names a fault point at which it is to die."""

    process: Process
    output: Path
    order: Path

    def said(self) -> str:
        return self.output.read_text(errors="replace")


@dataclass(frozen=True)
class Tick:
    moment: float
    commit: dict[str, Any]  # as it is in its file


class Storm:
    def __init__(self, cluster: Cluster, proxy: UnkindProxy) -> None:
        self.cluster, self.proxy = cluster, proxy
        self.start = datetime.now(UTC).replace(microsecond=0)
        self.drivers: list[Driver] = []
        self.ticks: list[Tick] = []
        self._running = 0
        self._said = 0
        self._struck = 0.0
        proxy.acted = self._acted
        Ledger(LEDGER, create=True)
        self.say()

    # Input, and progress

    def say(self) -> None:
        """Append to the log that is in the store."""
        for partition in range(2):
            HEARD.append([{"word": f"h{(self._said * 3 + n) % 9}"} for n in range(10)], partition=partition)
        self._said += 1

    def _acted(self, method: str, path: str, body: bytes, status: int) -> None:
        """The proxy has passed on a request: of a commit that is made, it keeps what it says."""
        made = method == "PUT" and status == 200 and path.startswith(f"/{BUCKET}/storm/commits/")
        if made and path.endswith(".json") and (commit := json.loads(body))["reason"] == "tick":
            self.ticks.append(Tick(time.monotonic(), commit))

    def next_tick(self, since: float, what: Callable[[Tick], bool] = lambda tick: True) -> Tick:
        """The first tick that was committed after a moment, and of which this is true."""
        found: list[Tick] = []

        def is_there() -> bool:
            assert self.driver.process.poll() is None, self.driver.said()
            found.extend(tick for tick in self.ticks if tick.moment > since and what(tick))
            return bool(found)

        wait_for(is_there, "a tick that is committed")
        return found[0]

    @contextlib.contextmanager
    def hurt(self, kind: str) -> Iterator[None]:
        """What happens in here is one fault. The run must get over it, and what it commits then must be right."""
        self.say()
        self.strike()
        yield
        suffered(f"{CLUSTER}{kind}")
        ended = time.monotonic()
        seconds = self.next_tick(ended).moment - self._struck
        went_on(kind, seconds)
        print(f"{kind}: {seconds:.1f} s to the next commit, {ended - self._struck:.1f} s of these it lasted")
        judge(self.start)

    def strike(self) -> None:
        """The fault happens now, and not when one began to wait for its moment."""
        self._struck = time.monotonic()

    # Drivers

    @property
    def driver(self) -> Driver:
        """The one that should be running: nobody else may have taken over unasked."""
        return self.drivers[self._running]

    def ended(self) -> int:
        """Wait until it has ended, as it was told to: from now on the next one is to run. Its exit code."""
        process = self.driver.process
        process.wait(PATIENCE)
        self.strike()
        self._running += 1
        return process.returncode

    def start_driver(self, host: str) -> Driver:
        """On a machine of this name, with an empty cache. It waits for the one that runs."""
        name = f"driver-{len(self.drivers)}"
        near, order = self.cluster.near, self.cluster.near / f"{name}.order"
        endpoint = self.cluster.server.environment(self.proxy.port)
        environment = {
            **os.environ,
            **quick(),
            **endpoint,
            "TMPDIR": str(near / "tmp"),
            "HAILSTORM_CACHE": str(near / name),
            "HAILSTORM_FAULT_FILE": str(order),
            "STORM_START": self.start.isoformat(),
            "STORM_LOG": str(HEARD.path),
        }
        conf = {**SPECULATION, "spark.executorEnv.AWS_ENDPOINT_URL": endpoint["AWS_ENDPOINT_URL"]}
        words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        run = [sys.executable, str(HERE / "driver_process.py"), "run", "storm.py", "--ledger", LEDGER, "--standby"]
        run += ["--master", self.cluster.master, *SMALL, *PLANNED, *words]
        command = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *run]
        output = near / f"{name}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=near, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        self.drivers.append(Driver(process, output, order))
        return self.drivers[-1]

    def wait_until_it_stands_by(self, driver: Driver) -> None:
        def waits() -> bool:
            assert driver.process.poll() is None, driver.said()
            return f"process {self.driver.process.pid}, commit" in driver.said()

        wait_for(waits, "a standby that is ready")

    def close(self) -> None:
        for driver in self.drivers:
            if driver.process.poll() is None:
                driver.process.kill()
                driver.process.wait(PATIENCE)

    # At the moment of a request

    def once(self, what: str, method: str, part: str, times: int = 1) -> threading.Event:
        """Let the next requests of this method, with this in their path, suffer so. Set when they have."""
        left, done, lock = [what] * times, threading.Event(), threading.Lock()

        def fault(verb: str, path: str) -> str | None:
            with lock:
                if not left or verb != method or part not in path:
                    return None
                if len(left) == times:
                    self.strike()
                if len(left) == 1:
                    done.set()
                return left.pop()

        self.proxy.fault = fault
        return done

    def task_that(self, method: str, part: str, act: Callable[[int], None]) -> int:
        """Wait for a task that sends such a request, and do this to its process before it is answered."""
        found: list[int] = []
        lock = threading.Lock()

        def fault(verb: str, path: str) -> str | None:
            if verb == method and part in path:
                with lock:
                    process = None if found else self._task_at(self.proxy.caller.port)
                    if process is not None:
                        self.strike()
                        act(process)
                        found.append(process)
            return None

        self.proxy.fault = fault
        wait_for(lambda: bool(found), f"a task that sends {method} {part}")
        self.proxy.fault = lambda verb, path: None
        return found[0]

    def _task_at(self, port: int) -> int | None:
        """The process of a task that has this end of a connection to the proxy; None when it is not a task's."""
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            ends = [int(end.partition(":")[2], 16) for end in fields[1:3]]
            if ends == [port, self.proxy.port]:
                return next((process for process in self._pythons() if _has(process, f"socket:[{fields[9]}]")), None)
        return None

    def executors(self) -> list[int]:
        """Their Java processes."""
        pythons = set(self._pythons())
        return sorted({parent(process) for process in pythons} - pythons)

    def _pythons(self) -> Iterator[int]:
        """The Python processes of our executors: daemons, and the tasks' own that are forked from them."""
        sessions = {worker.pid for worker in self.cluster.workers}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session in sessions and _DAEMON in (entry / "cmdline").read_bytes():
                    yield int(entry.name)


def _has(process: int, socket: str) -> bool:
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) == socket:
                return True
    return False


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(task: int) -> int:
    """The Java process that a task's Python process works for: above the daemon that it was forked from."""
    return parent(parent(task))


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


# The oracle


def judge(start: datetime) -> None:
    """Fails when anything was lost or doubled in the state of the newest commit."""
    reader = open_ledger(LEDGER)
    live = reader.live()  # everything is of this commit: the driver is at work
    numbers = _numbers(live)
    found = _counts(numbers)
    state = {row["word"]: (row["n"], row["total"]) for row in _state(reader, "counts", live)}
    assert state == found
    how_often = Counter(n for n, _ in found.values())
    assert {row["n"]: row["words"] for row in _state(reader, "how_often", live)} == how_often
    totals = sorted((total for _, total in found.values()), reverse=True)[:5]
    assert sorted((row["total"] for row in _state(reader, "top", live)), reverse=True) == totals
    windows = Counter(_window(start, partition, offset) for partition, offset in numbers)
    by_time = _state(reader, "by_time", live)
    assert {(int(row["window_start"].timestamp()), row["v"]): row["n"] for row in by_time} == windows
    heard = Counter[str]()
    for partition, end in live.clock["heard"].items():
        for batch in HEARD.read(int(partition), 0, end):
            heard.update(json.loads(value)["word"] for value in batch.column("value").to_pylist())
    assert {row["word"]: row["n"] for row in _state(reader, "heard_words", live)} == heard
    for step in ("counts", "by_time", "heard_words"):
        refuse_overlap(live, step)


def refuse_overlap(live: Live, step: str) -> None:
    """Of the runs of one commit, each has a range of hashes of its own: that of the task that wrote it."""
    for layer in layers_of(live.runs.get(step, ())):
        ranges = sorted((run.first, run.last) for run in layer.runs)
        assert all(before < after for (_, before), (after, _) in pairwise(ranges)), (step, ranges)


def _numbers(live: Live) -> list[tuple[int, int]]:
    return [(int(partition), offset) for partition, end in live.clock["numbers"].items() for offset in range(end)]


def _key(partition: int, offset: int) -> int:
    return (offset * 7 + partition) % KEYS


def _counts(numbers: list[tuple[int, int]]) -> dict[str, tuple[int, int]]:
    count, total = Counter[str](), Counter[str]()
    for partition, offset in numbers:
        word = f"w{_key(partition, offset)}"
        count[word] += 1
        total[word] += offset % 11
    return {word: (count[word], total[word]) for word in count}


def _window(start: datetime, partition: int, offset: int) -> tuple[int, int]:
    """The start of its window, in seconds, and what it is counted by."""
    micros = int(start.timestamp()) * 1_000_000 + int((offset * 2 + partition) * (1e6 / PER_SECOND))
    return micros // 1_000_000 // SECONDS * SECONDS, offset % 11


def _state(reader: LedgerReader, step: str, live: Live) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reader.state(step, at=live.commit).arrow().to_pylist()
    return found
