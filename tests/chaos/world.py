"""A world to destroy: an app, its log, its ledger and its sinks in one folder, and real processes to kill."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hailstorm.ledger.stores import open_store
from hailstorm.spouts import Log
from tests.chaos.oracle import some_records
from tests.forks import Forked
from tests.jvm import WarmJvm, quick

HERE = Path(__file__).parent
OPTIONS = ("--master", "local[2]", "--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=2")
PATIENCE = 240.0  # seconds for anything: the machine may be busy with other work
AHEAD = 400  # records that clients are ahead of the driver: five ticks
NEAR, FAR = 0.03, 0.3  # seconds between two looks at a ledger in a folder, and in a store

Driver = subprocess.Popen[bytes] | Forked


class World:
    def __init__(
        self,
        folder: Path,
        seed: int,
        jvm: WarmJvm | None = None,
        ledger: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """With a `jvm` every driver is a fork that uses that one; without, each is a fresh process that starts its own.
        A `ledger` elsewhere is found with what the environment says, by drivers and by their workers."""
        self.folder, self.chance, self.jvm = folder, random.Random(seed), jvm
        self.ledger = folder / "ledger"
        self.address, self.environment = ledger or str(self.ledger), dict(environment or {})
        self._every = FAR if ledger else NEAR
        self.store = open_store(self.address)
        self.log = Log(folder / "events", partitions=2)
        self.log.create()
        self.records: dict[tuple[int, int], bytes] = {}  # what was appended, by partition and offset
        self.drivers: list[Driver] = []
        self.kills = 0
        self._marks: list[str] = []
        self._fed = 0
        shutil.copy(HERE / "app.py", folder / "app.py")

    # Input

    def feed(self, count: int) -> None:
        records = some_records(count, self._fed, self.chance)
        partition = self.chance.randrange(2)
        self._fed += count
        offsets = self.log.append(records, partition=partition)[partition]
        self.records |= {(partition, offset): record for offset, record in zip(offsets, records, strict=True)}

    @contextlib.contextmanager
    def feeding(self) -> Iterator[None]:
        """Append small pieces all the time, as clients do, so that there is always a tick to run."""
        stop = threading.Event()

        def append() -> None:
            while not stop.wait(self._every):
                if len(self.records) - self.committed() < AHEAD:
                    self.feed(self.chance.randint(1, 60))

        thread = threading.Thread(target=append)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # Processes

    def start(self, *options: str, until: str = "never", fault: str = "", pause: bool = False) -> Driver:
        """Start a driver. It kills itself at `fault`, or stops there as if the machine had frozen."""
        mark = uuid.uuid4().hex
        self._marks.append(mark)
        marks = {"HAILSTORM_FAULT": fault, "HAILSTORM_CHAOS": mark, "HAILSTORM_PAUSE": "yes" if pause else ""}
        java = quick() if self.jvm is None else self.jvm.for_the_next()
        environment = {**os.environ, **marks, **java, **self.environment}
        command = [str(HERE / "driver_process.py"), "run", "app.py"]
        command += ["--ledger", self.address, "--until", until, *OPTIONS, *options]
        for name, value in self.environment.items():
            command += ["--conf", f"spark.executorEnv.{name}={value}"]
        with self._output(len(self.drivers)).open("wb") as output:
            self.drivers.append(self._process(command, environment, output.fileno()))
        return self.drivers[-1]

    def _process(self, command: list[str], environment: dict[str, str], output: int) -> Driver:
        if self.jvm is not None:
            return self.jvm.forks.start(*command, folder=self.folder, environment=environment, output=output)
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def run(self) -> None:
        """Run to the end of what was fed, undisturbed."""
        self.ended(self.start("--set", "max_tick_rows=100000", until="caught-up"), code=0)

    def kill(self, process: Driver) -> None:
        assert process.poll() is None, self.said(process)
        process.kill()
        process.wait(PATIENCE)
        self.kills += 1

    def killed_itself(self, process: Driver) -> None:
        """Wait for the driver to die at the fault point that it was started with."""
        self.ended(process, code=-signal.SIGKILL)
        self.kills += 1

    def ended(self, process: Driver, code: int) -> str:
        """Wait for a driver to end by itself, with this exit code. What it said."""
        process.wait(PATIENCE)
        assert process.returncode == code, self.said(process)
        return self.said(process)

    def said(self, process: Driver) -> str:
        return self._output(self.drivers.index(process)).read_text(errors="replace")

    def processes(self, process: Driver | None = None) -> dict[int, str]:
        """The processes of one driver, or of all: the driver, its JVM, its workers. Their commands by id."""
        marks = self._marks if process is None else [self._marks[self.drivers.index(process)]]
        wanted = [f"HAILSTORM_CHAOS={mark}".encode() for mark in marks]
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and any(mark in (entry / "environ").read_bytes() for mark in wanted):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def close(self) -> None:
        for process in self.drivers:
            if process.poll() is None:
                process.kill()
                process.wait()
        wait_for(lambda: not self.processes(), "all JVMs to end after their drivers")

    # Progress

    def commits(self) -> int:
        """The number of the newest commit: older ones may be in packs."""
        return max(map(int, self._numbers()), default=0)

    def _numbers(self) -> list[str]:
        names = (name.partition(".") for name in self.store.list("commits"))
        return [number for number, _, kind in names if kind == "json"]

    def committed(self) -> int:
        """How many records the newest commit has read."""
        newest = max(self._numbers(), default=None)
        data = None if newest is None else self.store.get(f"commits/{newest}.json")
        return sum(json.loads(data)["to"].get("events", {}).values()) if data else 0

    def wait_for_commits(self, process: Driver, more: int) -> None:
        wanted = self.commits() + more
        came = f"{more} more commits"
        wait_for(lambda: self.commits() >= wanted or process.poll() is not None, came, self._every)
        assert process.poll() is None, self.said(process)

    def wait_until_paused(self, process: Driver) -> None:
        def paused() -> bool:
            assert process.poll() is None, self.said(process)
            return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        wait_for(paused, "the driver to stop at its fault point")

    def _output(self, number: int) -> Path:
        return self.folder / f"driver-{number}.txt"


def wait_for(condition: Callable[[], bool], what: str, every: float = NEAR) -> None:
    """Look `every` so many seconds: to look at a store takes the time of the server that others wait for."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(every)
