"""Formats with a schema of their own: Avro and Protobuf. What `decode=` takes instead of a name.

A format turns the bytes of one record into a dict by its own schema; the decoder here picks the columns of the spout's
schema from it. Fields that the spout does not name are ignored, as in JSON, and a missing one is null.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hailstorm.errors import HailstormError, Location, TopologyError
from hailstorm.spouts.decode.decoder import Decoded, Decoder, fitting, without
from hailstorm.topology.arrow_types import Columns


class Format(ABC):
    """A value that travels to the tasks. It may be called like a decode function."""

    @abstractmethod
    def __call__(self, value: bytes) -> Mapping[str, Any]:
        """The fields of one record. Raises LogError when nothing can be read now, anything else for a bad record."""

    @abstractmethod
    def check(self, columns: Columns) -> None:
        """Refuse columns that no record of this format can have."""


class FormatDecoder(Decoder):
    def __init__(self, format: Format, columns: Columns) -> None:
        super().__init__(columns)
        format.check(columns)
        self.format = format

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows: list[Mapping[str, Any]] = []
        origin: list[int] = []
        bad: dict[int, str] = {}
        for index, value in enumerate(values.to_pylist()):
            try:
                if value is None:
                    raise ValueError("the value is null")
                rows.append(self.format(value))
                origin.append(index)
            except HailstormError:  # the registry is down: no fault of this record
                raise
            except Exception as error:  # what the libraries raise for bytes that are not theirs is not documented
                bad[index] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        columns = [
            fitting(field, [_fitted(row.get(field.name), field.type) for row in rows], origin, bad)
            for field in self.schema
        ]
        return without(self.rows(columns, len(rows)), np.array(origin, np.int64), bad)


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """Maps as Arrow takes them, also inside lists and structs."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind) and isinstance(value, Mapping):
        return [(key, _fitted(inner, kind.item_type)) for key, inner in value.items()]
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_fitted(inner, kind.value_type) for inner in value]
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {inner.name: _fitted(value.get(inner.name), inner.type) for inner in kind}
    return value


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's id and the rest, of a record in Confluent's wire format."""
    if len(value) < 5 or value[0] != 0:
        raise ValueError("it does not begin with a schema id (Confluent's wire format)")
    return struct.unpack_from(">I", value, 1)[0], value[5:]


def file_beside_app(name: str | Path) -> Path:
    """A file that the user names, taken from the folder of the file in which it is named."""
    here = Path(Location.of_caller().file)
    path = (here.parent / name) if here.is_file() else Path(name)
    if not path.is_file():
        raise TopologyError(64, f"there is no schema file {path}", at=Location.of_caller())
    return path


def missing_package(what: str, extra: str) -> TopologyError:
    return TopologyError(65, f"{what} needs a package that is missing", hint=f"pip install 'hailstorm[{extra}]'")
