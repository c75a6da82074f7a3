"""Commands that only read start half a second sooner without pandas.

pyarrow imports pandas, where it is installed, when the first array is made: the array might be made of a Series. Who
asks for pandas itself (`to_pandas`, an app that imports it) gets it all the same.
"""

from __future__ import annotations

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
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
