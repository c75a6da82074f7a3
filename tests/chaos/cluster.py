"""A Spark cluster on this machine whose machines share nothing: two workers, each in a mount namespace of its own, in
which the driver's folder is an empty one. Only the ledger, on a server that speaks as S3 does, is there for all."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.chaos.world import PATIENCE, wait_for
from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.s3 import S3Server
from tests.jvm import quick

HERE = Path(__file__).parent
SMALL = (
    *("--conf", "spark.driver.memory=512m", "--conf", "spark.executor.memory=512m"),
    *("--conf", f"spark.executor.extraJavaOptions={quick()['SPARK_SUBMIT_OPTS']}"),
)


class Cluster:
    """`near` is the driver's folder, which workers do not see; `far` has what they write, each in a folder."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.near, self.far, self.server = folder / "near", folder / "far", server
        self.near.mkdir()
        (self.near / "tmp").mkdir()
        (port,) = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self._start("master", "", f"master.Master --host 127.0.0.1 --port {port} --webui-port 0")

    def add_worker(
        self, name: str, cores: int = 1, cpu: int | None = None, hidden: bool = True
    ) -> subprocess.Popen[bytes]:
        """With room for so many executors of a core and a gigabyte; they all run on one `cpu`, where that is given.
        `hidden`: the driver's folder is, which only root can do."""
        place = self.far / name
        before = f"mount -t tmpfs tmpfs {shlex.quote(str(self.near))} && " if hidden else ""
        before += f"taskset -pc {cpu} $$ && " if cpu is not None else ""
        room = f"--cores {cores} --memory {cores}g"
        # An address of its own: Spark keeps ranges of hashes on hosts, and knows those by address.
        host = f"127.0.0.{len(self._processes) + 1}"
        what = f"worker.Worker --host {host} {room} --webui-port 0 --work-dir {place} {self.master}"
        return self._start(name, before, what, hidden)

    def _start(self, name: str, before: str, what: str, alone: bool = False) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        place = self.far / name
        place.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            **self.server.environment(),
            "SPARK_HOME": str(home),
            "HAILSTORM_CACHE": str(place / "cache"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": quick()["SPARK_SUBMIT_OPTS"],
        }
        script = f"{before}exec {home}/bin/spark-class org.apache.spark.deploy.{what}"
        command = [*(["unshare", "-m", "--propagation", "private"] if alone else []), "bash", "-c", script]
        with (place / "output.txt").open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 to a worker and its executors: all that a machine takes with it. (Spark gives them one session.)"""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit() and int(fields[3]) == process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
        process.wait(PATIENCE)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.end(process)

    # The driver

    def environment(self) -> dict[str, str]:
        own = {"TMPDIR": str(self.near / "tmp"), "HAILSTORM_CACHE": str(self.near / "cache")}
        return {**os.environ, **quick(), **self.server.environment(), **own}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / "driver_process.py"), *words, "--master", self.master]
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.near, env=self.environment(), stdout=output, stderr=output, start_new_session=True
            )
        self._processes.append(process)
        return process

    def run(self, *words: str, code: int = 0) -> str:
        """What a command said that ended so."""
        process = self.start(*words)
        process.wait(2 * PATIENCE)  # it waits for executors, which start when it asks for them
        assert process.returncode == code, self.said()
        return self.said()

    @property
    def output(self) -> Path:
        return self.near / "output.txt"

    def said(self) -> str:
        return self.output.read_text(errors="replace")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Cluster]:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root may have mount namespaces")
    made = Cluster(tmp_path_factory.mktemp("cluster"), s3_server)
    try:
        made.workers = [made.add_worker("one"), made.add_worker("two")]
        wait_for(lambda: "Registering worker" in (made.far / "master/output.txt").read_text(), "a worker")
        yield made
    finally:
        made.close()
