"""The embedded log beyond the contract: appends, kills, roll-up, retention, and what it looks like to others."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from hailstorm.cli import log as cli_log
from hailstorm.cli.app import app
from hailstorm.errors import LogError
from hailstorm.spouts import Files, Log
from hailstorm.spouts.segments import ROLL, PartitionFolder, Segment


def values(log: Log, partition: int = 0) -> list[bytes]:
    start, end = log.earliest()[partition], log.latest()[partition]
    return [value for batch in log.read(partition, start, end) for value in batch.column("value").to_pylist()]


def segments(log: Log, partition: int = 0) -> list[str]:
    return sorted(path.name for path in (Path(log.path) / f"p{partition}").glob("*.parquet"))


def test_reading_a_log_that_does_not_exist_says_what_to_type(tmp_path: Path) -> None:
    log = Log(tmp_path / "no")
    for ask in (log.earliest, log.latest, log.info, lambda: list(log.read(0, 0, 1))):
        with pytest.raises(LogError, match=r"HS-LOG-001.*\n.*hailstorm log append .*no < lines"):
            ask()
    assert not (tmp_path / "no").exists()


def test_rows_may_be_dicts_text_and_bytes(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    assert log.append([{"a": 1, "b": "é"}, "text", b"\xff", [1]]) == {0: range(4)}
    assert values(log) == ['{"a":1,"b":"é"}'.encode(), b"text", b"\xff", b"[1]"]


def test_equal_keys_stay_in_one_partition_in_order(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=4)
    rows = [{"user": f"u{number % 20}", "n": number} for number in range(200)]
    written = log.append(rows, key="user")
    assert sum(len(offsets) for offsets in written.values()) == 200
    assert len(written) > 1
    homes: dict[str, int] = {}
    for partition in range(4):
        seen: dict[str, int] = {}
        for batch in log.read(partition, 0, log.latest()[partition]):
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                row = json.loads(value)
                assert key == row["user"].encode()
                assert homes.setdefault(row["user"], partition) == partition
                assert seen.get(row["user"], -1) < row["n"]
                seen[row["user"]] = row["n"]
    assert log.append(rows, key="user") == {p: range(o.stop, o.stop + len(o)) for p, o in written.items()}


def test_the_partition_of_a_key_is_fixed_for_ever(tmp_path: Path) -> None:
    # CRC-32 of the key: another choice would send the keys of existing logs elsewhere.
    assert list(Log(tmp_path / "log", partitions=8).append([{"k": "rain"}], key="k")) == [5]


@pytest.mark.parametrize("row", [{"b": 1}, "not json", b"\xff", [1], "{"])
def test_a_row_without_the_key_field_appends_nothing(tmp_path: Path, row: object) -> None:
    log = Log(tmp_path / "log")
    with pytest.raises(LogError, match="row 1 has no field 'a'"):
        log.append([{"a": 1}, row], key="a")
    assert log.latest() == {0: 0}


def test_without_key_and_partition_an_append_goes_whole_to_the_shortest_partition(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    assert log.append(["a", "b"]) == {0: range(2)}
    assert log.append(["c"]) == {1: range(1)}
    assert log.append(["d"]) == {1: range(1, 2)}


def test_a_named_partition_is_made_when_it_is_not_there(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(["a"])
    assert log.append(["b"], partition=2) == {2: range(1)}
    assert log.latest() == {0: 1, 1: 0, 2: 1}
    assert log.append(["c"], partitions=5) == {1: range(1)}
    assert set(log.latest()) == set(range(5))


@pytest.mark.parametrize(("partition", "partitions"), [(-1, None), (None, 5000), (5000, None)])
def test_a_partition_that_cannot_be_is_refused(tmp_path: Path, partition: int | None, partitions: int | None) -> None:
    with pytest.raises(LogError):
        Log(tmp_path / "log").append(["a"], partition=partition, partitions=partitions)


def test_times_are_the_appends_or_given(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    before = datetime.now(UTC)
    log.append(["a"])
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    log.append(["b"], time=noon)
    log.append(["c", "d"], time=[noon, noon.replace(tzinfo=None) + timedelta(hours=1)])
    times = [time for batch in log.read(0, 0, 4) for time in batch.column("time").to_pylist()]
    assert before <= times[0] <= datetime.now(UTC)
    assert times[1:] == [noon, noon, noon + timedelta(hours=1)]
    with pytest.raises(LogError, match="2 times were given for 1 rows"):
        log.append(["e"], time=[noon, noon])


def test_half_a_million_records_are_appended_and_read_at_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    table = pa.table({"value": pa.array([b'{"n":%d}' % number for number in range(500_000)])})
    assert log.append_arrow(table, 0) == range(500_000)
    batches = list(log.read(0, 0, 500_000))
    assert pa.Table.from_batches(batches)["value"].to_pylist() == table["value"].to_pylist()
    with pytest.raises(LogError, match="value, key and time"):
        log.append_arrow(pa.table({"a": [1]}), 0)


def test_other_readers_can_read_the_segments(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(20):
        log.append([{"n": number}], key="n")
    query = f"select \"offset\", decode(value) from '{tmp_path}/log/p0/*.parquet' order by 1"
    rows = duckdb.connect().execute(query).fetchall()
    assert rows == [(number, f'{{"n":{number}}}') for number in range(20)]


@pytest.mark.slow
def test_many_small_appends_are_rolled_up_and_read_the_same(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(ROLL * ROLL + 20):
        log.append([str(number)])
    assert len(segments(log)) <= 2 * ROLL
    assert values(log) == [str(number).encode() for number in range(ROLL * ROLL + 20)]


def test_a_reader_with_an_old_listing_goes_on_after_a_roll_up(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(ROLL - 1):
        log.append([b"x" * 10] * 70_000 if number < 3 else [b"y"])
    end = log.latest()[0]
    reading = log.read(0, 0, end)
    seen = [next(reading)]
    for path in (tmp_path / "log" / "p0").glob("*.parquet"):
        path.rename(path.with_suffix(".away"))
    merged = pa.concat_tables(pa.parquet.read_table(path) for path in sorted((tmp_path / "log/p0").glob("*.away")))
    pa.parquet.write_table(merged, tmp_path / "log/p0" / Segment(0, end).name)
    seen += list(reading)
    offsets = pa.concat_arrays([batch.column("offset") for batch in seen]).to_pylist()
    assert offsets == list(range(end))


def test_what_a_killed_roll_up_left_is_passed_over_and_removed(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(4):
        log.append([str(number)])
    folder = PartitionFolder(tmp_path / "log" / "p0")
    merged = pa.concat_tables([folder.read_segment(segment) for segment in folder.segments()])
    pa.parquet.write_table(merged, tmp_path / "log/p0" / Segment(0, 4).name)
    assert values(log) == [b"0", b"1", b"2", b"3"]
    assert log.latest() == {0: 4}
    for number in range(4, 4 + ROLL):
        log.append([str(number)])
    assert values(log) == [str(number).encode() for number in range(4 + ROLL)]
    assert len(segments(log)) < ROLL


def test_stale_hidden_files_are_ignored_and_removed_in_time(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(["a"])
    old, young = (tmp_path / "log/p0" / f".writing-{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half a segm")
    os.utime(old, (time.time() - 7200,) * 2)
    assert values(log) == [b"a"]
    for _ in range(ROLL):
        log.append(["b"])
    assert not old.exists() and young.exists()


def test_a_removed_segment_is_noticed(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(3):
        log.append([str(number)])
    (tmp_path / "log/p0" / segments(log)[1]).unlink()
    with pytest.raises(LogError, match="lacks the offsets 1 to 1"):
        log.latest()


def test_a_copy_without_hidden_files_can_be_read(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(["a", "b"])
    (tmp_path / "log/p0/.lock").unlink()
    assert values(log) == [b"a", b"b"]


def test_retention_by_records_is_exact_and_names_what_is_gone(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for _ in range(5):
        log.append(["x"] * 100)
    log.retain(records=250)
    assert (log.earliest(), log.latest()) == ({0: 250}, {0: 500})
    with pytest.raises(LogError, match="no longer has the offsets 240 to 249 of partition 0"):
        list(log.read(0, 240, 260))
    assert sum(len(batch) for batch in log.read(0, 250, 500)) == 250
    log.retain(records=1000)
    assert log.earliest() == {0: 250}


def test_retention_by_age_and_bytes(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    now = datetime.now(UTC)
    log.append(
        [os.urandom(1000) for _ in range(100)], time=[now - timedelta(hours=100 - number) for number in range(100)]
    )
    log.append([os.urandom(1000) for _ in range(100)], time=now)
    log.retain(age=timedelta(hours=10, minutes=30))
    assert log.earliest() == {0: 90}
    log.retain(bytes=90_000)
    assert (log.earliest(), log.latest()) == ({0: 100}, {0: 200})


def test_an_emptied_log_goes_on_where_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(["a"] * 10)
    log.retain(age=timedelta(0))
    assert (log.earliest(), log.latest()) == ({0: 10}, {0: 10})
    assert log.info()["partitions"][0]["records"] == 0
    assert log.append(["b"]) == {0: range(10, 11)}
    assert values(log) == [b"b"]


def test_info_tells_offsets_sizes_and_times(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    log.append(["a"], partition=0, time=noon)
    log.append(["b"], partition=0, time=noon + timedelta(hours=1))
    first, second = log.info()["partitions"]
    assert first == {
        "partition": 0,
        "earliest": 0,
        "latest": 2,
        "records": 2,
        "bytes": first["bytes"],
        "segments": 2,
        "first_time": noon,
        "last_time": noon + timedelta(hours=1),
    }
    assert first["bytes"] > 0
    assert (second["latest"], second["first_time"]) == (0, None)


def test_a_log_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "log").create()
    (tmp_path / "log/log.json").write_text('{"format": 99, "partitions": 1}')
    for do in (log.latest, lambda: log.append(["a"])):
        with pytest.raises(LogError, match="format 99"):
            do()


def test_a_file_in_the_place_of_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x")
    with pytest.raises(LogError, match="it is a file"):
        Log(tmp_path / "log").append(["a"])
    with pytest.raises(LogError, match="there is no log"):
        Log(tmp_path / "log").latest()


def test_a_disk_that_is_full_leaves_nothing_of_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path / "log")
    log.append(["a"])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(LogError, match=r"cannot append to .*: No space left on device"):
            log.append(["b"])
    assert [name for name in os.listdir(tmp_path / "log/p0") if name.startswith(".writing")] == []
    assert log.append(["c"]) == {0: range(1, 2)}
    assert values(log) == [b"a", b"c"]


def test_relative_paths_are_the_apps(tmp_path: Path) -> None:
    assert Log("data/x", partitions=3).resolve(tmp_path) == Log(tmp_path / "data/x", partitions=3)
    assert Log(tmp_path / "x").resolve(Path("/elsewhere")).path == str(tmp_path / "x")


WRITER = """
import sys
from hailstorm.spouts import Log
log, name, number = Log(sys.argv[1], partitions=2), sys.argv[2], 0
while True:
    rows = [f"{name}-{number}-{part}" for part in range(5)]
    written = log.append(rows, partition=number % 2)
    print(number, list(written.values())[0].start, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_killed_writers_leave_whole_appends_and_dense_offsets(tmp_path: Path) -> None:
    chance = random.Random(3)
    acknowledged: set[tuple[str, int]] = set()
    for round_ in range(3):
        writers = {
            f"w{round_}{number}": subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path / "log"), f"w{round_}{number}"],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
            for number in range(3)
        }
        for writer in writers.values():
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(chance.uniform(0.2, 0.6))
        for name, writer in writers.items():
            writer.send_signal(signal.SIGKILL)
            out, _ = writer.communicate()
            acknowledged |= {(name, int(line.split()[0])) for line in out.splitlines() if line.count(" ")}
    log = Log(tmp_path / "log")
    found: list[str] = []
    for partition, latest in log.latest().items():
        rows = pa.Table.from_batches(log.read(partition, 0, latest))
        assert rows["offset"].to_pylist() == list(range(latest))
        texts = [value.decode() for value in rows["value"].to_pylist()]
        assert len(texts) % 5 == 0
        for first in range(0, len(texts), 5):
            stem = texts[first].rsplit("-", 1)[0]
            assert texts[first : first + 5] == [f"{stem}-{part}" for part in range(5)], "an append is torn"
            found.append(stem)
    assert len(found) == len(set(found)), "an append is there twice"
    assert {f"{name}-{number}" for name, number in acknowledged} <= set(found), "an append is lost"
    assert len(found) > 20
    assert log.append(["after"], partition=0)


@pytest.mark.parametrize("source", [Log, Files])
def test_an_address_that_is_none_of_a_store_is_refused_and_never_taken_for_a_folder(source: type[Log | Files]) -> None:
    with pytest.raises(LogError, match="'hdfs://bucket/lines' is not the address of a log"):
        source("hdfs://bucket/lines")
    with pytest.raises(LogError, match="password in it") as refused:
        source("s3://me:hush@bucket/lines")
    assert "hush" not in str(refused.value)
    assert source("s3://bucket/lines").resolve(Path("/app")).path == "s3://bucket/lines"


def test_erased_records_leave_their_offsets_and_nothing_else(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(3):
        log.append([{"user": "zoe", "n": number}, {"user": "bob", "n": number}], partition=0)
    holds = lambda rows: pc.match_substring(rows["value"].combine_chunks(), "zoe")  # noqa: E731
    assert log.erase(holds, dry_run=True) == {0: [0, 2, 4]}
    assert log.erase(holds) == {0: [0, 2, 4]}
    assert log.erase(holds) == {}, "once more there is nothing"
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"zoe" in file.read_bytes()]
    assert (log.earliest(), log.latest()) == ({0: 0}, {0: 6})
    assert [offset for batch in log.read(0, 0, 6) for offset in batch.column("offset").to_pylist()] == [1, 3, 5]
    assert [offset for batch in log.read(0, 2, 5) for offset in batch.column("offset").to_pylist()] == [3]
    assert list(log.read(0, 4, 5)) == []
    for number in range(20):  # what is merged later keeps its holes, and retention counts offsets
        log.append([{"user": "bob", "n": number}], partition=0)
    assert [b.column("offset")[0].as_py() for b in log.read(0, 4, 26)] == [5]
    log.retain(records=22)
    assert [offset for batch in log.read(0, 4, 7) for offset in batch.column("offset").to_pylist()] == [5, 6]


def test_lines_that_were_appended_before_a_bad_one_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def appended(*lines: str) -> str:
        words = ["log", "append", str(tmp_path / "log"), "--key", "user"]
        result = CliRunner().invoke(app, words, input="".join(f"{line}\n" for line in lines))
        assert isinstance(result.exception, LogError)
        assert result.exception.code == "HS-LOG-014"
        return str(result.exception)

    monkeypatch.setattr(cli_log, "BATCH_LINES", 2)
    good, bad = '{"user": "ada"}', '{"name": "bob"}'
    said = appended(good, bad)
    assert "line 2 has no field 'user' to be its key\n  Nothing was appended." in said
    assert Log(tmp_path / "log").latest() == {0: 0}
    said = appended("", good, good, good, bad)
    assert "line 5 has no field 'user' to be its key\n  The 2 records before line 4 were appended." in said
    assert "tail -n +4 FILE" in said
    assert Log(tmp_path / "log").latest() == {0: 2}
