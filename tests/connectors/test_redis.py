"""Redis passes the contract of all sinks in each form, against a real server; and what goes wrong with it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.columns import KIND
from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks import redis
from hailstorm.sinks.redis import Form, Redis
from hailstorm.sinks.sink import Delivery, Parcel
from hailstorm.testing import Driver
from tests.connectors.delivering import Outgoing, board
from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.proxy import Proxy
from tests.connectors.servers.redis import PASSWORD, RedisServer
from tests.connectors.sink_contract import (
    COUNTS,
    Harness,
    Json,
    SinkContract,
    after_changes,
    as_json,
    changes,
    counts_delivery,
    got,
    random_commits,
    stream,
    stream_delivery,
)


def value_of(text: bytes | None, kind: pa.DataType) -> Any:
    """A field as JSON would have it, by the type of its column."""
    if text is None:
        return None
    if pa.types.is_binary(kind):
        return as_json(text)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind):
        return json.loads(text)
    return text.decode()


def row_of(fields: dict[bytes, bytes], schema: pa.Schema) -> Json:
    return {column.name: value_of(fields.get(column.name.encode()), column.type) for column in schema}


@dataclass
class RedisHarness:
    server: RedisServer
    form: Form | None = None
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Redis:
        # Without key columns it may be a stream, for which there is one form only.
        return Redis(self.server.url, target, None if target in ("log", "every") else self.form)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        with self.server.client() as server:
            if key is None or self.form == "stream":
                entries = [fields for _, fields in server.xrange(target)]
                return after_changes(
                    [(fields.get(KIND.encode(), b"insert").decode(), row_of(fields, schema)) for fields in entries], key
                )
            keys = [target.encode()] if key == () else server.keys(f"{target}:*")
            if self.form == "json":
                return [json.loads(server.get(one)) for one in keys]
            return [row_of(server.hgetall(one), schema) for one in keys]


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with redis_server.client() as connection:
        connection.flushall()
    yield redis_server


class TestRedisHash(SinkContract):
    form: ClassVar[Form | None] = None

    @pytest.fixture
    def harness(self, server: RedisServer) -> Harness:
        return RedisHarness(server, self.form)


class TestRedisJson(TestRedisHash):
    form = "json"


class TestRedisStream(TestRedisHash):
    is_a_log = True
    form = "stream"


def error_of(action: Callable[[], Any]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        action()
    return caught.value


def test_a_row_is_a_hash_under_its_key(server: RedisServer) -> None:
    sink = Redis(server.url, "counts")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "a:b%", 2))))
    sink.deliver(Parcel.of(2, changes(("update", "rain", None))))
    with server.client() as connection:
        assert connection.hgetall("counts:rain") == {b"word": b"rain"}, "a field that became null is gone"
        assert connection.hgetall("counts:a%3Ab%25") == {b"word": b"a:b%", b"n": b"2"}
        stored = json.loads(connection.get("hailstorm:cursor:trending/board"))
        assert stored == {"ledger": "ledger", "commit": 2, "rows": 2}
    sink.close()


@pytest.mark.parametrize("form", ["hash", "json"])
def test_a_table_that_lost_its_rows_and_not_its_cursor_is_noticed(server: RedisServer, form: Form) -> None:
    """Somebody has deleted them, or the server has evicted them."""
    sink, rows = Redis(server.url, "counts", form), changes(("insert", "rain", 1), ("insert", "hail", 2))
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, rows))
    sink.close()
    with server.client() as connection:
        connection.delete("counts:hail")
    sink.open(counts_delivery())  # what is left may be all that there is
    sink.close()
    with server.client() as connection:
        connection.delete("counts:rain")
    error = error_of(lambda: sink.open(counts_delivery()))
    assert error.code == "HS-SNK-063"
    assert "the table at 'counts' is empty" in error.what
    assert "hailstorm resend" in error.hint
    sink.open(replace(counts_delivery(), takes_over=True))
    sink.deliver(Parcel.of(2, rows, whole=True))
    sink.close()
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(3, changes(("delete", "rain", None), ("delete", "hail", None))))
    sink.close()
    sink.open(counts_delivery())  # a table that is empty by itself has lost nothing
    sink.close()


def test_a_server_that_was_flushed_is_a_new_target_and_gets_the_whole_table(
    server: RedisServer, spark: SparkSession
) -> None:
    """Rows and cursor are in one place, and are lost together."""
    storm = hs.Topology("trending")
    words = storm.spout("words", hs.Log("x"), schema="word STRING")
    words.fold("counts", by="word", n=hs.count()).sink("board", Redis(server.url, "counts"))
    with Driver(storm, spark, deliver=True) as driver:
        driver.feed("words", [{"word": "rain"}, {"word": "hail"}])
        driver.advance()
        driver.stop()
        with server.client() as connection:
            connection.flushall()
        driver.restart()
        driver.feed("words", [{"word": "rain"}])
        driver.advance()
        assert not driver.stop().undelivered
    with server.client() as connection:
        found = {name: connection.hget(name, "n") for name in connection.keys("counts:*")}
    assert found == {b"counts:rain": b"2", b"counts:hail": b"1"}


def test_different_keys_of_several_columns_have_different_names(server: RedisServer) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    keys = [("x:y", "z"), ("x", "y:z"), (None, "null"), ("%null", "null"), ("", "")]
    sink = Redis(server.url, "pairs")
    sink.open(Delivery("trending", "board", "ledger", schema, ("a", "b"), True))
    columns = {"a": [a for a, _ in keys], "b": [b for _, b in keys], KIND: ["insert"] * len(keys)}
    sink.deliver(Parcel.of(1, pa.table(columns)))
    sink.close()
    with server.client() as connection:
        assert len(connection.keys("pairs:*")) == len(keys)


def test_a_stream_is_trimmed_when_asked(server: RedisServer) -> None:
    sink = Redis(server.url, "words", maxlen=100)
    sink.open(stream_delivery("board"))
    sink.deliver(Parcel.of(1, stream(*(("rain", n) for n in range(5000)))))
    sink.close()
    with server.client() as connection:
        assert 100 <= connection.xlen("words") < 300


def test_a_row_of_nulls_is_an_entry_of_a_stream_all_the_same(server: RedisServer) -> None:
    sink = Redis(server.url, "words")
    sink.open(stream_delivery("board"))
    sink.deliver(Parcel.of(1, stream((None, None))))
    sink.close()
    with server.client() as connection:
        assert connection.xlen("words") == 1


def test_a_stream_has_no_key_to_be_a_hash(server: RedisServer) -> None:
    sink = Redis(server.url, "words", "hash")
    assert error_of(lambda: sink.open(stream_delivery("board"))).code == "HS-SNK-004"
    assert error_of(lambda: Redis(server.url, "words", "list")).code == "HS-SNK-004"  # type: ignore[arg-type]


def test_a_key_that_holds_something_else_stops_the_sink_before_anything_is_written(server: RedisServer) -> None:
    with server.client() as connection:
        connection.set("words", "mine")
    sink = Redis(server.url, "words")
    sink.open(stream_delivery("board"))
    error = error_of(lambda: sink.deliver(Parcel.of(1, stream(("rain", 1)))))
    assert (error.code, "holds a string" in error.what) == ("HS-SNK-003", True)
    assert got(sink) is None
    sink.close()


def test_a_wrong_password_stops_the_sink_and_is_not_shown(server: RedisServer) -> None:
    sink = Redis(server.url.replace(PASSWORD, "not-the-password"), "counts")
    error = error_of(lambda: sink.open(counts_delivery()))
    assert (error.code, type(error)) == ("HS-SNK-020", SinkError)
    assert "not-the-password" not in str(error) + repr(sink) + repr(sink.describe())


def test_a_password_or_the_whole_address_comes_from_the_environment(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    monkeypatch.setenv("REDIS_URL", server.url)
    for url in (server.url.replace(PASSWORD, "${env:REDIS_PASSWORD}"), "${env:REDIS_URL}"):
        sink = Redis(url, "counts")
        sink.open(counts_delivery())
        sink.close()
        assert PASSWORD not in repr(sink.describe())


def test_a_user_without_rights_is_told(server: RedisServer) -> None:
    with server.client() as connection:
        connection.acl_setuser(
            "reader", enabled=True, passwords=["+reads"], keys=["*"], commands=["+get", "+hget", "+ping"]
        )
    sink = Redis(server.url.replace(f":{PASSWORD}", "reader:reads"), "counts")
    sink.open(counts_delivery())
    error = error_of(lambda: sink.deliver(Parcel.of(1, changes(("insert", "rain", 1)))))
    assert (error.code, type(error)) == ("HS-SNK-020", SinkError)
    sink.close()


def test_a_server_that_is_down_is_waited_for() -> None:
    (port,) = free_ports(1)
    error = error_of(lambda: Redis(f"redis://:{PASSWORD}@127.0.0.1:{port}/0", "counts").open(counts_delivery()))
    assert (error.code, type(error)) == ("HS-SNK-006", TransientSinkError)
    assert PASSWORD not in str(error)


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "redis://localhost:port/0"])
def test_an_address_of_something_else_is_refused(url: str) -> None:
    assert error_of(lambda: Redis(url, "counts").open(counts_delivery())).code == "HS-SNK-012"


def test_a_full_memory_discards_the_transaction_and_is_waited_for(server: RedisServer) -> None:
    sink = Redis(server.url, "words")
    sink.open(stream_delivery("board"))
    with server.client() as connection:
        connection.config_set("maxmemory", 1)
        try:
            error = error_of(lambda: sink.deliver(Parcel.of(1, stream(("rain", 1)))))
        finally:
            connection.config_set("maxmemory", "64mb")
        assert (error.code, type(error)) == ("HS-SNK-005", TransientSinkError)
        assert (got(sink), connection.exists("words")) == (None, 0)
    sink.deliver(Parcel.of(1, stream(("rain", 1))))
    sink.close()


def test_a_zombie_in_the_middle_of_a_delivery_is_refused(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    zombie, heir = Redis(server.url, "words"), Redis(server.url, "words")
    for sink in (zombie, heir):
        sink.open(stream_delivery("board"))

    def take_over(point: str) -> None:
        monkeypatch.setattr(redis.faults, "fault", lambda point: None)
        heir.deliver(Parcel.of(1, stream(("rain", 1))))

    monkeypatch.setattr(redis.faults, "fault", take_over)
    error = error_of(lambda: zombie.deliver(Parcel.of(1, stream(("rain", 1)))))
    assert (error.code, type(error)) == ("HS-SNK-006", TransientSinkError)
    zombie.deliver(Parcel.of(1, stream(("rain", 1))))
    with server.client() as connection:
        assert connection.xlen("words") == 1
    zombie.close()
    heir.close()


def test_a_connection_cut_anywhere_in_a_delivery_loses_and_doubles_nothing(server: RedisServer, tmp_path: Path) -> None:
    outgoing, (commits, oracle) = Outgoing(tmp_path / "ledger"), random_commits(seed=5, count=20)
    with Proxy.to(server.port) as proxy:
        sink = board(Redis(server.url.replace(str(server.port), str(proxy.port)), "counts"))
        for number, rows in enumerate(commits):
            outgoing.commit(rows)
            proxy.cut_after(30 + 41 * number)
            assert outgoing.deliver(sink)["board"].cursor == number + 1
        assert proxy.cuts >= 10
    found = RedisHarness(server).read_back("counts", COUNTS, ("word",))
    assert sorted(found, key=json.dumps) == sorted(oracle, key=json.dumps)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_restarts_in_the_middle_of_a_delivery(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    outgoing, restarts = Outgoing(tmp_path / "ledger"), list[str]()
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n)))

    def restart(point: str) -> None:
        if point == "during-delivery" and not restarts:
            restarts.append(point)
            server.restart(how)

    monkeypatch.setattr(redis.faults, "fault", restart)
    state = outgoing.deliver(board(Redis(server.url, "words"), key=()))["board"]
    assert (restarts, state.cursor, state.stopped) == (["during-delivery"], 4, None)
    found = RedisHarness(server).read_back("words", COUNTS, None)
    assert [row["n"] for row in found] == [0, 1, 2, 3]


@pytest.mark.chaos
@pytest.mark.parametrize("fault", ["before-delivery:2", "during-delivery:2", "after-delivery:2"])
def test_killed_at_any_point_of_delivery_every_row_is_there_once(
    server: RedisServer, tmp_path: Path, fault: str
) -> None:
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(Redis(server.url, "words"), key=())
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n)))
    outgoing.deliver_killed(fault, sink)
    outgoing.deliver(sink)
    with server.client() as connection:
        entries = [fields[b"n"] for _, fields in connection.xrange("words")]
    assert entries == [b"0", b"1", b"2", b"3"]
