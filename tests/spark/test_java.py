"""What Python asks the JVM while a topology is planned."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import JVMView
from pyspark.sql import SparkSession, functions


def test_java_is_not_asked_again_where_the_classes_are_that_pyspark_names_by_short_names(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = JVMView.__getattr__

    def heard(view: JVMView, name: str) -> Any:
        asked.append(name)
        return ask(view, name)

    monkeypatch.setattr(JVMView, "__getattr__", heard)
    frame = spark.range(3).where(functions.col("id").isin(1, 2)).withColumn("n", functions.expr("id + 1"))
    mapped = frame.mapInArrow(lambda batches: batches, "id BIGINT, n BIGINT")
    assert mapped.count() == 2
    assert not [name for name in asked if "." not in name]
