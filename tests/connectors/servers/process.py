"""A server of the tests as a process: it is started, waited for, and ended."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_START_SECONDS = 120.0


@contextmanager
def running(
    command: Sequence[str], is_ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """What it says is kept from the screen, and told when it does not start."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not is_ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {output.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.kill()
            process.wait()
