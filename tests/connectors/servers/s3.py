"""A server that speaks as S3 does, for the tests: moto, on a free loopback port. And a proxy in front of it that is as
unkind as a store in the real world: it throttles, cuts, answers late, and answers nothing after it has acted."""

from __future__ import annotations

import http.client
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.process import running
from tests.connectors.tally import suffered

SECRET = "hail-and-thunder"
BUCKET = "storms"

# What is done to a request: None lets it pass.
Fault = Callable[[str, str], str | None]
Acted = Callable[[str, str, bytes, int], None]  # method, path, what was sent, and the status of the answer


@dataclass(frozen=True)
class S3Server:
    port: int

    @staticmethod
    @contextmanager
    def start() -> Iterator[S3Server]:
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = S3Server(port)
        with running(command, server._makes_bucket):
            yield server

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What a process needs to find it, directly or through another port."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "hailstorm",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def _makes_bucket(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", f"/{BUCKET}")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class UnkindProxy:
    """Passes requests on to a server, but for what `fault` says: `503`, `cut`, `lost` (it acts and does not answer),
    `503 after` (it acts and says that it did not), `half` (its answer breaks off), `late`, or `silent` (nothing happens
    until it is not asked for any more; then the connection is cut).

    `acted` hears of every request that the server has answered. While `fault` is asked, `caller.port` is that of the
    connection: who knows whose it is can hurt that process (`gone` is for all of them)."""

    def __init__(self, target: int) -> None:
        self.fault: Fault = lambda method, path: None
        self.acted: Acted = lambda method, path, body, status: None
        self.caller = threading.local()
        self.seen: list[tuple[str, str]] = []
        self._creating = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.seen.append((self.command, self.path))
                proxy.caller.port = self.client_address[1]
                what = proxy.fault(self.command, self.path)
                if what is not None:
                    suffered(f"store: {what}")
                self.close_connection = what in ("cut", "lost", "half", "silent")
                while what == "silent" and proxy.fault(self.command, self.path) == "silent":
                    time.sleep(0.05)
                if what in ("cut", "silent"):
                    return
                if what == "503":
                    self._say(503, [], b"<Error><Code>SlowDown</Code></Error>")
                    return
                # moto looks whether a file is there, and then makes it: of two at once, both may be told that they did.
                with proxy._creating if self.headers.get("If-None-Match") else nullcontext():
                    connection = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
                    connection.request(self.command, self.path, body, dict(self.headers))
                    found = connection.getresponse()
                    content = found.read()
                    connection.close()
                proxy.acted(self.command, self.path, body, found.status)
                if what == "lost":
                    return
                if what == "503 after":
                    self._say(503, [], b"<Error><Code>SlowDown</Code></Error>")
                    return
                if what == "late":
                    time.sleep(0.5)
                self._say(found.status, found.getheaders(), content, half=what == "half")

            def _say(self, status: int, headers: list[tuple[str, str]], content: bytes, half: bool = False) -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("connection", "transfer-encoding", "date", "server", "content-length"):
                        self.send_header(name, value)
                length = {name.lower(): value for name, value in headers}.get("content-length")
                self.send_header("Content-Length", str(length if self.command == "HEAD" and length else len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    with suppress(OSError):
                        self.wfile.write(content[: len(content) // 2] if half else content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        self._handler = Handler
        self.port = 0
        self._listen()

    def _listen(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Nobody is there: connections are cut, and new ones refused."""
        suffered("store: gone")
        before, self.fault = self.fault, lambda method, path: "cut"
        self._close()
        try:
            yield
        finally:
            self.fault = before
            self._listen()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @staticmethod
    @contextmanager
    def to(target: int) -> Iterator[UnkindProxy]:
        proxy = UnkindProxy(target)
        try:
            yield proxy
        finally:
            proxy._close()


@contextmanager
def known_here(environment: dict[str, str], cache: Path) -> Iterator[None]:
    """This process is one that finds the server, and keeps its copies in a folder of the test's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, "HAILSTORM_CACHE": str(cache)}.items():
            patch.setitem(os.environ, name, value)
        yield
