"""Avro, Protobuf and the schema registry: good records become rows, bad ones are told apart one by one."""

from __future__ import annotations

import io
import json
import pickle
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hailstorm.errors import LogError, TopologyError, TransientLogError
from hailstorm.spouts.decode import Decoded, decoder
from hailstorm.spouts.decode.avro import Avro
from hailstorm.spouts.decode.protobuf import Protobuf

TWEET = {
    "type": "record",
    "name": "Tweet",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "scores", "type": {"type": "map", "values": "long"}},
        {"name": "mood", "type": {"type": "enum", "name": "Mood", "symbols": ["GOOD", "BAD"]}},
    ],
}
COLUMNS = [
    ("user", "string"),
    ("text", "string"),
    ("at", "timestamp"),
    ("price", "decimal(10,2)"),
    ("tags", "array<string>"),
    ("scores", "map<string,bigint>"),
    ("mood", "string"),
]
ROW: dict[str, Any] = {
    "user": "ann",
    "text": None,
    "at": datetime(2024, 5, 1, 12, 0, 0, 7, UTC),
    "price": Decimal("12.50"),
    "tags": ["a", "b"],
    "scores": {"x": 1},
    "mood": "BAD",
}
SEEN = {**ROW, "scores": [("x", 1)]}

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Mood { GOOD = 0; BAD = 1; }
message Other { int32 n = 1; }
message Tweet {
  message Place { string town = 1; }
  string user = 1;
  optional string text = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.Int64Value maybe = 4;
  repeated string tags = 5;
  map<string, int64> scores = 6;
  Mood mood = 7;
  Place place = 8;
}
"""
PROTO_COLUMNS = [
    ("user", "string"),
    ("text", "string"),
    ("at", "timestamp"),
    ("maybe", "bigint"),
    ("tags", "array<string>"),
    ("scores", "map<string,bigint>"),
    ("mood", "string"),
    ("place", "struct<town:string>"),
]
PROTO_SEEN: dict[str, Any] = {
    "user": "ann",
    "text": None,
    "at": datetime(2024, 5, 1, 12, 0, 0, 7, UTC),
    "maybe": 5,
    "tags": ["a"],
    "scores": [("x", 1)],
    "mood": "BAD",
    "place": {"town": "Ulm"},
}


def decoded(decode: Any, columns: list[tuple[str, str]], *values: bytes | None) -> Decoded:
    travelled = pickle.loads(pickle.dumps(decode))
    records = pa.record_batch({"value": pa.array(values, pa.binary())})
    return decoder(travelled, columns)(records)


def avro(row: dict[str, Any], schema: Any = TWEET) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), row)
    return body.getvalue()


def framed(id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, id) + body


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    (tmp_path / "tweet.avsc").write_text(json.dumps(TWEET))
    return tmp_path / "tweet.avsc"


@pytest.fixture
def proto_file(tmp_path: Path) -> Path:
    (tmp_path / "tweet.proto").write_text(PROTO)
    return tmp_path / "tweet.proto"


class Registry:
    """A schema registry of a few lines: what the tests put into `answers`, by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.authorized: str | None = None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                allowed = owner.authorized in (None, self.headers.get("Authorization"))
                found = owner.answers.get(self.path)
                self.send_response(401 if not allowed else 200 if found else 404)
                body = json.dumps(found or {"error_code": 40403}).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def registry() -> Iterator[Registry]:
    running = Registry()
    yield running
    running.stop()


class TestAvro:
    def test_records_of_a_schema_file_become_rows(self, schema_file: Path) -> None:
        found = decoded(Avro(schema_file), COLUMNS, avro(ROW), avro({**ROW, "user": "bob"}))
        assert found.bad == []
        assert found.rows.to_pylist() == [SEEN, {**SEEN, "user": "bob"}]

    def test_fields_that_the_spout_does_not_name_are_ignored(self, schema_file: Path) -> None:
        assert decoded(Avro(schema_file), [("mood", "string")], avro(ROW)).rows.to_pylist() == [{"mood": "BAD"}]

    def test_each_bad_record_is_told_apart(self, schema_file: Path) -> None:
        found = decoded(Avro(schema_file), COLUMNS, avro(ROW), b"\xff\xff", None, avro(ROW) + b"x", avro(ROW))
        assert found.rows.num_rows == 2
        assert found.origin.tolist() == [0, 4]
        assert [index for index, _ in found.bad] == [1, 2, 3]
        assert "null" in found.bad[1][1]
        assert "left over" in found.bad[2][1]

    def test_a_column_of_another_type_makes_bad_records(self, schema_file: Path) -> None:
        found = decoded(Avro(schema_file), [("user", "bigint")], avro(ROW))
        assert found.bad == [(0, "field 'user' is not BIGINT: 'ann'")]

    def test_the_writers_schema_comes_from_the_registry_and_is_asked_for_once(self, registry: Registry) -> None:
        registry.answers["/schemas/ids/7"] = {"schema": json.dumps(TWEET)}
        found = decoded(Avro(registry=registry.url), COLUMNS, framed(7, avro(ROW)), framed(7, avro(ROW)))
        assert found.rows.to_pylist() == [SEEN, SEEN]
        assert registry.asked == ["/schemas/ids/7"]

    def test_an_older_record_is_read_as_the_file_says(self, registry: Registry, schema_file: Path) -> None:
        older = {**TWEET, "fields": [inner for inner in TWEET["fields"] if inner["name"] != "text"]}  # type: ignore[index]
        registry.answers["/schemas/ids/3"] = {"schema": json.dumps(older)}
        found = decoded(Avro(schema_file, registry=registry.url), COLUMNS, framed(3, avro(ROW, older)))
        assert found.rows.to_pylist() == [SEEN]

    def test_a_schema_may_refer_to_another(self, registry: Registry) -> None:
        inner = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
        outer = {"type": "record", "name": "Line", "fields": [{"name": "to", "type": "Point"}]}
        registry.answers["/subjects/a%2Fpoint/versions/2"] = {"schema": json.dumps(inner)}
        registry.answers["/schemas/ids/9"] = {
            "schema": json.dumps(outer),
            "references": [{"name": "Point", "subject": "a/point", "version": 2}],
        }
        whole = {**outer, "fields": [{"name": "to", "type": inner}]}
        body = framed(9, avro({"to": {"x": 5}}, whole))
        found = decoded(Avro(registry=registry.url), [("to", "struct<x:int>")], body)
        assert found.rows.to_pylist() == [{"to": {"x": 5}}]

    def test_an_unknown_schema_id_and_a_bare_value_are_bad_records(self, registry: Registry) -> None:
        registry.answers["/schemas/ids/8"] = {"schema": PROTO, "schemaType": "PROTOBUF"}
        format = Avro(registry=registry.url)
        found = decoded(format, COLUMNS, framed(99, b"x"), framed(99, b"y"), b"{}", framed(8, b""), None)
        assert [reason for _, reason in found.bad] == [
            "LookupError: the registry has no schema with the id 99",
            "LookupError: the registry has no schema with the id 99",
            "ValueError: it does not begin with a schema id (Confluent's wire format)",
            "ValueError: schema 8 is PROTOBUF, not AVRO",
            "ValueError: the value is null",
        ]
        assert registry.asked.count("/schemas/ids/99") == 1

    def test_a_registry_that_is_down_makes_no_dead_letters(self, registry: Registry) -> None:
        url = registry.url
        registry.server.server_close()
        with pytest.raises(TransientLogError, match="cannot be used"):
            decoded(Avro(registry=url.replace("http://", "http://me:secret@")), COLUMNS, framed(55, b"x"))

    def test_the_registrys_password_comes_from_the_environment(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry.authorized = "Basic bWU6cmFpbg=="  # me:rain
        registry.answers["/schemas/ids/7"] = {"schema": json.dumps(TWEET)}
        monkeypatch.setenv("REGISTRY_PASSWORD", "rain")
        good = Avro(registry=f"http://me:${{env:REGISTRY_PASSWORD}}@{registry.place}")
        assert decoded(good, COLUMNS, framed(7, avro(ROW))).rows.num_rows == 1
        monkeypatch.setenv("REGISTRY_PASSWORD", "snow-flakes")
        with pytest.raises(LogError, match="refuses us") as caught:
            decoded(Avro(registry=f"http://you:${{env:REGISTRY_PASSWORD}}@{registry.place}"), COLUMNS, framed(7, b""))
        assert "snow-flakes" not in str(caught.value)

    def test_mistakes_are_found_when_it_is_declared(self, schema_file: Path) -> None:
        with pytest.raises(TopologyError, match="no schema file"):
            Avro("nowhere.avsc")
        with pytest.raises(TopologyError, match="schema file or a registry"):
            Avro()
        with pytest.raises(TopologyError, match="no field 'usr'") as caught:
            decoder(Avro(schema_file), [("usr", "string")])
        assert "Did you mean 'user'?" in str(caught.value)
        schema_file.write_text("{}")
        with pytest.raises(TopologyError, match="not an Avro schema"):
            Avro(schema_file)


class TestProtobuf:
    def tweet(self, format: Protobuf) -> Any:
        """A record made with the library alone."""
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(format.descriptors).file:
            pool.Add(file)
        made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Tweet"))(user="ann", tags=["a"])
        made.at.FromDatetime(datetime(2024, 5, 1, 12, 0, 0, 7))
        made.maybe.value = 5
        made.scores["x"] = 1
        made.mood = 1
        made.place.town = "Ulm"
        return made

    def test_records_of_a_schema_file_become_rows(self, proto_file: Path) -> None:
        format = Protobuf(proto_file, "shop.Tweet")
        found = decoded(format, PROTO_COLUMNS, self.tweet(format).SerializeToString(), b"", b"\xff", None)
        assert found.rows.to_pylist() == [
            PROTO_SEEN,
            dict.fromkeys(PROTO_SEEN) | {"user": "", "tags": [], "scores": [], "mood": "GOOD"},
        ]
        assert [index for index, _ in found.bad] == [2, 3]

    def test_a_compiled_file_does_as_well(self, proto_file: Path) -> None:
        compiled = proto_file.with_suffix(".desc")
        compiled.write_bytes(Protobuf(proto_file, "shop.Tweet").descriptors)
        format = Protobuf(compiled, "shop.Tweet")
        found = decoded(format, PROTO_COLUMNS, self.tweet(format).SerializeToString())
        assert found.rows.to_pylist() == [PROTO_SEEN]

    def test_the_registry_and_the_record_tell_the_type(self, registry: Registry, proto_file: Path) -> None:
        registry.answers["/schemas/ids/4"] = {"schema": PROTO, "schemaType": "PROTOBUF"}
        body = self.tweet(Protobuf(proto_file, "shop.Tweet")).SerializeToString()
        format = Protobuf(registry=registry.url)
        second, first, nested = b"\x02\x02", b"\x00", b"\x04\x02\x00"
        found = decoded(format, PROTO_COLUMNS, framed(4, second + body), framed(77, body))
        assert found.rows.to_pylist() == [PROTO_SEEN]
        assert "no schema with the id 77" in found.bad[0][1]
        assert decoded(format, [("n", "int")], framed(4, first + b"\x08\x07")).rows.to_pylist() == [{"n": 7}]
        place = framed(4, nested + b"\x0a\x03Ulm")
        assert decoded(format, [("town", "string")], place).rows.to_pylist() == [{"town": "Ulm"}]
        strict = Protobuf(message="shop.Tweet", registry=registry.url)
        assert "not a shop.Tweet" in decoded(strict, PROTO_COLUMNS, framed(4, first)).bad[0][1]

    def test_mistakes_are_found_when_it_is_declared(self, proto_file: Path) -> None:
        with pytest.raises(TopologyError, match="several messages"):
            Protobuf(proto_file)
        with pytest.raises(TopologyError, match=r"no message 'shop.Twet'"):
            Protobuf(proto_file, "shop.Twet")
        with pytest.raises(TopologyError, match="no field 'usr'"):
            decoder(Protobuf(proto_file, "shop.Tweet"), [("usr", "string")])
        with pytest.raises(TopologyError, match="only one"):
            Protobuf()
        proto_file.write_text("message {")
        with pytest.raises(TopologyError, match="not a Protobuf schema"):
            Protobuf(proto_file, "shop.Tweet")


class TestKafkaColumns:
    COLUMNS = (("kafka_topic", "string"), ("n", "bigint"), ("kafka_key", "string"), ("kafka_timestamp", "timestamp"))

    def records(self, **more: Any) -> pa.RecordBatch:
        at = datetime(2024, 5, 1, tzinfo=UTC)
        columns = {
            "offset": [3, 4, 5],
            "time": pa.array([at] * 3, pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"a", b"\xff", b"c"], pa.binary()),
            "value": pa.array([b'{"n": 1}', b'{"n": 2}', b"no"], pa.binary()),
        }
        return pa.record_batch({**columns, **more})

    def test_they_stand_where_the_schema_says(self) -> None:
        found = decoder("json", self.COLUMNS)(self.records(kafka_topic=["t"] * 3))
        at = datetime(2024, 5, 1, tzinfo=UTC)
        assert found.rows.to_pylist() == [{"kafka_topic": "t", "n": 1, "kafka_key": "a", "kafka_timestamp": at}]
        assert found.origin.tolist() == [0]
        assert [index for index, _ in found.bad] == [1, 2]
        assert found.bad[0][1] == "its key is not UTF-8"

    def test_key_and_time_are_in_every_log(self) -> None:
        found = decoder("json", [("n", "bigint"), ("kafka_key", "binary")])(self.records())
        assert found.rows.to_pylist() == [{"n": 1, "kafka_key": b"a"}, {"n": 2, "kafka_key": b"\xff"}]

    def test_what_was_not_asked_for_is_told(self) -> None:
        found = decoder("json", self.COLUMNS)(self.records())
        assert len(found.bad) == 3
        assert "metadata=True" in found.bad[0][1]

    def test_a_wrong_type_is_found_when_it_is_declared(self) -> None:
        with pytest.raises(TopologyError, match="'kafka_key' is BINARY or STRING"):
            decoder("json", [("kafka_key", "bigint")])
