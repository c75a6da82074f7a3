"""Deletion vectors: which rows of a published file are out of date, in the format of the Delta protocol.

A vector is a roaring bitmap of row numbers. All vectors that one publication changes are in one file; each has a
descriptor with its place there. `publishing.py` is the only caller.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping

import msgspec
from pyroaring import BitMap64

from hailstorm.ledger.stores.store import Store

_FORMAT = b"\x01"
_MAGIC = struct.pack("<i", 1681511377)
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_RELATIVE = "u"  # a file beside the data files, named for its uuid


class DeletionVector(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a vector is."""

    storage_type: str
    path_or_inline_dv: str
    offset: int
    size_in_bytes: int
    cardinality: int

    @property
    def file(self) -> str:
        return _file_name(uuid.UUID(bytes=_from_z85(self.path_or_inline_dv)))


def write_vectors(store: Store, folder: str, bitmaps: Mapping[str, BitMap64]) -> dict[str, DeletionVector]:
    """One file with all these bitmaps, durably. The descriptors, by the same names; nothing for empty ones."""
    id_ = uuid.uuid4()
    content, vectors = bytearray(_FORMAT), {}
    for name, bitmap in bitmaps.items():
        if not bitmap:
            continue
        data = _MAGIC + bitmap.serialize()
        vectors[name] = DeletionVector(
            storage_type=_RELATIVE,
            path_or_inline_dv=_to_z85(id_.bytes),
            offset=len(content),
            size_in_bytes=len(data),
            cardinality=len(bitmap),
        )
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    if vectors:
        store.put(f"{folder}/{_file_name(id_)}", bytes(content))
    return vectors


def read_vector(store: Store, folder: str, vector: DeletionVector) -> BitMap64:
    """The bitmap behind a descriptor. Raises ValueError when the file is not what it should be."""
    content = store.get(f"{folder}/{vector.file}") or b""
    start = vector.offset + 4
    data = content[start : start + vector.size_in_bytes]
    checksum = content[start + len(data) : start + len(data) + 4]
    if not data.startswith(_MAGIC) or checksum != struct.pack(">I", zlib.crc32(data)):
        raise ValueError(f"{vector.file} is damaged")
    return BitMap64.deserialize(data[len(_MAGIC) :])


def _file_name(id_: uuid.UUID) -> str:
    return f"deletion_vector_{id_}.bin"


def _to_z85(data: bytes) -> str:
    """Base85 as ZeroMQ does it, which Delta uses for the name of the file."""
    text = ""
    for number in struct.unpack(f">{len(data) // 4}I", data):
        text += "".join(_Z85[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text


def _from_z85(text: str) -> bytes:
    digits = [_Z85.index(character) for character in text]
    numbers = [sum(digits[at + 4 - place] * 85**place for place in range(5)) for at in range(0, len(digits), 5)]
    return struct.pack(f">{len(numbers)}I", *numbers)
