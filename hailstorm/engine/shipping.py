"""Lets Spark's workers have the user's code. `compile_topology` calls this before it makes any plan.

Workers import what a function's module is called, and an app file is not installed anywhere that they look. So the
modules from the app's folder go with the functions, by value; what is installed is imported by the workers.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

_INSTALLED = (
    Path(__file__).parents[1],  # Hailstorm itself
    *(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def ship_by_value(folder: Path) -> None:
    """Pickle what comes from modules of this folder by value, from now on."""
    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and _is_own(Path(file), folder):
            register(module)


def _is_own(file: Path, folder: Path) -> bool:
    # An environment or Hailstorm may lie inside the folder, as in this repository.
    return file.is_relative_to(folder) and not any(file.is_relative_to(place) for place in _INSTALLED)
