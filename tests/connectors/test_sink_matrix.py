"""Every sink times every type: what arrives is what was sent, or a dead letter that the documentation names.

What is sent and checked is in matrix/matrix.py. Kafka gets each type alone through one producer and one topic for all:
one of each for each would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.kafka_topics import Topics
from tests.connectors.matrix import targets
from tests.connectors.matrix.matrix import SinkMatrix, TypeMatrix, WideMatrix
from tests.connectors.matrix.targets import Target
from tests.connectors.servers.postgres import PostgresServer
from tests.connectors.servers.receiver import Receiver
from tests.connectors.servers.redis import RedisServer

Folders = pytest.TempPathFactory


class TestConsole(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, tmp_path_factory: Folders) -> Target:
        return targets.ConsoleTarget(tmp_path_factory.mktemp("console"))


class TestParquet(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, tmp_path_factory: Folders) -> Target:
        return targets.ParquetTarget(tmp_path_factory.mktemp("parquet"))


class TestDelta(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, tmp_path_factory: Folders) -> Target:
        return targets.DeltaTarget(tmp_path_factory.mktemp("delta"))


class TestSqlite(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, tmp_path_factory: Folders) -> Target:
        return targets.SqliteTarget(tmp_path_factory.mktemp("sqlite"))


class TestDuckDB(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, tmp_path_factory: Folders) -> Target:
        return targets.DuckDBTarget(tmp_path_factory.mktemp("duckdb"))


class TestCall(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, tmp_path_factory: Folders) -> Target:
        return targets.CallTarget(tmp_path_factory.mktemp("call"))


class TestWebhook(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls) -> Iterator[Target]:
        with Receiver.start() as receiver:
            yield targets.WebhookTarget(receiver)


class TestPostgres(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, postgres_server: PostgresServer) -> Target:
        return targets.PostgresTarget(postgres_server.database())


class TestRedisHashes(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, redis_server: RedisServer) -> Target:
        return targets.RedisTarget(redis_server)


class TestRedisDocuments(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, redis_server: RedisServer) -> Target:
        return targets.RedisTarget(redis_server, "json")


class TestRedisStreams(SinkMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, redis_server: RedisServer) -> Target:
        return targets.RedisTarget(redis_server, "stream")


class TestKafka(WideMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, topics: Topics) -> Target:
        return targets.KafkaTarget(topics)


class TestKafkaTypes(TypeMatrix):
    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, topics: Topics) -> Iterator[Target]:
        target = targets.OneProducerTarget(topics)
        yield target
        target.close()
