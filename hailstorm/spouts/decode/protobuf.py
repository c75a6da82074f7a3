"""Protobuf: `decode=hs.Protobuf("tweet.proto", "Tweet")`, or with `registry=` for Confluent's wire format.

A `.proto` file is compiled when the topology is built; any other file is a compiled descriptor set
(`protoc --include_imports --descriptor_set_out`). Extra `protobuf`.
"""

from __future__ import annotations

import functools
import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hailstorm.errors import Location, TopologyError, suggestion
from hailstorm.spouts.decode.avro import check_fields
from hailstorm.spouts.decode.format import Format, file_beside_app, missing_package, unframed
from hailstorm.spouts.decode.registry import written
from hailstorm.topology.arrow_types import Columns

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Protobuf(Format):
    """`message` is the full name of the records' type; it may be left out where the file or the record tells it.

    Enums are their names, `Timestamp` is a TIMESTAMP, the wrapper types are the values in them. A field that a record
    does not have is null where Protobuf can tell that from the default (`optional`, messages, `oneof`).
    """

    file: str | Path | None = None
    message: str | None = None
    registry: str | None = field(default=None, repr=False)  # where the schemas are is not what the records mean
    descriptors: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        if (self.file is None) == (self.registry is None):
            raise TopologyError(
                66, "Protobuf needs a schema file or a registry=, and only one of these", at=Location.of_caller()
            )
        _library("descriptor_pool")
        if self.file is None:
            return
        path = file_beside_app(self.file)
        if path.suffix == ".proto":
            descriptors = _compiled(path.name, ((path.name, path.read_text(encoding="utf-8")),), path.parent)
        else:
            descriptors = path.read_bytes()
        object.__setattr__(self, "descriptors", descriptors)
        try:
            types = _types(descriptors)
        except Exception as error:  # whatever the parser makes of a file of another kind
            raise TopologyError(
                67, f"{self.file} is not a set of Protobuf descriptors: {error}", at=Location.of_caller()
            ) from None
        if self.message is None:
            if len(types) != 1:
                raise TopologyError(
                    69, f"{self.file} has several messages; say which", at=Location.of_caller(), hint=", ".join(types)
                )
            object.__setattr__(self, "message", next(iter(types)))
        elif self.message not in types:
            hint = f"It has: {', '.join(types)}. {suggestion(self.message, types)}".rstrip()
            raise TopologyError(69, f"{self.file} has no message '{self.message}'", at=Location.of_caller(), hint=hint)

    def __call__(self, value: bytes) -> Mapping[str, Any]:
        if self.registry is None:
            kind = _types(self.descriptors)[self.message or ""]
        else:
            id, value = unframed(value)
            descriptors, name = _written(self.registry, id)
            indexes, value = _indexes(value)
            kind = _type_at(descriptors, name, indexes)
            if self.message is not None and kind.DESCRIPTOR.full_name != self.message:
                raise ValueError(f"it is a {kind.DESCRIPTOR.full_name}, not a {self.message}")
        return _fields(kind.FromString(value))

    def check(self, columns: Columns) -> None:
        if self.descriptors:
            kind = _types(self.descriptors)[self.message or ""]
            check_fields("Protobuf", str(self.file), [inner.name for inner in kind.DESCRIPTOR.fields], columns)


# --- from a message to plain values


def _fields(message: Any) -> dict[str, Any]:
    return {inner.name: _value(message, inner) for inner in message.DESCRIPTOR.fields}


def _value(message: Any, about: Any) -> Any:
    if about.is_repeated:
        content = getattr(message, about.name)
        entry = about.message_type
        if entry is not None and entry.GetOptions().map_entry:
            plain = _plain(entry.fields_by_name["value"])
            return {key: plain(content[key]) for key in content}
        return [_plain(about)(inner) for inner in content]
    if about.has_presence and not message.HasField(about.name):
        return None
    return _plain(about)(getattr(message, about.name))


def _plain(about: Any) -> Callable[[Any], Any]:
    """What makes a plain value of a field's content."""
    if about.enum_type is not None:
        names = about.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    if about.message_type is None:
        return lambda value: value
    name = about.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return lambda time: _EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return lambda wrapped: wrapped.value
    return _fields


# --- from a schema to types


@functools.lru_cache(maxsize=64)
def _types(descriptors: bytes) -> dict[str, Any]:
    """The message types of the last file of the set (the others are what it imports), by full name."""
    files = _library("descriptor_pb2").FileDescriptorSet.FromString(descriptors).file
    pool = _library("descriptor_pool").DescriptorPool()
    for file in files:
        pool.Add(file)
    described = pool.FindFileByName(files[-1].name)
    make = _library("message_factory").GetMessageClass
    return {kind.full_name: make(kind) for kind in _with_nested(described.message_types_by_name.values())}


def _with_nested(kinds: Any) -> list[Any]:
    return [
        one for kind in kinds if not kind.GetOptions().map_entry for one in (kind, *_with_nested(kind.nested_types))
    ]


@functools.lru_cache(maxsize=256)
def _type_at(descriptors: bytes, name: str, indexes: tuple[int, ...]) -> Any:
    """The type that a record's path names: the n-th message of the file, the m-th inside that, and so on."""
    files = {file.name: file for file in _library("descriptor_pb2").FileDescriptorSet.FromString(descriptors).file}
    file = files[name]
    kinds, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        names.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return _types(descriptors)[".".join(names)]


def _indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """The path at the head of a record: a count and so many numbers, each a zigzag varint; 0 alone is (0,)."""
    count, place = _varint(value, 0)
    if count == 0:
        return (0,), value[place:]
    numbers = []
    for _ in range(count):
        number, place = _varint(value, place)
        numbers.append(number)
    return tuple(numbers), value[place:]


def _varint(value: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place


@functools.lru_cache(maxsize=256)
def _written(registry: str, id: int) -> tuple[bytes, str]:
    schema = written(registry, id)
    if schema.kind != "PROTOBUF":
        raise ValueError(f"schema {id} is {schema.kind}, not PROTOBUF")
    name = f"hailstorm_schema_{id}.proto"
    return _compiled(name, (*schema.references, (name, schema.text)), None), name


def _compiled(name: str, texts: tuple[tuple[str, str], ...], beside: Path | None) -> bytes:
    """The descriptor set of one of these files. Imports are looked for among them, beside it, and in Google's own."""
    try:
        protoc = importlib.import_module("grpc_tools.protoc")
        own = Path(importlib.import_module("grpc_tools").__file__ or "").parent / "_proto"
    except ImportError as error:
        raise missing_package("a .proto file", "protobuf") from error
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts:
            (Path(folder) / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / file).write_text(text, encoding="utf-8")
        result = Path(folder) / "descriptors"
        around = [f"-I{beside}"] if beside is not None else []
        wanted = ["--include_imports", f"--descriptor_set_out={result}", name]
        if protoc.main(["protoc", f"-I{folder}", *around, f"-I{own}", *wanted]) != 0:
            raise TopologyError(67, f"{name} is not a Protobuf schema", hint="protoc says why on the error output.")
        return result.read_bytes()


def _library(module: str) -> Any:
    try:
        return importlib.import_module(f"google.protobuf.{module}")
    except ImportError as error:
        raise missing_package("Protobuf", "protobuf") from error
