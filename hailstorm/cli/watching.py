"""What long work is doing, on stderr: one line that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hailstorm.cli.doctor import require_java
from hailstorm.cli.output import err
from hailstorm.cli.target import find_ledger

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


def ready_to_look_back(app: str, ledger: str | None) -> None:
    """Before Spark starts: say that there is no ledger, or no Java. What comes then works beside a topology that comes
    first: it has a low priority, and so has Spark when it starts it."""
    if ledger is None:
        find_ledger(app)
    require_java()
    with suppress(OSError):
        os.nice(_NICE)
