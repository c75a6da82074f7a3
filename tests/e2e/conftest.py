"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from tests.jvm import quick


@pytest.fixture(autouse=True)
def quick_jvms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run for seconds: their JVMs do without the second compiler."""
    for name, value in quick().items():
        monkeypatch.setenv(name, value)
