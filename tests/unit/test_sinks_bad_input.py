"""What goes wrong outside gives a clear error with a code, and nothing is half written."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from hailstorm.columns import KIND
from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks import Call, DuckDB, Parquet, Sqlite
from hailstorm.sinks.call import Row
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Sink

COUNTS = pa.schema([("word", pa.string()), ("n", pa.int64())])
BOARD = Delivery("trending", "board", "ledger", COUNTS, ("word",), True)
STREAM = Delivery("trending", "board", "ledger", COUNTS, (), False)

Make = Callable[[Path], Sink]
MAKE: dict[str, Make] = {
    "parquet": lambda folder: Parquet(folder / "out"),
    "sqlite": lambda folder: Sqlite(folder / "out.db", "counts"),
    "duckdb": lambda folder: DuckDB(folder / "out.duckdb", "counts"),
}
EACH = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def error_of(action: Callable[[], Any]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        action()
    return caught.value


def rows(count: int = 1) -> pa.Table:
    return pa.table({"word": [f"{number:x}" * 9 for number in range(count)], "n": list(range(count))}, schema=COUNTS)


@pytest.mark.parametrize("sink_type", [Sqlite, DuckDB])
def test_a_database_that_is_a_folder_is_refused(sink_type: Any, tmp_path: Path) -> None:
    error = error_of(lambda: sink_type(tmp_path, "counts").open(BOARD))
    assert error.code == "HS-SNK-001"
    assert "it is a folder" in error.what
    assert not isinstance(error, TransientSinkError)


def test_a_parquet_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("hello")
    error = error_of(lambda: Parquet(tmp_path / "out").open(BOARD))
    assert (error.code, "it is a file" in error.what) == ("HS-SNK-001", True)


@EACH
def test_a_path_through_a_file_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    error = error_of(lambda: make(tmp_path / "file" / "deeper").open(BOARD))
    assert error.code == "HS-SNK-001"
    assert not isinstance(error, TransientSinkError)


@pytest.mark.parametrize("sink_type", [Sqlite, DuckDB])
def test_a_file_that_is_no_database_is_refused(sink_type: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"not a database at all, but long enough to be one" * 100)
    error = error_of(lambda: sink_type(tmp_path / "out", "counts").open(BOARD))
    assert error.code == "HS-SNK-001"
    assert (tmp_path / "out").read_bytes().startswith(b"not a database")


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{7:020d}.parquet").write_text("hello")
    error = error_of(lambda: Parquet(tmp_path).open(BOARD))
    assert (error.code, "is not a Parquet file" in error.what) == ("HS-SNK-001", True)


@pytest.fixture
def unwritable() -> Iterator[Path]:
    """A folder that may be read and not written; root may write anywhere, so it steps down for a while."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)
            os.chmod(name, 0o755)


@EACH
def test_a_folder_that_cannot_be_written_to_is_refused(make: Make, unwritable: Path) -> None:
    error = error_of(lambda: make(unwritable).open(BOARD))
    assert error.code == "HS-SNK-001"
    assert not isinstance(error, TransientSinkError), "waiting does not help"


@EACH
def test_other_columns_are_refused_and_named(make: Make, tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(STREAM)
    sink.deliver(Parcel.of(1, rows()))
    sink.close()
    other = pa.schema([("word", pa.string()), ("n", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))])

    def deliver() -> None:
        sink.open(Delivery("trending", "board", "ledger", other, (), False))
        sink.deliver(Parcel.of(2, other.empty_table()))

    error = error_of(deliver)
    sink.close()
    assert error.code == "HS-SNK-003"
    assert "missing: at" in error.hint
    assert "different: n is" in error.hint
    sink.open(Delivery("trending", "board", "ledger", COUNTS, (), False))
    assert sink.cursor() == Cursor("ledger", 1)
    sink.close()


@pytest.mark.parametrize("make", [MAKE["sqlite"], MAKE["duckdb"]])
def test_a_table_of_a_key_is_checked_before_the_first_row_comes(make: Make, tmp_path: Path) -> None:
    sink = make(tmp_path)
    sink.open(STREAM)
    sink.deliver(Parcel.of(1, rows()))
    sink.close()
    narrow = Delivery("trending", "board", "ledger", pa.schema([("word", pa.string())]), ("word",), True)
    error = error_of(lambda: sink.open(narrow))
    assert (error.code, "not in the topology: n" in error.hint) == ("HS-SNK-003", True)


def test_a_table_of_the_user_with_the_same_columns_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE counts (word VARCHAR(20) PRIMARY KEY, n BIGINT)")
        connection.execute("INSERT INTO counts VALUES ('rain', 1)")
    connection.close()
    sink = Sqlite(path, "counts")
    sink.open(BOARD)
    sink.deliver(Parcel.of(1, rows().append_column(KIND, [["insert"]])))
    sink.deliver(Parcel.of(2, pa.table({"word": ["rain"], "n": [2], KIND: ["update"]})))
    found = sink._session.get().connection.execute("SELECT * FROM counts ORDER BY n").fetchall()
    sink.close()
    assert found == [("000000000", 0), ("rain", 2)]


FULL_DISK = """
import pickle, resource, sys
import hailstorm.sinks.duckdb, duckdb
from hailstorm.sinks.sink import Parcel
from hailstorm.errors import TransientSinkError
sink, delivery, small, large = pickle.load(sys.stdin.buffer)
sink.open(delivery)
sink.deliver(Parcel.of(1, small))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
try:
    sink.deliver(Parcel.of(2, large))
except TransientSinkError as error:
    print(error.code)
sink.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
sink.open(delivery)
print(sink.cursor().commit)
sink.deliver(Parcel.of(2, large))
print(sink.cursor().commit)
sink.close()
"""


@pytest.mark.slow
@EACH
def test_a_full_disk_is_waited_for_and_nothing_is_half_written(make: Make, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK],
        input=pickle.dumps((make(tmp_path), STREAM, rows(1), rows(200_000))),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.decode().split() == ["HS-SNK-005", "1", "2"], done.stderr.decode()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_locked_database_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hailstorm.sinks.sqlite._WAIT_FOR_LOCK", 0.05)
    sink = Sqlite(tmp_path / "out.db", "counts")
    sink.open(STREAM)
    other = sqlite3.connect(tmp_path / "out.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    error = error_of(lambda: sink.deliver(Parcel.of(1, rows())))
    assert isinstance(error, TransientSinkError)
    assert (error.code, "locked by another program" in error.what) == ("HS-SNK-006", True)
    other.execute("ROLLBACK")
    other.close()
    sink.deliver(Parcel.of(1, rows()))
    assert sink.cursor() == Cursor("ledger", 1)
    sink.close()


def test_a_duckdb_file_that_another_process_has_open_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "out.duckdb"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    error = error_of(lambda: DuckDB(path, "counts").open(STREAM))
    holder.communicate(b"\n", timeout=30)
    assert isinstance(error, TransientSinkError)
    assert (error.code, "open in another program" in error.what) == ("HS-SNK-006", True)


def test_two_sinks_in_one_parquet_folder_are_refused(tmp_path: Path) -> None:
    first, second = Parquet(tmp_path), Parquet(tmp_path)
    first.open(STREAM)
    other = Delivery("trending", "other", "ledger", COUNTS, (), False)
    second.open(other)  # the folder is empty: nobody can know yet
    first.deliver(Parcel.of(1, rows()))
    error = error_of(lambda: second.deliver(Parcel.of(1, rows())))
    assert (error.code, "belongs to sink trending/board" in error.what) == ("HS-SNK-062", True)
    assert error_of(lambda: Parquet(tmp_path).open(other)).code == "HS-SNK-062"


@pytest.mark.parametrize("sink_type", [Sqlite, DuckDB])
def test_modes_that_make_no_sense_are_refused(sink_type: Any, tmp_path: Path) -> None:
    error = error_of(lambda: sink_type("x.db", "counts", mode="merge"))
    assert (error.code, "no mode 'merge'" in error.what) == ("HS-SNK-004", True)
    assert error.at is not None
    assert error.at.short.startswith("test_sinks_bad_input.py:")
    sink = sink_type(tmp_path / "x.db", "counts", mode="upsert")
    assert error_of(lambda: sink.open(STREAM)).code == "HS-SNK-004"


def test_a_url_is_refused_where_a_local_path_is_needed() -> None:
    for make in (lambda: Parquet("s3://bucket/x"), lambda: Sqlite("s3://b/x", "t"), lambda: DuckDB("md:x://y", "t")):
        assert error_of(make).code == "HS-SNK-012"


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    error = error_of(lambda: DuckDB(tmp_path / "x", "counts").open(BOARD))
    assert error.code == "HS-SNK-002"
    assert "pip install 'hailstorm[duckdb]'" in error.hint


def test_a_function_that_raises_is_shown_with_its_line() -> None:
    def shout(rows: list[Row]) -> None:
        raise KeyError("wrod")

    sink = Call(shout)
    sink.open(STREAM)
    error = error_of(lambda: sink.deliver(Parcel.of(1, rows())))
    assert error.code == "HS-SNK-007"
    assert "shout raised KeyError: 'wrod'" in error.what
    assert 'raise KeyError("wrod")' in str(error)


@pytest.mark.parametrize("error", [ConnectionError("gone"), TransientSinkError(6, "later")])
def test_a_function_can_ask_to_be_called_again(error: Exception) -> None:
    def refuse(rows: list[Row]) -> None:
        raise error

    sink = Call(refuse)
    sink.open(STREAM)
    with pytest.raises(type(error)):
        sink.deliver(Parcel.of(1, rows()))


def test_a_value_that_the_users_table_does_not_take_stops_the_sink(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE counts (word VARCHAR, n BIGINT CHECK (n > 5))")
    sink = DuckDB(path, "counts")
    sink.open(STREAM)
    error = error_of(lambda: sink.deliver(Parcel.of(1, rows())))
    sink.close()
    assert (error.code, "counts" in error.what) == ("HS-SNK-011", True)
    assert not isinstance(error, TransientSinkError)
