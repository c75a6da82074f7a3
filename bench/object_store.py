"""The object store of the benches, on a free loopback port: MinIO, or moto where that cannot be had.

MinIO is a real server. Go builds it once, from its name alone, and keeps it where it keeps its programs. moto is the
server of the tests: it holds everything in memory, in one Python process, and says nothing about how long a store
takes. A result names the one that it is of.

`Traffic` is a proxy in front of either that counts. It is a Python process, too: what comes through it is slower.
"""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bench.peers.peer import scratch_folder
from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.s3 import BUCKET, SECRET, S3Server

MINIO = "github.com/minio/minio@latest"
_START_SECONDS = 120.0
_HOP = {"connection", "transfer-encoding", "keep-alive"}  # headers that are of one connection, and not of an answer

Say = Callable[[str], None]


@dataclass(frozen=True)
class ObjectStore:
    """Which server it is, and the process that it is."""

    name: str
    server: S3Server
    process: int | None  # None: it is not measured


@contextmanager
def object_store(say: Say) -> Iterator[ObjectStore]:
    with ExitStack() as stack:
        program = minio(say)
        if program is None:
            say("there is no MinIO, and no Go to build it: the store is moto")
            server = stack.enter_context(S3Server.start())
            yield ObjectStore(f"moto {version('moto')}", server, None)
        else:
            yield stack.enter_context(_minio_server(program))


def minio(say: Say) -> Path | None:
    """The program; built when it is not there yet, which takes some minutes. None where there is no Go."""
    go = shutil.which("go")
    found = shutil.which("minio")
    if found is not None or go is None:
        return None if found is None else Path(found)
    program = _programs_of(go) / "minio"
    if not program.exists():
        say(f"building MinIO: go install {MINIO}")
        subprocess.run([go, "install", MINIO], capture_output=True, check=False)
    return program if program.exists() else None


def _programs_of(go: str) -> Path:
    """Where Go puts what it installs."""
    said = subprocess.run([go, "env", "GOBIN", "GOPATH"], capture_output=True, text=True, check=True).stdout
    own, place = said.split("\n")[:2]
    return Path(own) if own else Path(place.split(os.pathsep)[0]) / "bin"


@contextmanager
def _minio_server(program: Path) -> Iterator[ObjectStore]:
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout.split()
    folder, (port,) = scratch_folder("minio"), free_ports(1)
    own = {"MINIO_ROOT_USER": "hailstorm", "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    command = [str(program), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _is_ready(port):
                output.seek(0)
                assert process.poll() is None and time.monotonic() < deadline, f"MinIO: {output.read()[-2000:]}"
                time.sleep(0.1)
            server = S3Server(port)
            _make_bucket(server)
            yield ObjectStore(f"MinIO {' '.join(said[2:3])}".strip(), server, process.pid)
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/minio/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _make_bucket(server: S3Server) -> None:
    """Through moto's own client: obstore makes no buckets."""
    import boto3

    known = server.environment()
    client = boto3.client(
        "s3",
        endpoint_url=known["AWS_ENDPOINT_URL"],
        aws_access_key_id=known["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=known["AWS_SECRET_ACCESS_KEY"],
        region_name=known["AWS_REGION"],
    )
    client.create_bucket(Bucket=BUCKET)


def kind_of(method: str, path: str) -> str:
    """What a request is, as S3 counts them for its bill."""
    asked = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "GET" and ("list-type" in asked or "prefix" in asked):
        return "LIST"
    return "DELETE" if method == "POST" and "delete" in asked else method


def folder_of(path: str) -> str:
    """What of a ledger it is about: `state`, `commits`, ... The address is /bucket/ledger/folder/..."""
    parts = urlsplit(path).path.strip("/").split("/")
    return parts[2] if len(parts) > 3 else "/".join(parts[2:3])


@dataclass(frozen=True)
class Counted:
    """Requests by kind, and bytes that were read, by the folder of the ledger."""

    requests: Counter[str]
    read: Counter[str]

    def __sub__(self, before: Counted) -> Counted:
        return Counted(self.requests - before.requests, self.read - before.read)

    @property
    def bytes_read(self) -> int:
        return sum(self.read.values())


class Traffic:
    """Passes requests on to a server on this machine, and counts them."""

    def __init__(self, target: int) -> None:
        self._requests, self._read = Counter[str](), Counter[str]()
        self._counting = threading.Lock()
        traffic = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                onward = http.client.HTTPConnection("127.0.0.1", target, timeout=120)
                onward.request(self.command, self.path, body, dict(self.headers))
                found = onward.getresponse()
                content = found.read()
                onward.close()
                traffic._count(self.command, self.path, len(content))
                length = found.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                self.send_response_only(found.status)
                for name, value in found.getheaders():
                    if name.lower() not in {*_HOP, "content-length"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    @contextmanager
    def to(target: int) -> Iterator[Traffic]:
        traffic = Traffic(target)
        try:
            yield traffic
        finally:
            traffic._server.shutdown()
            traffic._server.server_close()

    def counted(self) -> Counted:
        """From the beginning until now."""
        with self._counting:
            return Counted(Counter(self._requests), Counter(self._read))

    def _count(self, method: str, path: str, size: int) -> None:
        with self._counting:
            self._requests[kind_of(method, path)] += 1
            if method == "GET":
                self._read[folder_of(path)] += size
