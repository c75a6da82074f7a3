"""Spark's log is a few files of bounded size, whatever Spark has to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hailstorm.engine.spark import session


def test_sparks_log_is_rotated_and_keeps_four_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LOG_SIZE", "10KB")
    folder = tmp_path / "a folder, 100% ü"  # where files land must not depend on its name
    folder.mkdir()
    settings = tmp_path / "log4j2.properties"
    settings.write_text(session._log_settings(folder / "spark.log"))
    jvm: Any = spark.sparkContext._jvm
    context = jvm.org.apache.logging.log4j.core.LoggerContext("a log of its own")
    context.setConfigLocation(jvm.java.net.URI(settings.as_uri()))
    context.start()
    try:
        logger = context.getLogger("Test")
        for number in range(200):
            logger.warn(f"line {number} " + "x" * 500)
    finally:
        context.stop()
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["spark.log", "spark.log.1", "spark.log.2", "spark.log.3"]
    assert all(path.stat().st_size < 12_000 for path in folder.iterdir())
    assert "line 199 " in (folder / "spark.log").read_text()
