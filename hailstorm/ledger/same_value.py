"""Equality of two single values, as Python has them: what `equality.py` is for columns. Without Arrow's functions,
which take long to load for who reads one key."""

from __future__ import annotations

import math
from typing import Any


def same_value(one: Any, other: Any) -> bool:
    """Nulls are the same, and so is NaN, at any depth; 0.0 and -0.0 are."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    return bool(one == other)
