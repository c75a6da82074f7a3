"""Every log passes the contract; each has a harness that appends as a user of that log would."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hailstorm.spouts import Files, Log, Rate, file_index, segments
from tests.connectors.log_contract import LogContract


@dataclass
class LogHarness:
    folder: Path
    partitions: int = 2
    ends: bool = True

    def make(self) -> Log:
        return Log(self.folder / "log", partitions=self.partitions)

    def append(self, rows: list[bytes], partition: int) -> None:
        self.make().append(rows, partition=partition)

    def remake(self) -> None:
        shutil.rmtree(self.folder / "log")

    def forget(self) -> list[Path]:
        segments._synced.clear()
        return [self.folder / "log/p0"]

    def expire(self) -> None:
        self.make().retain(records=40)


@dataclass
class RateHarness:
    """The log goes on by itself; to append is to wait until it has."""

    partitions: int = 2
    ends: bool = False
    start: datetime = field(default_factory=lambda: datetime.now(UTC))
    per_second: float = 400_000

    def make(self) -> Rate:
        return Rate(self.per_second, partitions=self.partitions, start=self.start)

    def remake(self) -> None:
        self.per_second *= 2

    def forget(self) -> list[Path]:
        pytest.skip("what is computed is on no disk")

    def append(self, rows: list[bytes], partition: int) -> None:
        wanted = self.make().latest()[partition] + len(rows)
        while self.make().latest()[partition] < wanted:
            time.sleep(0.001)

    def expire(self) -> None:
        pytest.skip("what is computed does not go away")


def squares(offsets: npt.NDArray[np.int64], partition: int) -> dict[str, npt.NDArray[np.int64]]:
    return {"n": offsets, "square": offsets * offsets + partition}


@dataclass
class LimitedRateHarness(RateHarness):
    """All its records are there from the beginning."""

    ends: bool = True
    start: datetime = datetime(2020, 1, 1, tzinfo=UTC)

    def make(self) -> Rate:
        return Rate(
            self.per_second,
            partitions=2,
            rows=squares,
            columns="n BIGINT, square BIGINT",
            start=self.start,
            limit=1_000_000,
        )

    def append(self, rows: list[bytes], partition: int) -> None:
        pass


@dataclass
class GrowingFileHarness:
    folder: Path
    partitions: int = 1
    ends: bool = True

    def make(self) -> Files:
        return Files(str(self.folder))

    def append(self, rows: list[bytes], partition: int) -> None:
        with open(self.folder / "a.jsonl", "ab") as file:
            file.write(b"".join(row + b"\n" for row in rows))
        self.make().latest()

    def remake(self) -> None:
        shutil.rmtree(self.folder / ".hailstorm-files")

    def forget(self) -> list[Path]:
        file_index._synced.clear()
        (index,) = (self.folder / ".hailstorm-files").iterdir()
        return [index, index / "chunks", index / "files.jsonl"]

    def expire(self) -> None:
        pytest.skip("files do not expire")


@dataclass
class ManyFilesHarness(GrowingFileHarness):
    """Each append is a file of its own, plain and gz in turn, with names that do not sort by age."""

    written: int = 0

    def append(self, rows: list[bytes], partition: int) -> None:
        self.written += 1
        name = f"{(self.written * 7919) % 1000:03d}.jsonl"
        hidden = self.folder / ".next"
        text = b"\n".join(rows) + b"\n"
        if self.written % 2:
            hidden.write_bytes(gzip.compress(text, 1))
            name += ".gz"
        else:
            hidden.write_bytes(text)
        os.rename(hidden, self.folder / name)
        self.make().latest()


class TestLog(LogContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> LogHarness:
        return LogHarness(tmp_path)


class TestRate(LogContract):
    @pytest.fixture
    def harness(self) -> RateHarness:
        return RateHarness()


class TestRateWithLimit(LogContract):
    @pytest.fixture
    def harness(self) -> LimitedRateHarness:
        return LimitedRateHarness()

    @pytest.fixture(autouse=True)
    def _is_whole(self, request: pytest.FixtureRequest) -> None:
        if "only_grow" in request.node.name:
            pytest.skip("all its records are there from the beginning")


class TestGrowingFile(LogContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> GrowingFileHarness:
        return GrowingFileHarness(tmp_path)


class TestManyFiles(LogContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ManyFilesHarness:
        return ManyFilesHarness(tmp_path)
