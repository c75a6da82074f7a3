"""A Spark cluster on this machine for the benches: two workers, and a ledger in an object store.

The cluster is that of the chaos tests. Each worker has a cache of its own, as another machine would; a peer or a run
takes executors of one core and a gigabyte from it. Driver, workers and store share the cores of this machine, so what
is measured here is what they all cost together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.contest import ROOT
from bench.object_store import Counted, Say, Traffic, object_store
from bench.peers.memory import cpu_seconds
from bench.peers.peer import scratch_folder
from tests.chaos.cluster import Cluster
from tests.connectors.servers.s3 import BUCKET, S3Server, known_here

PATIENCE = 300.0  # seconds for anything
WORKERS = ("one", "two")


@dataclass(frozen=True)
class Place:
    """`store` says which server the ledgers are on. `traffic` counts what goes there, where that was asked for."""

    cluster: Cluster
    store: str
    store_process: int | None
    traffic: Traffic | None

    def ledger(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def conf(self, executors: int) -> dict[str, str]:
        """What an application sets to get so many executors, each on a worker of its own as long as there are any."""
        return {"spark.cores.max": str(executors), "spark.executor.cores": "1", "spark.executor.memory": "1g"}

    def options(self, ledger: str, executors: int, tasks: int) -> dict[str, Any]:
        """Of a peer whose ticks have so many tasks."""
        conf = self.conf(executors)
        return {"ledger": self.ledger(ledger), "master": self.cluster.master, "conf": conf, "ways": [tasks]}

    def counted(self) -> Counted:
        assert self.traffic is not None, "nobody counts"
        return self.traffic.counted()

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that workers with their executors, and the store, have used so far."""
        named = {f"worker {name}": worker.pid for name, worker in zip(WORKERS, self.cluster.workers, strict=True)}
        return {name: cpu_seconds(pid) for name, pid in {**named, "store": self.store_process}.items() if pid}

    def cached_bytes(self) -> dict[str, int]:
        """How much each worker has in its cache, whatever it is."""
        found = {}
        for name in WORKERS:
            files = [file for file in (self.cluster.far / name / "cache").rglob("*") if file.is_file()]
            found[name] = sum(file.stat().st_size for file in files)
        return found


@contextmanager
def place(say: Say, cores: int, counting: bool = False, pinned: bool = False) -> Iterator[Place]:
    """Two workers with room for so many executors each. `pinned`: all that a worker starts runs on one core, which is
    what an executor of one core has on a machine of its own."""
    with ExitStack() as stack:
        store = stack.enter_context(object_store(say))
        traffic = stack.enter_context(Traffic.to(store.server.port)) if counting else None
        server = store.server if traffic is None else S3Server(traffic.port)
        folder = scratch_folder("cluster")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = Cluster(folder, server)
        stack.callback(cluster.close)
        cpus = sorted(os.sched_getaffinity(0)) if pinned else [None] * len(WORKERS)
        for name, cpu in zip(WORKERS, cpus, strict=False):
            cluster.workers.append(cluster.add_worker(name, cores, cpu, hidden=False))
        log = cluster.far / "master/output.txt"
        wait_for(lambda: log.read_text().count("Registering worker") == len(WORKERS), "two workers")
        stack.enter_context(known_here(server.environment(), cluster.near / "cache"))
        yield Place(cluster, store.name, store.process, traffic)


class Run:
    """`hailstorm run` of bench/peers/steady_app.py, as a user types it. `name` tells those of one place apart, and
    `known` is what the app asks the environment for. With a `host` it is a process of another host, as far as a lease
    can see."""

    def __init__(
        self, where: Place, name: str, ledger: str, words: Sequence[str], known: Mapping[str, str], host: str = ""
    ) -> None:
        self._cluster, folder = where.cluster, where.cluster.near / name
        folder.mkdir()
        shutil.copy(ROOT / "bench/peers/steady_app.py", folder / "app.py")
        self._output = folder / "output.txt"
        conf = [word for item in where.conf(len(WORKERS)).items() for word in ("--conf", "=".join(item))]
        places = ("--ledger", where.ledger(ledger), "--master", where.cluster.master)
        command = [sys.executable, "-m", "hailstorm", "run", "app.py", *places, *conf, *words]
        if host:
            command = ["unshare", "--uts", sys.executable, "-c", _NAME_AND_RUN, host, *command]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "HAILSTORM_CACHE": str(folder / "cache"), **known},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def end(self) -> None:
        """kill -9 to all that the driver's machine would take with it."""
        if self.process.poll() is None:
            self._cluster.end(self.process)

    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def await_(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds, while the run goes on."""

        def holds() -> bool:
            assert self.process.poll() is None, self.said()
            return condition()

        wait_for(holds, what)


_NAME_AND_RUN = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"


def can_rename_host() -> bool:
    """Only root may have a namespace for that."""
    return subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode == 0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.05)
