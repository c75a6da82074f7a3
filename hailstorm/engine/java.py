"""Starts the JVM that Spark runs in, and reads what it says on stderr.

Java says things there that no person needs, past Spark's own log; and so do bolts that print. The first is left out,
the second is passed on to `sys.stderr`, where a live display keeps it apart from its own lines.
`session.py` is the only caller.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

# Spark itself asks for the module that Java warns about, at every start.
_NOISE = (b"WARNING: Using incubator modules",)

_SECONDS_TO_END = 5.0  # between a connection that breaks and a process that has ended


def ensure_java(conf: SparkConf) -> None:
    """Start the JVM with these settings, unless this process has one. Takes a second or two."""
    # It outlives a session that was stopped, and pyspark would never use a second one.
    if SparkContext._gateway is None:
        launch: Callable[[SparkConf, dict[str, int]], JavaGateway] = launch_gateway
        gateway = launch(conf, {"stderr": subprocess.PIPE})
        if gateway.proc is not None:  # spark-submit, or a notebook, may have started the JVM for us
            threading.Thread(target=_pass_on, args=(gateway.proc.stderr,), name="java stderr", daemon=True).start()
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        # py4j logs broken connections past its own logger, with tracebacks; whoever called it hears of them anyway.
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


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


def _pass_on(said: IO[bytes]) -> None:
    for line in said:
        if not line.startswith(_NOISE):
            sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()
