"""A real Redis for the tests, on a free loopback port, with a password and everything written to a log file."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.connectors.servers.install import find_program
from tests.connectors.servers.kafka import free_ports
from tests.connectors.tally import suffered

PASSWORD = "hail-and-rain"
_START_SECONDS = 30.0


@dataclass
class RedisServer:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    starts: int = 0

    @staticmethod
    @contextmanager
    def start() -> Iterator[RedisServer]:
        folder = Path(tempfile.mkdtemp(prefix="hailstorm-redis-"))
        (port,) = free_ports(1)
        server = RedisServer(folder, port)
        try:
            server.run()
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def run(self) -> None:
        if self.starts:
            suffered("Redis restarted")
        self.starts += 1
        program = find_program("redis-server", "redis-server")
        options = {"port": self.port, "bind": "127.0.0.1", "requirepass": PASSWORD, "dir": self.folder}
        options |= {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory": "64mb"}
        command = [program, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.wait(30)
        self.process = None

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.stop(how)
        self.run()
