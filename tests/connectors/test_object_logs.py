"""Embedded logs in an object store pass the contract of logs, also when the store throttles, cuts and loses answers."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import LogError
from hailstorm.ledger.stores import open_store
from hailstorm.spouts import Files, Log, object_files, object_segments
from tests.connectors.log_contract import LogContract, read
from tests.connectors.servers.s3 import BUCKET, S3Server, UnkindProxy, known_here

pytest.importorskip("obstore")

_places = itertools.count(1)


@pytest.fixture
def address(s3_server: S3Server, tmp_path: Path) -> Iterator[str]:
    with known_here(s3_server.environment(), tmp_path):
        yield f"s3://{BUCKET}/logs {next(_places)}/tweets"


@dataclass
class ObjectLogHarness:
    address: str
    partitions: int = 2
    ends: bool = True

    def make(self) -> Log:
        return Log(self.address, partitions=self.partitions)

    def append(self, rows: list[bytes], partition: int) -> None:
        self.make().append(rows, partition=partition)

    def remake(self) -> None:
        open_store(self.address).delete_folder("")

    def forget(self) -> list[Path]:
        pytest.skip("a store forgets nothing in a power cut")

    def expire(self) -> None:
        self.make().retain(records=40)


@dataclass
class ObjectFilesHarness:
    """Each append is an object of its own, plain and gz in turn, with names that do not sort by age."""

    address: str
    partitions: int = 1
    ends: bool = True
    written: int = 0

    def make(self) -> Files:
        return Files(f"{self.address}/*.jsonl*")

    def append(self, rows: list[bytes], partition: int) -> None:
        self.written += 1
        name, text = f"{(self.written * 7919) % 1000:03d}.jsonl", b"\n".join(rows)
        if self.written % 2:
            open_store(self.address).put(f"{name}.gz", gzip.compress(text, 1))
        else:
            open_store(self.address).put(name, text)
        self.make().latest()

    def remake(self) -> None:
        open_store(self.address).delete_folder(".hailstorm-files")

    def forget(self) -> list[Path]:
        pytest.skip("a store forgets nothing in a power cut")

    def expire(self) -> None:
        pytest.skip("files do not expire")


class TestObjectFiles(LogContract):
    appends = 15

    @pytest.fixture
    def harness(self, address: str) -> ObjectFilesHarness:
        return ObjectFilesHarness(address)


class TestObjectLog(LogContract):
    appends = 15

    @pytest.fixture
    def harness(self, address: str) -> ObjectLogHarness:
        return ObjectLogHarness(address)


def test_writers_through_an_unkind_store_lose_and_double_nothing(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    address = f"s3://{BUCKET}/logs {next(_places)}/unkind"
    kinds = ("503", "cut", "lost", "503 after")
    with UnkindProxy.to(s3_server.port) as proxy, known_here(s3_server.environment(proxy.port), tmp_path):
        proxy.fault = lambda method, path: chance.choice(kinds) if chance.random() < 0.1 else None
        got: dict[int, bytes] = {}

        def write(name: str) -> None:
            log = Log(address)
            for number in range(12):
                row = f"{name}{number}".encode()
                got[log.append([row], partition=0)[0].start] = row

        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        object_segments._newest.clear()  # another process has none of it in memory
        rows = read(Log(address), 0, 0, 36)
        assert rows["value"].to_pylist() == [got[offset] for offset in range(36)]


def test_files_of_a_store_are_found_by_pattern_and_a_file_that_changed_is_refused(address: str) -> None:
    store = open_store(address)
    store.put("2024/may.jsonl", b'{"n": 1}\n\n{"n": 2}')
    store.put("2024/june.csv", b"n\n3\n")
    store.put("2024/deeper/july.jsonl", b'{"n": 4}\n')
    store.put("2024/.hidden/august.jsonl", b'{"n": 5}\n')
    store.put("2024/notes.md", b"hail\n")

    def lines(files: Files) -> list[bytes]:
        return read(files, 0, 0, files.latest()[0])["value"].to_pylist()

    assert lines(Files(f"{address}/2024/may.jsonl")) == [b'{"n": 1}', b'{"n": 2}']
    assert lines(Files(f"{address}/2024")) == [b"n", b"3", b'{"n": 1}', b'{"n": 2}']
    assert lines(Files(f"{address}/*/*.csv", header=True)) == [b"3"]
    every = Files(f"{address}/**/*.jsonl", index=f"{address} index")
    assert lines(every) == [b'{"n": 4}', b'{"n": 1}', b'{"n": 2}']
    assert 0 < every.size(0, 0, 4) < 100
    store.put("2024/more.jsonl", b'{"n": 6}')
    assert lines(every)[-1] == b'{"n": 6}'
    store.put("2024/more.jsonl", b'{"n": 7}')
    with pytest.raises(LogError, match="has changed"):
        lines(every)
    store.put("2024/more.jsonl", b'{"n": 78}')
    with pytest.raises(LogError, match="has changed"):
        every.latest()
    store.delete("2024/more.jsonl")
    with pytest.raises(LogError, match="is gone"):
        read(every, 0, 0, 5)


def test_two_who_look_at_one_time_agree_on_offsets(address: str) -> None:
    store = open_store(address)
    wrong: list[str] = []

    def look() -> None:
        try:
            for _ in range(6):
                Files(address).latest()
        except Exception as error:  # a thread's failure must fail the test
            wrong.append(repr(error))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(8):
        store.put(f"{number}.jsonl", b"".join(b'{"n": %d}\n' % (10 * number + line) for line in range(3)))
    for thread in threads:
        thread.join()
    assert wrong == []
    files = Files(address)
    rows = read(files, 0, 0, files.latest()[0])
    assert rows["offset"].to_pylist() == list(range(24))
    assert len(set(rows["value"].to_pylist())) == 24


def test_the_command_line_takes_an_address(address: str) -> None:
    command = CliRunner()
    lines = "".join(f'{{"user": "u{number % 3}", "n": {number}}}\n' for number in range(10))
    done = command.invoke(app, ["log", "append", address, "--partitions", "2", "--key", "user"], input=lines)
    assert done.exit_code == 0, done.output
    shown = command.invoke(app, ["log", "read", address])
    assert sorted(shown.stdout.splitlines()) == sorted(lines.splitlines())
    about = command.invoke(app, ["log", "info", address, "--json"])
    assert sum(one["records"] for one in json.loads(about.stdout)["partitions"]) == 10


def test_a_log_gets_more_partitions_from_several_at_once(address: str) -> None:
    ids: list[str] = []

    def grow(partitions: int) -> None:
        ids.append(Log(address).create(partitions).identity())

    threads = [threading.Thread(target=grow, args=(partitions,)) for partitions in (1, 3, 2, 5, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1
    assert set(Log(address).create(5).latest()) == set(range(5))


def test_a_look_at_all_takes_all_objects_that_are_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "_LOOK_BYTES", 4)
    store = open_store(address)
    for name in "abc":
        store.put(f"{name}.jsonl", b"1\n2\n3\n")
    source = Files(address)
    assert source.latest() == {0: 3}
    assert source.latest_of_all() == {0: 9}
