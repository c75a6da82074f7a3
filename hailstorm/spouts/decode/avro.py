"""Avro: `decode=hs.Avro("tweet.avsc")`, or `hs.Avro(registry="http://…")` for Confluent's wire format. Extra `avro`."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hailstorm.errors import Location, TopologyError, suggestion
from hailstorm.spouts.decode.format import Format, file_beside_app, missing_package, unframed
from hailstorm.spouts.decode.registry import written
from hailstorm.topology.arrow_types import Columns


@dataclass(frozen=True)
class Avro(Format):
    """With a file alone, a record is the bare Avro value that this schema wrote. With a registry, it begins with the id
    of its schema; a file is then what the record is read as, by Avro's rules of schema resolution.

    The file is read when the topology is built, and its text travels to the tasks.
    """

    file: str | Path | None = None
    registry: str | None = field(default=None, repr=False)  # where the schemas are is not what the records mean
    text: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.file is None and self.registry is None:
            raise TopologyError(66, "Avro needs a schema file or a registry=", at=Location.of_caller())
        _fastavro()
        if self.file is not None:
            text = file_beside_app(self.file).read_text(encoding="utf-8")
            object.__setattr__(self, "text", text)
            try:
                own = _parsed(text, ())
            except Exception as error:  # fastavro has no common class of errors
                raise TopologyError(
                    67, f"{self.file} is not an Avro schema: {error}", at=Location.of_caller()
                ) from None
            if own.get("type") != "record":
                raise TopologyError(67, f"{self.file} is not the schema of a record", at=Location.of_caller())

    def __call__(self, value: bytes) -> Mapping[str, Any]:
        own = _parsed(self.text, ()) if self.text else None
        writer, reader = own, None
        if self.registry is not None:
            id, value = unframed(value)
            writer, reader = _written(self.registry, id), own
        body = io.BytesIO(value)
        found = _fastavro().schemaless_reader(body, writer, reader)
        if body.tell() != len(value):
            raise ValueError(f"{len(value) - body.tell()} bytes are left over: it was written with another schema")
        if not isinstance(found, Mapping):
            raise TypeError("it is not a record")
        return found

    def check(self, columns: Columns) -> None:
        if self.text:
            known = [inner["name"] for inner in _parsed(self.text, ())["fields"]]
            check_fields("Avro", str(self.file), known, columns)


def check_fields(kind: str, file: str, known: list[str], columns: Columns) -> None:
    for name, _ in columns:
        if name not in known:
            hint = f"It has: {', '.join(known)}. {suggestion(name, known)}".rstrip()
            raise TopologyError(68, f"the {kind} schema {file} has no field '{name}'", hint=hint)


@functools.lru_cache(maxsize=256)
def _written(registry: str, id: int) -> Any:
    schema = written(registry, id)
    if schema.kind != "AVRO":
        raise ValueError(f"schema {id} is {schema.kind}, not AVRO")
    return _parsed(schema.text, schema.references)


@functools.lru_cache(maxsize=256)
def _parsed(text: str, references: tuple[tuple[str, str], ...]) -> Any:
    named: dict[str, Any] = {}
    for _, inner in references:
        _fastavro().parse_schema(json.loads(inner), named_schemas=named)
    return _fastavro().parse_schema(json.loads(text), named_schemas=named)


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise missing_package("Avro", "avro") from error
    return fastavro
