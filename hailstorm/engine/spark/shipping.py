"""Lets Spark's workers have the user's code. `compile_topology` calls this before it makes any plan.

Workers import what a function's module is called, and an app file is not installed anywhere that they look. So the
modules from the app's folder go with the functions, by value; what is installed is imported by the workers.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

_PATHS = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
# As texts: of a thousand modules, paths take a tenth of a second to compare. Hailstorm itself is the first.
_INSTALLED = tuple(os.path.join(place, "") for place in (str(Path(__file__).parents[2]), *_PATHS))


def ship_by_value(folder: Path) -> None:
    """Pickle what comes from modules of this folder by value, from now on."""
    inside = os.path.join(folder, "")
    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # An environment or Hailstorm may lie inside the folder, as in this repository.
        if file is not None and file.startswith(inside) and not file.startswith(_INSTALLED):
            register(module)
