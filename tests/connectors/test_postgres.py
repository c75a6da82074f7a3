"""Postgres passes the contract of all sinks, against a real server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from hailstorm.sinks.postgres import Postgres
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
