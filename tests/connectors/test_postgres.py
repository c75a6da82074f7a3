"""Postgres passes the contract of all sinks, against a real server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from hailstorm.columns import KIND
from hailstorm.errors import SinkError
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.sink import Delivery, Parcel
from tests.connectors.servers.postgres import PostgresServer
from tests.connectors.sink_contract import Harness, Json, SinkContract, as_json


@dataclass
class PostgresHarness:
    url: str
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Postgres:
        return Postgres(self.url, target, mode)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        name = target.replace('"', '""')
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return [as_json(row) for row in connection.execute(f'SELECT * FROM "{name}"')]


class TestPostgres(SinkContract):
    holds_nul = False

    @pytest.fixture
    def harness(self, postgres_server: PostgresServer) -> Harness:
        return PostgresHarness(postgres_server.database())


RARE = {
    "tiny": (pa.int8(), [-128, 127, None]),
    "small": (pa.int16(), [-32768, 32767, None]),
    "narrow": (pa.float32(), [1.5, -0.0, None]),
    "wide": (pa.float64(), [float("inf"), 1e-300, None]),
    "span": (pa.duration("us"), [timedelta(days=400, microseconds=1), timedelta(seconds=-1), None]),
    "nothing": (pa.null(), [None, None, None]),
    "long_ago": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "large": (pa.large_string(), ["", "ü" * 70_000, None]),
    "exact": (pa.decimal128(38, 0), [Decimal("-99999999999999999999999999999999999999"), Decimal(0), None]),
    "fine": (pa.decimal128(20, 15), [Decimal("-0.000000000000001"), Decimal("12345.678900000000000"), None]),
    "odd": (pa.list_(pa.struct([("n", pa.decimal128(5, 2))])), [[{"n": Decimal("1.50")}], [], None]),
}


@pytest.mark.parametrize(("kind", "values"), RARE.values(), ids=RARE)
@pytest.mark.parametrize("mode", ["stream", "table"])
def test_rare_types_and_extreme_values_arrive_as_they_were(
    postgres_server: PostgresServer, mode: str, kind: pa.DataType, values: list[Any]
) -> None:
    url = postgres_server.database()
    schema = pa.schema([("id", pa.int32()), ("value", kind)])
    rows = pa.table({"id": pa.array([0, 1, 2], pa.int32()), "value": pa.array(values, kind)})
    sink = Postgres(url, "rare")
    sink.open(Delivery("trending", "rare", "ledger", schema, ("id",) if mode == "table" else (), mode == "table"))
    sink.deliver(Parcel.of(1, rows.append_column(KIND, pa.array(["insert"] * 3)) if mode == "table" else rows))
    sink.close()
    found = [value for (value,) in postgres_server.query(url, "SELECT value FROM rare ORDER BY id")]
    expected = as_json(values) if pa.types.is_nested(kind) else values
    assert found == expected


def test_a_slice_of_rows_is_written_and_not_what_it_is_cut_from(postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    words = pa.table({"word": [None, "a", "bb", None, "dddd", "e"], "n": pa.array(range(6), pa.int64())})
    sink = Postgres(url, "words")
    sink.open(Delivery("trending", "words", "ledger", words.schema, (), False))
    sink.deliver(Parcel.of(1, words.slice(2, 3)))
    sink.close()
    assert postgres_server.query(url, "SELECT * FROM words ORDER BY n") == [("bb", 2), (None, 3), ("dddd", 4)]


def test_more_rows_than_go_in_one_piece(postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    count = 150_000
    rows = pa.table({"word": [f"word {n}" if n % 7 else None for n in range(count)], "n": pa.array(range(count))})
    sink = Postgres(url, "words")
    sink.open(Delivery("trending", "words", "ledger", rows.schema, (), False))
    sink.deliver(Parcel.of(1, rows))
    sink.close()
    ((found, total, named, right),) = postgres_server.query(
        url, "SELECT count(*), sum(n), count(word), count(*) FILTER (WHERE word = 'word ' || n) FROM words"
    )
    missing = len(range(0, count, 7))
    assert (found, total, named, right) == (count, sum(range(count)), count - missing, count - missing)


@pytest.mark.parametrize(("wound", "what"), [("DROP TABLE counts", "is gone"), ("TRUNCATE counts", "is empty")])
def test_a_table_that_lost_its_rows_and_not_its_cursor_is_noticed(
    postgres_server: PostgresServer, wound: str, what: str
) -> None:
    url = postgres_server.database()
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    rows = pa.table({"word": ["rain"], "n": pa.array([1], pa.int64()), KIND: ["insert"]})
    sink, delivery = Postgres(url, "counts"), Delivery("trending", "counts", "ledger", schema, ("word",), True)
    sink.open(delivery)
    sink.deliver(Parcel.of(1, rows))
    sink.close()
    with psycopg.connect(url) as connection:
        connection.execute(wound)
    with pytest.raises(SinkError, match=f"table 'counts' {what}") as error:
        sink.open(delivery)
    assert error.value.code == "HS-SNK-063"
    assert "hailstorm resend" in error.value.hint
    sink.open(replace(delivery, takes_over=True))
    sink.deliver(Parcel.of(2, rows, whole=True))
    sink.close()
    assert postgres_server.query(url, "SELECT word, n FROM counts") == [("rain", 1)]
