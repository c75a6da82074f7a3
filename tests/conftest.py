"""What all tests share: one Spark session per process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use Spark are marked by that alone, so that `make check` can leave them out."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from hailstorm.engine.session import start_session

    session = start_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
