"""One's own decoder: a pure function from bytes to a dict, several dicts, or None to pass the record over.

What it raises makes the record bad; so does a column that the schema does not have, and a value that does not fit
its column exactly: a typing mistake must not become a column of nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hailstorm.errors import suggestion
from hailstorm.spouts.decode.decoder import Decoded, Decoder, without
from hailstorm.topology.arrow_types import Columns
from hailstorm.topology.exact_values import exact_array, exact_value

Dicts = list[Mapping[str, Any]]


class FunctionDecoder(Decoder):
    def __init__(self, function: Callable[[bytes], Any], columns: Columns) -> None:
        super().__init__(columns)
        self.function = function

    def decode(self, values: pa.BinaryArray) -> Decoded:
        dicts: Dicts = []
        origin: list[int] = []
        bad: dict[int, str] = {}
        known = set(self.schema.names)
        for index, value in enumerate(values.to_pylist()):
            try:
                made = self._dicts(self.function(value), known)
            except Exception as error:  # user code: whatever it raises belongs to this record alone
                bad[index] = f"{type(error).__name__}: {error}"
                continue
            dicts += made
            origin += [index] * len(made)
        columns = [_exact(field, [row.get(field.name) for row in dicts], origin, bad) for field in self.schema]
        return without(self.rows(columns, len(dicts)), np.array(origin, np.int64), bad)

    def _dicts(self, made: Any, known: set[str]) -> Dicts:
        if made is None:
            return []
        rows = [made] if isinstance(made, Mapping) else list(made) if isinstance(made, Iterable) else [made]
        for row in rows:
            if not isinstance(row, Mapping):
                raise TypeError(f"the decoder gave {type(row).__name__}, not a dict")
            for name in row:
                if name not in known:
                    raise ValueError(f"the schema has no column '{name}'. {suggestion(str(name), known)}".strip())
        return rows


def _exact(field: pa.Field, values: list[Any], origin: list[int], bad: dict[int, str]) -> pa.Array:
    """The values as a column. One that it does not hold exactly makes its record bad, and is null here."""
    try:
        return exact_array(values, field.type, field.name)
    except Exception:  # a Misfit; or what a value of any class may raise
        for place, value in enumerate(values):
            try:
                exact_value(value, field.type, field.name)
            except Exception as misfit:
                bad.setdefault(origin[place], str(misfit))
                values[place] = None
        return exact_array(values, field.type, field.name)
