"""The targets of the matrix: how each sink is made, and what a reader of its target finds, as values that were sent.

What a target documents that it does not hold, or holds as another value,
it says in `refuses` and `held`; everything else must arrive exactly.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message
from deltalake import DeltaTable, QueryBuilder

from hailstorm.columns import KIND
from hailstorm.sinks.call import Call, Row
from hailstorm.sinks.console import Console
from hailstorm.sinks.delta import Delta
from hailstorm.sinks.duckdb import DuckDB
from hailstorm.sinks.kafka.producer import Transactions
from hailstorm.sinks.kafka.sink import Kafka
from hailstorm.sinks.parquet import Parquet
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.redis import Form, Redis
from hailstorm.sinks.sink import Delivery, Sink
from hailstorm.sinks.sqlite import Sqlite
from hailstorm.sinks.webhook import Webhook
from hailstorm.spouts.kafka.client import Cluster
from tests.connectors.kafka_topics import Topics
from tests.connectors.matrix.kinds import Sent, leaves, of_arrow, of_json, of_python, of_text, replaced
from tests.connectors.servers.receiver import Receiver
from tests.connectors.servers.redis import RedisServer
from tests.connectors.test_sinks import Pipe, Piped

SentRow = dict[str, Sent]
Change = tuple[str, SentRow]
Key = tuple[str, ...] | None  # None: a stream

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 to 9999
_DAY = 86_400_000_000
_POSTGRES_BEGINS = -210_866_803_200_000_000  # 4714-11-24 BC, in microseconds


class Target:
    checks_columns: ClassVar[bool] = True  # whether the target has columns, which must be the step's

    @property
    def topology(self) -> str:
        """Whose sinks they are: targets that share a server have cursors of their own."""
        return "matrix"

    def make(self, name: str, key: Key) -> Sink:
        raise NotImplementedError

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        """The rows of a stream, or those of a table after all changes."""
        raise NotImplementedError

    def lacks(self, kind: str) -> bool:
        """Whether the target has no such type: that is an error at opening."""
        return False

    def refuses(self, kind: pa.DataType, value: Sent) -> bool:
        """Whether no row with this value in a column of this type can be there: it is a dead letter."""
        return False

    def held(self, kind: pa.DataType, value: Sent) -> Sent:
        """What is there for this value: itself, unless the documentation says otherwise."""
        return value


@dataclass
class FileTarget(Target):
    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / f"{zlib.crc32(name.encode()):x}"


class ParquetTarget(FileTarget):
    def make(self, name: str, key: Key) -> Sink:
        return Parquet(self.file(name))

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        changes: list[Change] = []
        for file in sorted(self.file(name).glob("*.parquet")):
            table = pq.ParquetFile(file).read()
            kinds = table[KIND].to_pylist() if KIND in table.column_names else ["insert"] * table.num_rows
            changes += zip(kinds, _of_table(table, schema), strict=True)
        return _after(changes, key)


class DeltaTarget(FileTarget):
    def make(self, name: str, key: Key) -> Sink:
        return Delta(self.file(name))

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        # Not to_pyarrow_table: it cannot read statistics with dates before year 1.
        query = QueryBuilder().register("rows", DeltaTable(self.file(name)))
        return _of_table(pa.table(query.execute("SELECT * FROM rows")), schema)

    def lacks(self, kind: str) -> bool:
        return "map<" in kind and "timestamp_ntz" in kind


class DuckDBTarget(FileTarget):
    def make(self, name: str, key: Key) -> Sink:
        return DuckDB(self.file(name), name)

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        with duckdb.connect(str(self.file(name))) as connection:
            return _of_table(connection.sql(f"SELECT * FROM {_quoted(name)}").to_arrow_table(), schema)


class SqliteTarget(FileTarget):
    def make(self, name: str, key: Key) -> Sink:
        return Sqlite(self.file("all"), name)

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        connection = sqlite3.connect(self.file("all"))
        found = connection.execute(f"SELECT {_names(schema)} FROM {_quoted(name)}").fetchall()
        connection.close()
        return [
            {one.name: _of_sqlite(one.type, value) for one, value in zip(schema, row, strict=True)} for row in found
        ]

    def held(self, kind: pa.DataType, value: Sent) -> Sent:
        return 0.0 if pa.types.is_floating(kind) and value == 0 else value  # it keeps no sign of zero


@dataclass
class PostgresTarget(Target):
    url: str

    def make(self, name: str, key: Key) -> Sink:
        return Postgres(self.url, self._table(name))

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        columns = ", ".join(_of_postgres(one).replace("%", "%%") for one in schema)
        table = _quoted(self._table(name))
        with psycopg.connect(self.url) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.execute(f"SELECT {columns} FROM {table.replace('%', '%%')}", []).fetchall()
        return [
            {one.name: _from_postgres(one.type, value) for one, value in zip(schema, row, strict=True)} for row in found
        ]

    def _table(self, name: str) -> str:
        """A name that PostgreSQL takes: of at most 63 bytes, and without a dot."""
        return f"{name.replace('.', '')[:40]} {zlib.crc32(name.encode()):x}"

    def refuses(self, kind: pa.DataType, value: Sent) -> bool:
        is_too_early = pa.types.is_timestamp(kind) and value is not None and value < _POSTGRES_BEGINS
        return is_too_early or any(isinstance(scalar, str) and "\0" in scalar for _, scalar in leaves(kind, value))

    def held(self, kind: pa.DataType, value: Sent) -> Sent:
        def of_jsonb(leaf: pa.DataType, scalar: Sent) -> Sent:
            return 0.0 if pa.types.is_floating(leaf) and scalar == 0 else scalar  # its numbers keep no sign of zero

        return replaced(kind, value, of_jsonb) if pa.types.is_nested(kind) else value


@dataclass
class RedisTarget(Target):
    server: RedisServer
    form: Form | None = None
    checks_columns = False

    def make(self, name: str, key: Key) -> Sink:
        return Redis(self.server.url, self._key(name), None if key is None else self.form)

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        with self.server.client() as client:
            if key is None or self.form == "stream":
                entries = [fields for _, fields in client.xrange(self._key(name))]
                kinds = [fields.get(KIND.encode(), b"insert").decode() for fields in entries]
                return _after(list(zip(kinds, (_of_fields(one, schema) for one in entries), strict=True)), key)
            found = [one for one in client.scan_iter() if one.startswith(f"{self._key(name)}:".encode())]
            if self.form == "json":
                return [_of_document(client.get(one), schema) for one in found]
            return [_of_fields(client.hgetall(one), schema) for one in found]

    @property
    def topology(self) -> str:
        return f"matrix of {self.form}"

    def _key(self, name: str) -> str:
        return f"{self.form}/{name}"


@dataclass
class WebhookTarget(Target):
    receiver: Receiver
    checks_columns = False

    def make(self, name: str, key: Key) -> Sink:
        return Webhook(self.receiver.url, headers={"X-Target": name.encode().hex()}, batch=7)

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        seen: dict[str, Change] = {}
        for request in self.receiver.requests:
            if request.headers["X-Target"] == name.encode().hex():
                for row in request.body["rows"]:
                    seen[row["key"]] = (row["kind"], _of_json_row(row["row"], schema))
        return _after(list(seen.values()), key)


class ConsoleTarget(FileTarget):
    checks_columns = False

    def make(self, name: str, key: Key) -> Sink:
        return Console(terminal=Piped(file=cast(IO[str], Pipe(self.file(name))), force_terminal=False))

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        lines = [json.loads(line) for line in self.file(name).read_text(encoding="utf-8").split("\n") if line]
        return _after([(line.get(KIND, "insert"), _of_json_row(line, schema)) for line in lines], key)


@dataclass(frozen=True)
class Remembers:
    file: Path

    def __call__(self, rows: list[Row]) -> None:
        with open(self.file, "ab") as stream:
            for row in rows:
                pickle.dump((row.kind, dict(row)), stream)


class CallTarget(FileTarget):
    checks_columns = False

    def make(self, name: str, key: Key) -> Sink:
        return Call(Remembers(self.file(name)))

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        changes: list[Change] = []
        with open(self.file(name), "rb") as stream:
            while stream.peek(1):
                kind, row = pickle.load(stream)
                changes.append((kind, {one.name: of_python(one.type, row[one.name]) for one in schema}))
        return _after(changes, key)

    def refuses(self, kind: pa.DataType, value: Sent) -> bool:
        """Python has the years 1 to 9999."""
        return any(
            (pa.types.is_date(leaf) and not _FIRST_DAY <= scalar <= _LAST_DAY)
            or (pa.types.is_timestamp(leaf) and not _FIRST_DAY <= scalar // _DAY <= _LAST_DAY)
            for leaf, scalar in leaves(kind, value)
        )


@dataclass
class KafkaTarget(Target):
    topics: Topics
    made: dict[str, str] = field(default_factory=dict)
    checks_columns = False

    def __post_init__(self) -> None:
        self.cursors = self.topics.new("cursors", cleanup_policy="compact")

    def make(self, name: str, key: Key) -> Sink:
        if name not in self.made:
            self.made[name] = self.topics.new("matrix", 2)
        return Kafka(self.made[name], servers=self.topics.server.servers, cursor_topic=self.cursors)

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        return _of_messages(self.topics.read(self.made[name], 2), schema, key)


@dataclass
class OneProducerTarget(KafkaTarget):
    """One topic and one producer for all cells: to make a topic and to open a producer takes longer than all that a
    cell does with them. Each cell has the part of the topic that begins where it was first asked for."""

    begins: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.topic = self.topics.new("types")
        self.producer = Transactions(
            Cluster(self.topics.server.servers, {}),
            self.topic,
            self.cursors,
            Delivery("matrix", "types", "ledger", pa.schema([]), (), False),
        )
        self.producer.open()

    def make(self, name: str, key: Key) -> Sink:
        if name not in self.begins:
            self.begins[name] = self.topics.end(self.topic)
        return _OfProducer(self.topic, servers=self.topics.server.servers, producer=self.producer)

    def rows(self, name: str, schema: pa.Schema, key: Key) -> list[SentRow]:
        return _of_messages(self.topics.read(self.topic, start=self.begins[name]), schema, key)

    def close(self) -> None:
        self.producer.close()


@dataclass(frozen=True)
class _OfProducer(Kafka):
    """A sink whose producer is there before it and after it."""

    producer: Transactions | None = None

    def open(self, delivery: Delivery) -> None:
        assert self.producer is not None
        self._shape.check(delivery)
        self.producer.delivery, self.producer.cursor = delivery, None
        self._session.begin(self.producer)

    def close(self) -> None:
        self._session.end()


def _of_messages(messages: list[Message], schema: pa.Schema, key: Key) -> list[SentRow]:
    if key is None:
        return [_of_document(message.value(), schema) for message in messages]
    table: dict[bytes | None, bytes | None] = {}
    for message in messages:
        table[message.key()] = message.value()
    return [_of_document(value, schema) for value in table.values() if value is not None]


def _after(changes: list[Change], key: Key) -> list[SentRow]:
    """What a log of changes amounts to."""
    if key is None:
        return [row for _, row in changes]
    table: dict[str, SentRow] = {}
    for kind, row in changes:
        identity = repr([row[name] for name in key])
        table.pop(identity, None)
        if kind != "delete":
            table[identity] = row
    return list(table.values())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _names(schema: pa.Schema) -> str:
    return ", ".join(map(_quoted, schema.names))


def _of_table(table: pa.Table, schema: pa.Schema) -> list[SentRow]:
    columns = [of_arrow(table[one.name], one.type) for one in schema]
    return [dict(zip(schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _of_json_row(row: dict[str, Any], schema: pa.Schema) -> SentRow:
    return {one.name: of_json(one.type, row[one.name]) for one in schema}


def _of_document(text: bytes, schema: pa.Schema) -> SentRow:
    document = json.loads(text)
    assert list(document) == schema.names
    return _of_json_row(document, schema)


def _of_fields(fields: dict[bytes, bytes], schema: pa.Schema) -> SentRow:
    """A hash or an entry of Redis: a field for each column that is not null."""
    row: SentRow = {}
    for one in schema:
        text = fields.get(one.name.encode())
        if text is None or pa.types.is_binary(one.type):
            row[one.name] = text
        elif pa.types.is_nested(one.type) or pa.types.is_boolean(one.type) or pa.types.is_integer(one.type):
            row[one.name] = of_json(one.type, json.loads(text))
        else:
            row[one.name] = of_text(one.type, text.decode())
    return row


def _of_sqlite(kind: pa.DataType, value: Any) -> Sent:
    if value is None or pa.types.is_binary(kind) or pa.types.is_integer(kind):
        return value
    if pa.types.is_boolean(kind):
        return {0: False, 1: True}[value]
    if pa.types.is_floating(kind):
        return of_json(kind, value)
    return of_json(kind, json.loads(value)) if pa.types.is_nested(kind) else of_text(kind, value)


def _of_postgres(column: pa.Field) -> str:
    """SQL that gives the column as psycopg can read it: it has no years after 9999."""
    name = _quoted(column.name)
    if pa.types.is_timestamp(column.type):
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    if pa.types.is_floating(column.type):
        return f"{name}::double precision"  # psycopg would read the shortest text of a real, which is another double
    return f"{name} - date '1970-01-01'" if pa.types.is_date(column.type) else name


def _from_postgres(kind: pa.DataType, value: Any) -> Sent:
    return of_json(kind, value) if pa.types.is_nested(kind) else value
