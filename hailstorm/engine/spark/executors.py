"""A look at every executor of a cluster, before anything depends on them: `run` and `doctor --master` come here.

Executors share nothing with the driver but the ledger and the logs. What they lack is told at once and by name, and not
as the failure of some task later on.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hailstorm.errors import HailstormError, UsageError
from hailstorm.ledger.stores import is_folder, open_store
from hailstorm.spouts.source import Source

PACKAGES = ("hailstorm", "pyspark", "pyarrow", "numpy", "pandas", "msgspec", "obstore")
SECONDS_TO_COME = 120.0
MOST_SECONDS_APART = 2.0
_SETTLED_SECONDS = 1.0
_TRIES = 5
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")


class Seen(msgspec.Struct, frozen=True):
    """What one executor is like."""

    host: str
    place: str  # tells executors of one machine apart
    python: str
    packages: dict[str, str]  # those that it has, with versions
    clock: float
    ledger: str  # why the ledger cannot be read; empty when it can be
    logs: dict[str, str]  # spout -> why its log cannot be read

    def wrong(self, wanted: Mapping[str, str], sent: float, received: float) -> Iterator[str]:
        """What is wrong with it, one sentence each. It was asked between these moments of the driver's clock."""
        missing = [f"{name} {number}" for name, number in wanted.items() if name not in self.packages]
        if missing:
            yield f"it lacks the packages {', '.join(missing)}"
        for name, number in wanted.items():
            if self.packages.get(name, number) != number:
                yield f"it has {name} {self.packages[name]}, and the driver has {number}"
        if self.ledger:
            yield f"it cannot read the ledger: {self.ledger}"
        for spout, why in self.logs.items():
            yield f"it cannot read the log of '{spout}': {why}"
        apart = max(sent - self.clock, self.clock - received)
        if apart > MOST_SECONDS_APART:
            yield f"its clock is {apart:.0f} s {'behind' if self.clock < sent else 'ahead of'} the driver's"


@dataclass(frozen=True)
class Look:
    """The function that runs on executors."""

    ledger: str | None
    logs: Mapping[str, Source]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        seen = msgspec.json.encode(self.seen())
        time.sleep(0.3)  # so that another task does not come to this executor, but to one that is idle
        yield pa.RecordBatch.from_pydict({"seen": [seen]}, pa.schema([("seen", pa.binary())]))

    def seen(self) -> Seen:
        return Seen(
            host=socket.gethostname(),
            place=os.environ.get("SPARK_EXECUTOR_DIRS") or str(os.getppid()),
            python=platform.python_version(),
            packages=own_packages(),
            clock=time.time(),
            ledger=self._ledger(),
            logs={spout: why for spout, source in self.logs.items() if (why := _trouble_with(source))},
        )

    def _ledger(self) -> str:
        if self.ledger is None:
            return ""
        try:
            return "" if open_store(self.ledger).exists("hailstorm.json") else "there is none"
        except HailstormError as error:
            return error.what
        except OSError as error:
            return error.strerror or str(error)


def own_packages() -> dict[str, str]:
    """The packages that matter, and their versions, where this runs."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def executors(spark: SparkSession) -> int:
    """How many there are by now, the driver not counted."""
    found = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(found.apply(index).id() != "driver" for index in range(found.size()))


def await_executors(spark: SparkSession) -> int:
    """Wait until executors have come, and no more do. How many there are."""
    deadline, count, since = time.monotonic() + SECONDS_TO_COME, 0, time.monotonic()
    with _tasks_that_need_executors(spark):
        while not count or time.monotonic() - since < _SETTLED_SECONDS:
            if time.monotonic() > deadline:
                raise UsageError(
                    71,
                    f"no executor came in {SECONDS_TO_COME:.0f} s from {spark.sparkContext.master}",
                    hint="Are its workers up, with memory and cores to spare (--conf spark.executor.memory=1g)?\n"
                    "Can they reach this machine? They dial --conf spark.driver.host=ADDRESS and "
                    "spark.driver.port=PORT.",
                )
            if (now := executors(spark)) != count:
                count, since = now, time.monotonic()
            time.sleep(0.1)
    return count


@contextmanager
def _tasks_that_need_executors(spark: SparkSession) -> Iterator[None]:
    """With dynamic allocation executors come when tasks wait for them: so meanwhile some do, and do nothing else."""
    if spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") != "true":
        yield
        return
    tasks = _tasks(spark)
    job = spark.range(0, tasks, 1, tasks)._jdf.queryExecution().toRdd().toJavaRDD().countAsync()
    try:
        yield
    finally:
        job.cancel(True)


def look_at_executors(spark: SparkSession, ledger: str | None, logs: Mapping[str, Source]) -> dict[str, list[str]]:
    """Every executor, by host and number, with what is wrong with it. Waits until they have come."""
    count = await_executors(spark)
    wanted = own_packages()
    if ledger is None or is_folder(ledger):
        wanted.pop("obstore", None)
    found: dict[tuple[str, str], list[str]] = {}
    for _ in range(_TRIES):
        sent = time.time()
        for seen in _asked(spark, Look(ledger, logs)):
            found[seen.host, seen.place] = list(seen.wrong(wanted, sent, time.time()))
        if len(found) >= count:
            break
    names = sorted(found)
    return {f"{host} #{names.index((host, place)) + 1}": found[host, place] for host, place in names}


def require_executors(spark: SparkSession, ledger: str, logs: Mapping[str, Source]) -> None:
    """Raises UsageError when an executor could not do its part."""
    wrong = {name: told for name, told in look_at_executors(spark, ledger, logs).items() if told}
    if wrong:
        name, told = next(iter(wrong.items()))
        raise UsageError(
            72,
            f"{len(wrong)} of the executors cannot take part. {name}: {'; '.join(told)}",
            hint="They need the driver's packages, the environment that leads to the ledger, and a way to the logs.\n"
            f"All of them: hailstorm doctor --master {spark.sparkContext.master} --ledger {ledger}",
        )


def _asked(spark: SparkSession, look: Look) -> list[Seen]:
    tasks = _tasks(spark)
    try:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(look, "seen BINARY").collect()
    except (PySparkException, Py4JJavaError) as error:
        raise _refused(str(error)) from error
    return [msgspec.json.decode(bytes(row.seen), type=Seen) for row in rows]


def _tasks(spark: SparkSession) -> int:
    """So many that every executor gets one."""
    return max(2, 2 * int(spark.sparkContext.defaultParallelism))


def _refused(text: str) -> UsageError:
    """Python did not even start there."""
    if (missing := _NO_MODULE.search(text)) is not None:
        what = f"the executors lack the package '{missing[1]}'"
    elif "PYTHON_VERSION_MISMATCH" in text:
        what = f"the executors have another Python than the driver, which has {platform.python_version()}"
    elif "Cannot run program" in text:
        what = "the executors do not have the driver's Python"
    else:
        what = "the executors cannot run Python: " + text.strip().splitlines()[0]
    return UsageError(
        72,
        what,
        hint="Install the driver's packages on every machine, with the same Python. Where it is there, if elsewhere:\n"
        "--conf spark.pyspark.python=/path/to/python",
    )


def _trouble_with(source: Source) -> str:
    try:
        source.latest()
    except HailstormError as error:
        return error.what
    except Exception as error:  # a log of the user's own may raise anything, and it is told, not handled
        return f"{type(error).__name__}: {error}"
    return ""
