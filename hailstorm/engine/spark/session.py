"""The Spark session that a topology runs on, with the settings that measurement asked for.

Who calls it: `run`, `demo`, `check`, the test driver, the benches. One session per process; a second call gives
the same one. Spark's own log goes to a file: the console is ours.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from hailstorm.engine.spark.java import ensure_java, hush
from hailstorm.engine.spark.scratch import scratch_folder
from hailstorm.errors import UsageError

SETTINGS: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "hailstorm.engine.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),  # packed parts are megabytes each (stages/exchange.py)
    # A tick is planned once and run many times: re-planning it while it runs costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # Of a filter that is always false Spark makes an empty table, and then does not run what is above it: stages that
    # write state and outboxes would be left out.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PruneFilters",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.scheduler.mode": "FAIR",  # compaction must not queue in front of a tick
}

_UI = "spark.ui.enabled"
# Spark keeps the story of past jobs for its UI also while that is off: a day of ticks would fill the memory with it.
# Where the UI is on, there is a reader, and Spark's own limits (1,000 jobs) hold.
_SHORT_STORY: Mapping[str, str] = {
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
}
_IDLE, _CACHED_IDLE = "spark.dynamicAllocation.executorIdleTimeout", "spark.dynamicAllocation.cachedExecutorIdleTimeout"

# Four files of 10 MB at most, whatever happens.
_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {pattern}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {size}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""
_LOG_SIZE = "10MB"
# Files instead of TCP to the Python workers: no delayed acknowledgements, 40 ms less for every Python pass.
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_LONGEST_FOLDER_OF_SOCKETS = 50  # bytes; a socket's whole path has at most 103, and pyspark's names are long
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(\[(?P<slots>\d+|\*)(?P<failures>,\d+)?\])?")


def start_session(
    name: str, log_file: Path | None = None, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or give the running session. Takes seconds the first time.

    Raises UsageError when Java does not start, or when Spark refuses the settings.
    """
    conf = conf or {}
    master = master or conf.get("spark.master") or "local[*]"
    # Workers must find this interpreter and its packages; the setting alone is not read on every path.
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python", sys.executable)
    host = conf.get("spark.driver.host") or _own_address(master)
    os.environ.setdefault("SPARK_LOCAL_IP", host)
    # pyspark prints failed expressions as pages of JSON; we show them ourselves.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    scratch = scratch_folder()
    log_file = log_file or scratch / "spark.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_log_settings(log_file.absolute()))
    java = f"-Dlog4j2.configurationFile={log4j.as_uri()} {_java_option('java.io.tmpdir', scratch)} -XX:+UseParallelGC"
    settings = {
        **defaults(conf),
        "spark.pyspark.python": sys.executable,
        "spark.driver.memory": "4g",
        "spark.local.dir": str(scratch),
        **_sockets_in(scratch, everywhere=_LOCAL.fullmatch(master) is None),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        **conf,
        _JAVA_OPTIONS: f"{java} {conf.get(_JAVA_OPTIONS, '')}".rstrip(),
    }
    ensure_java(SparkConf().setAll(list(settings.items())))
    master, cores = _with_a_slot_for_a_resident(master)
    if cores:
        settings.setdefault("spark.default.parallelism", str(cores))
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Py4JJavaError as error:
        words = str(error.java_exception.getMessage()).splitlines()[0]
        raise UsageError(61, f"Spark did not start: {words}", hint=f"Its log is {log_file}") from error
    hush()
    return session


def defaults(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark that we choose, where the user's own, which these are, say nothing else."""
    story = {} if conf.get(_UI, "false").lower() == "true" else _SHORT_STORY
    # An executor that has a part of an anchor (plan/ranges.py) is idle all the same: nothing is lost with it.
    return {_UI: "false", _CACHED_IDLE: conf.get(_IDLE, "60s"), **SETTINGS, **story}


def is_on_this_machine(spark: SparkSession) -> bool:
    """Whether tasks run in the JVM that this process has started."""
    return _LOCAL.fullmatch(str(spark.sparkContext.master)) is not None


def has_a_slot_for_a_resident(spark: SparkSession) -> bool:
    """Whether a task that stays leaves a slot, or more, to other tasks."""
    context = spark.sparkContext
    if (local := _LOCAL.fullmatch(str(context.master))) is not None:
        return _slots(local) > context.defaultParallelism
    spark_context = context._jsc.sc()
    profile = spark_context.resourceProfileManager().defaultResourceProfile()
    # Of the executors that are there now, whatever a task takes of them (spark.task.cpus).
    return int(spark_context.maxNumConcurrentTasks(profile)) > 1


def _with_a_slot_for_a_resident(master: str) -> tuple[str, int]:
    """A local master with one slot more than cores, and how many those are; other masters as they are, and 0."""
    local = _LOCAL.fullmatch(master)
    if local is None:
        return master, 0
    cores = _slots(local)
    return f"local[{cores + 1}{local['failures'] or ''}]", cores


def _slots(local: re.Match[str]) -> int:
    if local["slots"] != "*":
        return int(local["slots"] or 1)
    jvm = SparkContext._jvm
    assert jvm is not None
    return int(jvm.Runtime.getRuntime().availableProcessors())


def _own_address(master: str) -> str:
    """The address of this machine that executors can dial: loopback, but for a cluster that is elsewhere."""
    for host, port in re.findall(r"(?:spark://|k8s://https?://|k8s://|,)(\[[^\]]+\]|[^:,/]+)(?::(\d+))?", master):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host.strip("[]"), int(port or 443)))  # sends nothing: it only looks for the way there
            return str(way.getsockname()[0])
    if master == "yarn":  # where that is, only Hadoop's own settings say: all others know this machine by its name
        with suppress(OSError):
            return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


def _sockets_in(folder: Path, everywhere: bool) -> dict[str, str]:
    """Sockets as files, where the name of a file in this folder is not too long for that; else TCP, which is slower.

    `everywhere`: other machines do not have the folder, and use their own.
    """
    if len(os.fsencode(folder)) > _LONGEST_FOLDER_OF_SOCKETS:
        return {_SOCKETS: "false"}
    if everywhere:
        return {_SOCKETS: "true"}
    return {_SOCKETS: "true", f"{_SOCKETS.removesuffix('enabled')}dir": str(folder)}


def _log_settings(file: Path) -> str:
    """In a pattern `%` has a meaning, in a name it has none. Java reads these settings as ASCII, with escapes."""
    name = str(file).replace("${", "$${").replace("\\", "\\\\")
    text = _LOG4J.format(file=name, pattern=name.replace("%", "%%"), size=_LOG_SIZE)
    units = array("H", text.encode("utf-16", "surrogatepass")[2:])
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


def _java_option(name: str, path: Path) -> str:
    """A definition that Spark's launcher takes apart at spaces, unless they stand in quotes."""
    text = f"-D{name}={path}".replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
