"""What all tests share: one Spark session per process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from hailstorm.engine.session import start_session

    session = start_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
