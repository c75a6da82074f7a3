"""A small HTTP service for the tests: remembers what it was sent, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str]


@dataclass
class Request:
    key: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Receiver:
    """`answer(request)` gives a status and a text; before it answers 200, the rows count as received."""

    port: int = 0
    answer: Callable[[Request], Answer] = lambda request: (200, "")
    requests: list[Request] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # by idempotency key, so that repeats do nothing

    @staticmethod
    @contextmanager
    def start() -> Iterator[Receiver]:
        receiver = Receiver()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                request = Request(self.headers["Idempotency-Key"], dict(self.headers), body)
                receiver.requests.append(request)
                status, text = receiver.answer(request)
                if status == 200:
                    for row in body["rows"]:
                        receiver.rows.setdefault(row["key"], row)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        receiver.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
