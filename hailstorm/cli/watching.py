"""What long work is doing, on stderr: one line that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hailstorm.cli.output import err

_EVERY = 5.0  # seconds
_NICE = 10


@contextmanager
def watching() -> Iterator[Callable[[str], None]]:
    """Something to tell what is being done."""
    if err.is_terminal:
        with err.status("") as status:
            yield status.update
        return
    began = time.monotonic()
    last = began

    def tell(message: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            err.print(f"{last - began:,.0f} s: {message}", markup=False)

    yield tell


def yield_to_runs() -> None:
    """This process, and Spark when it starts it, works beside a topology that comes first."""
    with suppress(OSError):
        os.nice(_NICE)
