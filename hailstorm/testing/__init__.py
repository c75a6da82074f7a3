"""The test kit: a driver for topologies, and the laws of monoids. Users import it; so do our own tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hailstorm.testing.driver import Driver as Driver
    from hailstorm.testing.laws import check_laws as check_laws

_HOMES = {"Driver": "driver", "check_laws": "laws"}

__all__ = ["Driver", "check_laws"]


if not TYPE_CHECKING:  # for type checkers the names above are all there are

    def __getattr__(name):
        # The driver needs Spark and the laws need hypothesis: neither is loaded for the sake of the other.
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
