"""The Spark session that a topology runs on, with the settings that measurement asked for.

Who calls it: `run`, `demo`, `check`, the test driver, the benches. One session per process; a second call gives
the same one. Spark's own log goes to a file: the console is ours.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from hailstorm.engine.java import ensure_java, hush

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Pipes instead of TCP to the Python workers: no delayed acknowledgements, 40 ms less for every Python pass.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "hailstorm.engine.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # A tick is planned once and run many times: re-planning it while it runs costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.scheduler.mode": "FAIR",  # compaction may not queue in front of a tick
    # Spark keeps the story of past jobs for its UI, which is off: a day of ticks would fill the memory with it.
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
}

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


def start_session(
    name: str, log_file: Path | None = None, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or give the running session. Takes seconds the first time."""
    # Workers must find this interpreter and its packages; the setting alone is not read on every path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # pyspark prints failed expressions as pages of JSON; we show them ourselves.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    log_file = log_file or Path(tempfile.gettempdir()) / f"hailstorm-spark-{os.getpid()}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log4j = log_file.with_suffix(".log4j2.properties")
    log4j.write_text(_LOG4J.format(file=log_file))
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    settings = {
        **SETTINGS,
        "spark.pyspark.python": sys.executable,
        "spark.driver.memory": "4g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} -XX:+UseParallelGC",
        **(conf or {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    ensure_java(SparkConf().setAll(list(settings.items())))
    session = builder.getOrCreate()
    hush()
    return session
