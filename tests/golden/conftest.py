"""Golden files: what people see, as files that a reviewer reads in the diff.

`HAILSTORM_GOLDEN=write` writes what has changed; look at the diff before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def golden() -> Callable[[Path, str], None]:
    """Compare a text with its golden file."""

    def compare(file: Path, text: str) -> None:
        if os.environ.get("HAILSTORM_GOLDEN") == "write":
            file.write_text(text + "\n")
        assert file.exists(), f"{file.name} is not written yet: run with HAILSTORM_GOLDEN=write"
        assert text + "\n" == file.read_text()

    return compare
