"""Starts the JVM that Spark runs in, and reads what it says.

Java says things on stdout and stderr that no person needs, past Spark's own log; and bolts that print do so there,
too. The first is left out, the second is passed on to `sys.stderr`, where a live display keeps it apart from its own
lines. When Java does not start, its words are the reason in the error. `session.py` is the only caller.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from py4j.java_gateway import JavaGateway, JVMView
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from hailstorm.errors import UsageError

# Spark itself asks for the module that Java warns about, at every start.
_NOISE = (b"WARNING: Using incubator modules",)

# The classes that pyspark asks the JVM for whenever it makes a column, a function or a frame. To find a class by its
# short name, py4j looks for it in every package that pyspark has imported, and for each of these Java looks through all
# of Spark's jars: half a millisecond, hundreds of times while a topology is planned.
_ASKED_FOR = ("PythonSQLUtils", "PythonUtils", "SimplePythonFunction", "functions")

_LINES_KEPT = 20  # of what Java says while it starts
_SECONDS_TO_END = 5.0  # between a connection that breaks and a process that has ended


def ensure_java(conf: SparkConf) -> None:
    """Start the JVM with these settings, unless this process has one. Takes a second or two."""
    # It outlives a session that was stopped, and pyspark would never use a second one.
    if SparkContext._gateway is None:
        launch: Callable[[SparkConf, dict[str, int]], JavaGateway] = launch_gateway
        ear, mouth = os.pipe()
        said = _Said(os.fdopen(ear, "rb"))
        said.start()
        try:
            with _a_locale_for_all_paths():
                # Some of its reasons come on stdout, which belongs to the sinks.
                gateway = launch(conf, {"stdout": mouth, "stderr": mouth})
        except (PySparkRuntimeError, OSError) as error:
            os.close(mouth)
            raise _did_not_start(said.until_the_end() or str(error)) from error
        os.close(mouth)
        said.pass_on()
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        _ask_once(gateway.jvm)
        # py4j logs broken connections past its own logger, with tracebacks; whoever called it hears of them anyway.
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def _ask_once(jvm: JVMView) -> None:
    """Keep what Java answers: an attribute that is there, Python does not ask for."""
    for name in _ASKED_FOR:
        setattr(jvm, name, getattr(jvm, name))


@contextmanager
def _a_locale_for_all_paths() -> Iterator[None]:
    """In the locale C, Python reads and writes all file names and Java only ASCII ones; so Java gets another."""
    before = os.environ.get("LC_ALL")
    if before not in ("C", "POSIX"):
        yield
        return
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        os.environ["LC_ALL"] = before


def _did_not_start(words: str) -> UsageError:
    return UsageError(
        60,
        f"Java did not start: {words}",
        hint="Spark runs in Java. If it asks for more memory than there is: --conf spark.driver.memory=1g\n"
        "hailstorm doctor looks at the rest.",
    )


def hush() -> None:
    """When the JVM ends under us we say so ourselves, once; pyspark's threads would print a page each."""
    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


def means_that_java_has_ended(error: BaseException) -> bool:
    """Whether something failed because the JVM is gone, and not because Java refused it."""
    if isinstance(error, Py4JJavaError) or not isinstance(error, (Py4JError, ConnectionError)):
        return False
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:  # another program started it: a broken connection is all that we can know
        return isinstance(error, Py4JError)
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        return False
    return True


class _Said(threading.Thread):
    """What Java says: kept until it is known whether Java has started, then passed on line by line."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(name="java says", daemon=True)
        self._stream = stream
        self._kept: deque[str] = deque(maxlen=_LINES_KEPT)
        self._passing = False
        self._lock = threading.Lock()

    def run(self) -> None:
        for line in self._stream:
            if line.startswith(_NOISE):
                continue
            text = line.decode(errors="replace")
            with self._lock:
                if self._passing:
                    _to_stderr(text)
                else:
                    self._kept.append(text)

    def pass_on(self) -> None:
        with self._lock:
            self._passing = True
            _to_stderr(*self._kept)

    def until_the_end(self) -> str:
        """All that was said, once Java has ended and says no more."""
        self.join(_SECONDS_TO_END)
        return "".join(self._kept).strip()


def _to_stderr(*lines: str) -> None:
    sys.stderr.write("".join(lines))
    sys.stderr.flush()
