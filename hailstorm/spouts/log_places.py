"""Where an embedded log is: what it says of itself, how it is made, and its partitions. In a folder, or in a store.

`Log` is the only caller, and the only one that knows which of the two it is.
"""

from __future__ import annotations

import fcntl
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hailstorm.errors import LogError
from hailstorm.ledger.stores import is_folder, open_store
from hailstorm.spouts.durable import sync, write_whole
from hailstorm.spouts.object_segments import ObjectPartition
from hailstorm.spouts.segments import Partition, PartitionFolder

FORMAT = 1
_GROWTH_SECONDS = 1.0  # for which a store is not asked whether a log has more partitions by now

Said = Mapping[str, Any]  # format, partitions, id


class LogPlace(Protocol):
    def said(self) -> Said | None:
        """What the log says of itself. None when there is none."""

    def make(self, partitions: int) -> None:
        """The log is there afterwards, with an id and at least so many partitions. Others may do so at that time."""

    def partition(self, number: int) -> Partition | None:
        """None when the log has no such partition."""

    def folders(self) -> list[Path]:
        """Into which something is renamed whenever there is more; none where nobody would tell."""


def place_of(path: str) -> LogPlace:
    return FolderPlace(Path(path)) if is_folder(path) else ObjectPlace(path)


class FolderPlace:
    def __init__(self, root: Path) -> None:
        self._root = root

    def said(self) -> Said | None:
        try:
            said: Said = json.loads((self._root / "log.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return said

    def make(self, partitions: int) -> None:
        root = self._root
        if root.exists() and not root.is_dir():
            raise LogError(11, f"cannot make a log at {root}: it is a file", hint="A log is a folder.")
        root.mkdir(parents=True, exist_ok=True)
        with open(root / ".lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            said = self.said() or {"partitions": 0}
            if said["partitions"] >= partitions and "id" in said:
                return
            partitions = max(partitions, said["partitions"])
            for partition in range(partitions):
                (root / f"p{partition}").mkdir(exist_ok=True)
            write_whole(root / "log.json", _described(partitions, said.get("id")))
            sync(root.parent)

    def partition(self, number: int) -> PartitionFolder | None:
        folder = self._root / f"p{number}"
        return PartitionFolder(folder) if folder.is_dir() else None

    def folders(self) -> list[Path]:
        said = self.said()
        return [] if said is None else [self._root, *(self._root / f"p{n}" for n in range(said["partitions"]))]


class ObjectPlace:
    """`log.json` is made once, and so the log has one id. With more partitions there is `log.2.json`, then
    `log.3.json`: each is made by one, and says all that the one before it says."""

    def __init__(self, address: str) -> None:
        self._store = open_store(address)
        self._said: Said | None = None

    def said(self) -> Said | None:
        """Asked once: a place is for one look at a log, or one change of it."""
        self._said = self._said or self._asked()
        return self._said

    def _asked(self) -> Said | None:
        first = self._read(1)
        if first is None:
            return None
        known = _grown.get((self._store.address, first["id"]))
        if known is not None and time.monotonic() - known[0] < _GROWTH_SECONDS:
            return known[1]
        return self._grown(first)[1]

    def make(self, partitions: int) -> None:
        if self._read(1) is None:
            self._store.put_if_absent(self._name(1), _described(partitions, None))
        while True:
            first = self._read(1)
            if first is None:
                continue  # removed by somebody in this very moment
            version, said = self._grown(first)
            if said["partitions"] >= partitions:
                return
            self._store.put_if_absent(self._name(version + 1), _described(partitions, said["id"]))

    def partition(self, number: int) -> ObjectPartition | None:
        said = self.said()
        if said is None or not 0 <= number < said["partitions"]:
            return None
        return ObjectPartition(self._store, f"p{number}", said["id"])

    def folders(self) -> list[Path]:
        return []

    def _grown(self, said: Said) -> tuple[int, Said]:
        version = 1
        while (more := self._read(version + 1)) is not None and more["id"] == said["id"]:
            version, said = version + 1, more
        _grown[self._store.address, said["id"]] = time.monotonic(), said
        return version, said

    def _read(self, version: int) -> Said | None:
        data = self._store.get(self._name(version))
        return None if data is None else json.loads(data)

    def _name(self, version: int) -> str:
        return "log.json" if version == 1 else f"log.{version}.json"


# What this process has seen last of a log in a store, by address and id, and when.
_grown: dict[tuple[str, str], tuple[float, Said]] = {}


def _described(partitions: int, id: str | None) -> bytes:
    return json.dumps({"format": FORMAT, "partitions": partitions, "id": id or uuid.uuid4().hex}).encode()
