"""Delta passes the contract of all sinks; another reader sees the same, and two writers do not double a commit."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks import delta
from hailstorm.sinks.delta import Delta
from hailstorm.sinks.sink import Parcel
from tests.connectors.delivering import Outgoing, board
from tests.connectors.sink_contract import (
    Harness,
    Json,
    SinkContract,
    as_json,
    changes,
    counts_delivery,
    got,
    stream,
    stream_delivery,
)


@dataclass
class DeltaHarness:
    folder: Path
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Delta:
        return Delta(self.folder / f"{zlib.crc32(target.encode()):x}", mode)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        table = DeltaTable(self.make(target).path).to_pyarrow_table()
        return [as_json(row) for row in table.to_pylist(maps_as_pydicts="strict")]


class TestDelta(SinkContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return DeltaHarness(tmp_path)


def rows_of(path: Path) -> list[tuple[str, int]]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(table["word"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_a_commit_is_one_version_with_the_cursor_in_it(tmp_path: Path) -> None:
    sink = Delta(tmp_path / "counts")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(7, changes(("insert", "rain", 1))))
    sink.close()
    # Version 0 makes the table, and version 1 says whose it is.
    lines = (tmp_path / "counts/_delta_log/00000000000000000002.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    transactions = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    assert transactions == {"hailstorm/trending/board/ledger": 7, "hailstorm/trending/board/ledger/rows": 1}
    assert any("add" in action for action in actions)


def test_a_writer_that_lost_the_race_tries_again_and_finds_it_done(tmp_path: Path, monkeypatch: Any) -> None:
    zombie, heir = Delta(tmp_path / "words"), Delta(tmp_path / "words")
    for sink in (zombie, heir):
        sink.open(stream_delivery("board"))
        sink.deliver(Parcel.of(1, stream(("rain", 1))))

    def take_over(point: str) -> None:
        monkeypatch.setattr(delta.faults, "fault", lambda point: None)
        heir.deliver(Parcel.of(2, stream(("hail", 2))))

    monkeypatch.setattr(delta.faults, "fault", take_over)
    with pytest.raises(TransientSinkError, match="HS-SNK-006"):
        zombie.deliver(Parcel.of(2, stream(("hail", 2))))
    zombie.deliver(Parcel.of(2, stream(("hail", 2))))
    assert got(zombie) == 2
    assert rows_of(tmp_path / "words") == [("hail", 2), ("rain", 1)]


def test_the_cursor_outlives_a_checkpoint_of_the_log(tmp_path: Path) -> None:
    sink = Delta(tmp_path / "words")
    sink.open(stream_delivery("board"))
    for number in range(1, 4):
        sink.deliver(Parcel.of(number, stream(("rain", number))))
    sink.close()
    DeltaTable(tmp_path / "words").create_checkpoint()
    for file in (tmp_path / "words/_delta_log").glob("0*.json"):
        if int(file.stem) < 4:
            file.unlink()
    sink.open(stream_delivery("board"))
    assert got(sink) == 3
    sink.deliver(Parcel.of(3, stream(("rain", 3))))
    sink.close()
    assert rows_of(tmp_path / "words") == [("rain", 1), ("rain", 2), ("rain", 3)]


def test_a_table_that_lost_its_rows_and_not_its_cursor_is_noticed(tmp_path: Path) -> None:
    sink, rows = Delta(tmp_path / "counts"), changes(("insert", "rain", 1), ("insert", "hail", 2))
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, rows))
    sink.close()
    DeltaTable(tmp_path / "counts").delete()
    with pytest.raises(SinkError, match="is empty, and its cursor says that sink 'board' was delivered to it") as error:
        sink.open(counts_delivery())
    assert error.value.code == "HS-SNK-063"
    assert "hailstorm resend" in error.value.hint
    sink.open(replace(counts_delivery(), takes_over=True))
    sink.deliver(Parcel.of(2, rows, whole=True))
    sink.deliver(Parcel.of(3, changes(("update", "rain", 2), ("delete", "hail", None))))
    sink.close()
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(4, changes(("delete", "rain", None))))
    sink.close()
    sink.open(counts_delivery())  # a table that is empty by itself has lost nothing
    sink.close()
    assert rows_of(tmp_path / "counts") == []


def test_a_table_that_went_back_to_before_its_first_rows_is_noticed(tmp_path: Path) -> None:
    sink = Delta(tmp_path / "counts")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
    sink.close()
    DeltaTable(tmp_path / "counts").restore(1)
    with pytest.raises(SinkError, match="HS-SNK-063"):
        sink.open(counts_delivery())


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "counts", pa.schema([("word", pa.string()), ("n", pa.int32())]))
    with pytest.raises(SinkError, match="HS-SNK-003") as caught:
        Delta(tmp_path / "counts").open(counts_delivery())
    assert "different: n is integer and should be long" in caught.value.hint


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(SinkError, match="HS-SNK-001"):
        Delta(tmp_path / "file").open(counts_delivery())


def test_another_reader_sees_the_same(tmp_path: Path) -> None:
    """DuckDB reads the files that the table's log names."""
    sink = Delta(tmp_path / "counts")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "hail", 1))))
    sink.deliver(Parcel.of(2, changes(("update", "rain", 2), ("delete", "hail", None))))
    sink.close()
    files = DeltaTable(tmp_path / "counts").file_uris()
    assert duckdb.sql(f"SELECT word, n FROM read_parquet({files})").fetchall() == [("rain", 2)]


@pytest.mark.chaos
@pytest.mark.parametrize("fault", ["before-delivery:2", "during-delivery:2", "after-delivery:2"])
def test_killed_at_any_point_of_delivery_every_row_is_there_once(tmp_path: Path, fault: str) -> None:
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(Delta(tmp_path / "words"), key=())
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n)))
    outgoing.deliver_killed(fault, sink)
    outgoing.deliver(sink)
    assert rows_of(tmp_path / "words") == [(f"word {n}", n) for n in range(4)]


def test_secrets_of_the_store_are_not_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_KEY", "very-secret")
    sink = Delta("s3://bucket/counts", storage_options={"aws_secret_access_key": "${env:STORE_KEY}"})
    assert "secret" not in repr(sink) + repr(sink.describe())
    assert sink.resolve(Path("elsewhere")) == sink
