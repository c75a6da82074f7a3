"""Python's collector of cycles, out of the way while many small objects are made that have none.

It would look through all of them again and again while their number grows: a third of the time of reading from Kafka,
and of a small bolt.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """No collection inside. What has become garbage meanwhile is collected later, as ever."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
