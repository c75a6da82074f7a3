"""Which parts of a whole fail by themselves: found by halving what fails until it cannot be halved.

Used where only a try can tell: a user's function over a batch, a Spark job over an interval, a reader of many records,
a target that takes many rows at once. It imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Part = TypeVar("Part")
Failure = TypeVar("Failure")


def failing_parts(
    parts: Sequence[Part], attempt: Callable[[Part], Failure | None], halves: Callable[[Part], Sequence[Part]]
) -> Iterator[tuple[Part, Failure]]:
    """The smallest parts that fail, in order, each with why. Parts are tried first to last, so `attempt` may collect.

    `halves` gives two smaller parts, or nothing when a part is as small as can be.
    """
    open_ = list(reversed(parts))
    while open_:
        part = open_.pop()
        failure = attempt(part)
        if failure is not None:
            smaller = halves(part)
            open_.extend(reversed(smaller))
            if not smaller:
                yield part, failure


def halved(part: range) -> tuple[range, ...]:
    """For parts that are places in a row: two shorter ones, or nothing when there is one place."""
    middle = len(part) // 2
    return (part[:middle], part[middle:]) if middle else ()
