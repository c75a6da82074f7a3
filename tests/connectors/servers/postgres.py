"""A real PostgreSQL for the tests: one cluster in a temporary folder, on a free loopback port, with passwords.

    with PostgresServer.start() as server: ...server.database()...

It may not run as root, so root starts it as the user `postgres`. It is stopped by its process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.connectors.servers.install import find_program
from tests.connectors.servers.kafka import free_ports
from tests.connectors.tally import suffered

USER, PASSWORD = "storm", "hail-and-rain"
_START_SECONDS = 60.0
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_buffers = 32MB
max_connections = 50
fsync = off
autovacuum = off
"""  # fsync is for power cuts; what the tests kill is processes, and the kernel keeps what those wrote


@dataclass
class PostgresServer:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    databases: int = 0
    starts: int = 0

    @staticmethod
    @contextmanager
    def start() -> Iterator[PostgresServer]:
        folder = Path(tempfile.mkdtemp(prefix="hailstorm-postgres-"))
        (port,) = free_ports(1)
        server = PostgresServer(folder, port)
        try:
            server._create()
            server.run()
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The address of a new, empty database."""
        self.databases += 1
        name = f"test_{self.databases}"
        self.query("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def query(self, database: str, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """What plain SQL says, on a connection of its own; `database` is a name or an address."""
        url = database if "://" in database else self.url(database)
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def run(self) -> None:
        assert self.process is None
        if self.starts:
            suffered("Postgres restarted")
        self.starts += 1
        log = open(self.folder / "log", "ab")  # noqa: SIM115 - the server writes to it
        command = [_program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        self.process = subprocess.Popen(_as_postgres(command), stdout=log, stderr=log, cwd="/")
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all sessions and stops in order; SIGQUIT stops at once, as a crash would."""
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.wait(30)
        self.process = None

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        self.stop(how)
        self.run()

    def _create(self) -> None:
        if os.geteuid() == 0:
            find_program("postgres", "postgresql", "usr/lib/postgresql/*/bin")  # its package makes the user
            shutil.chown(self.folder, "postgres", "postgres")
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        command = [_program("initdb"), "-D", str(self.folder / "data"), "-U", USER, "--pwfile", str(password)]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(_as_postgres(command), check=True, stdout=subprocess.DEVNULL, cwd="/")
        with open(self.folder / "data" / "postgresql.conf", "a") as settings:
            settings.write(_SETTINGS)


def _program(name: str) -> str:
    return find_program(name, "postgresql", "usr/lib/postgresql/*/bin")


def _as_postgres(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]
