"""A small TCP proxy that cuts connections: between a sink and its server, to see what happens to a delivery."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.connectors.tally import suffered


class Proxy:
    """Listens on `port` and passes everything on. `cut` ends all connections; `cut_after` does so by itself."""

    def __init__(self, target: int, port: int = 0) -> None:
        self.target = target
        self.refusing = False
        self.cuts = 0  # of all connections at once
        self.mute_after_commit = False  # the next COMMIT reaches the server, and its answer does not come back
        self._muted = False
        self._left: int | None = None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @staticmethod
    @contextmanager
    def to(target: int, port: int = 0) -> Iterator[Proxy]:
        proxy = Proxy(target, port)
        try:
            yield proxy
        finally:
            # close alone would not wake the thread that waits in accept
            with suppress(OSError):
                proxy._listener.shutdown(socket.SHUT_RDWR)
            proxy._listener.close()
            suffered("connection cut", proxy.cuts)
            proxy.cut()

    def cut_after(self, count: int) -> None:
        """End all connections once the client has sent so many bytes more."""
        with self._lock:
            self._left = count

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs, self._left = self._pairs, [], None
            self.cuts += bool(pairs)
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.target))
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if counted and self._is_spent(len(data)):
                    self.cut()
                    return
                if counted and self.mute_after_commit and b"COMMIT" in data:
                    self.mute_after_commit, self._muted = False, True
                elif not counted and self._muted:
                    self._muted = False
                    self.cut()
                    return
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def _is_spent(self, count: int) -> bool:
        with self._lock:
            if self._left is None:
                return False
            self._left -= count
            return self._left < 0
