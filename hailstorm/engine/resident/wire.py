"""The wire between the driver and a resident worker: frames, and how both ends prove who they are.

A frame is its length in four bytes, and so many bytes. Nothing that comes over the wire is unpickled, and no frame is
taken before the other end has proved that it knows the secret of this worker. The secret itself is never sent here: it
travels with the Spark task, as the code does.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

LARGEST_FRAME = 256 << 20
_HEAD = struct.Struct("!I")
_NONCE = 32
_LARGEST_GREETING = 1_024  # of somebody who has proved nothing yet
_PIECE = 1 << 16


class HasFileno(Protocol):
    """What can be waited for."""

    def fileno(self) -> int: ...


def ready(seconds: float, *those: HasFileno) -> list[int]:
    """The numbers of those that have something to read, or have ended, as soon as one has; none when time is over."""
    poll = select.poll()
    for one in those:
        poll.register(one, select.POLLIN)
    return [number for number, _ in poll.poll(seconds * 1000)]


class HungUp(Exception):
    """The other end is gone, silent for too long, or not who it should be. This wire is of no more use."""


class Wire:
    """`patience`: after so many seconds of silence the other end counts as gone; None: never.

    Several threads may send; one receives.
    """

    def __init__(self, connection: socket.socket, patience: float | None) -> None:
        connection.settimeout(patience)
        self._connection, self._patience = connection, patience
        self._sending = threading.Lock()
        self._got = bytearray()
        self._largest = _LARGEST_GREETING

    def send(self, *frames: bytes) -> None:
        """Frames that come one after another, whoever else sends."""
        for frame in frames:
            if len(frame) > self._largest:
                raise HungUp(f"a frame of {len(frame):,} bytes is too large to be sent")
        try:
            with self._sending:
                self._connection.sendall(b"".join(_HEAD.pack(len(frame)) + frame for frame in frames))
        except OSError as error:
            raise self._hung_up(error) from error

    def receive(self) -> bytes:
        """The next frame, however long that takes within the patience."""
        while True:
            if len(self._got) >= _HEAD.size:
                (size,) = _HEAD.unpack_from(self._got)
                if size > self._largest:
                    raise HungUp(f"a frame of {size:,} bytes is too large to be true")
                end = _HEAD.size + size
                if len(self._got) >= end:
                    frame = bytes(self._got[_HEAD.size : end])
                    del self._got[:end]
                    return frame
            try:
                piece = self._connection.recv(_PIECE)
            except OSError as error:
                raise self._hung_up(error) from error
            if not piece:
                raise HungUp("it has hung up")
            self._got += piece

    def has_news(self, seconds: float, others: Sequence[HasFileno] = ()) -> bool:
        """Whether a frame, or the end, comes within so many seconds, before any of the others has something to read."""
        if self._got:
            return True
        try:
            return self._connection.fileno() in ready(seconds, self._connection, *others)
        except (OSError, ValueError):  # closed by us
            return True

    def hang_up(self) -> None:
        """End it from any thread: whoever receives hears that at once. It must still be closed."""
        with suppress(OSError):  # the other end was sooner
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def admit(self, secret: bytes) -> None:
        """The driver's half of the greeting: the worker proves that it knows the secret, then we do."""
        ours = secrets.token_bytes(_NONCE)
        self.send(ours)
        answer = self.receive()
        proof, theirs = answer[:-_NONCE], answer[-_NONCE:]
        if not hmac.compare_digest(proof, _proof(secret, b"worker", ours, theirs)):
            raise HungUp("it does not know the secret")
        self.send(_proof(secret, b"driver", ours, theirs))
        self._largest = LARGEST_FRAME

    def introduce(self, secret: bytes) -> None:
        """The worker's half."""
        theirs, ours = self.receive(), secrets.token_bytes(_NONCE)
        self.send(_proof(secret, b"worker", theirs, ours) + ours)
        if not hmac.compare_digest(self.receive(), _proof(secret, b"driver", theirs, ours)):
            raise HungUp("it does not know the secret")
        self._largest = LARGEST_FRAME

    def _hung_up(self, error: OSError) -> HungUp:
        if isinstance(error, TimeoutError):
            return HungUp(f"it has been silent for {self._patience:g} s")
        return HungUp(error.strerror or str(error))


def _proof(secret: bytes, role: bytes, challenge: bytes, other: bytes) -> bytes:
    """Both nonces are in it, so that no answer can be used again, and the role, so that none can be sent back."""
    return hmac.digest(secret, b"hailstorm resident " + role + challenge + other, "sha256")
