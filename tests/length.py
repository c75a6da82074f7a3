"""How long a test is: what is drawn at random has a short form, and a long one that only `make soak` runs."""

from __future__ import annotations

import os
from typing import Any

import pytest


def seeds(short: int, long: int) -> list[Any]:
    """For `parametrize`: so many always, and so many in all in the long form."""
    return [*range(short), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(short, long))]


def only_long(*values: Any, name: str | None = None) -> Any:
    """For `parametrize`: a case of the long form only."""
    return pytest.param(*values, id=name, marks=pytest.mark.soak)


def is_long() -> bool:
    """Whether this is the long form."""
    return bool(os.environ.get("HAILSTORM_SOAK"))


def examples(short: int, long: int) -> int:
    """For hypothesis' `max_examples`, and for what a test draws by itself. A soak runs all tests of hypothesis: see
    `conftest.py`."""
    return long if is_long() else short
