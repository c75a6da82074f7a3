"""The sinks: what delivers to the outside world, each in a file of its own. `sink.py` is their protocol."""

from hailstorm.sinks.call import Call
from hailstorm.sinks.console import Console
from hailstorm.sinks.delta import Delta
from hailstorm.sinks.duckdb import DuckDB
from hailstorm.sinks.parquet import Parquet
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.redis import Redis
from hailstorm.sinks.sqlite import Sqlite
from hailstorm.sinks.webhook import Webhook

__all__ = ["Call", "Console", "Delta", "DuckDB", "Parquet", "Postgres", "Redis", "Sqlite", "Webhook"]
