"""What a sink holds while it is open.

A sink is a frozen value: it is compared, pickled and copied with the topology. Its connection is none of these
things, so it lives in a slot beside the value, and every copy of the sink starts with an empty slot.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Session(Generic[T]):
    """A slot that is filled by `open` and emptied by `close`."""

    def __init__(self) -> None:
        self._held: T | None = None

    def begin(self, held: T) -> None:
        self._held = held

    def get(self) -> T:
        if self._held is None:
            raise RuntimeError("the sink is not open")
        return self._held

    def end(self) -> T | None:
        """Empty the slot; gives what was in it, so that it can be closed."""
        held, self._held = self._held, None
        return held

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def __reduce__(self) -> tuple[type[Session[Any]], tuple[()]]:
        return Session, ()
