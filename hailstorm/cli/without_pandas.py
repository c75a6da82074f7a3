"""Commands that only read start half a second sooner without pandas.

pyarrow imports pandas, where it is installed, when the first array is made: the array might be made of a Series. Who
asks for pandas itself (`to_pandas`, an app that imports it) gets it all the same.
"""

from __future__ import annotations

import os
import sys


class _NoPandas:
    """A finder that knows better."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("not now")


def without_pandas() -> None:
    """Let pyarrow have looked for pandas, and not have found it."""
    if "pandas" in sys.modules:
        return
    _without_threads()
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


def little_memory() -> None:
    """For a few rows: Arrow's own pools take 20 MB from the system at once."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


def _without_threads() -> None:
    """Import numpy without the threads that it starts for linear algebra, of which a reader does none. What others
    start from here, such as Spark, may have theirs."""
    if "OPENBLAS_NUM_THREADS" in os.environ:
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
