"""One warm JVM for many drivers, one after another.

Starting a JVM and compiling a topology's code in it costs more than all the rest of a kill. A driver that is given a
gateway uses that JVM instead of its own; before the next driver starts, the Spark context of the one before is
stopped from here. What a driver does with the ledger is the same; the tests that kill a JVM start their own.

Python can be warm, too: who uses such a JVM may be one of its `forks`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from tests.forks import Forks

# Every test plans something else, and no code is hot for long: the JVM's second compiler took a third of all its time.
QUICK = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1", "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1"}


class WarmJvm:
    def __init__(self, output: Path, forks: Forks) -> None:
        self.forks = forks
        conf = SparkConf(loadDefaults=False).set("spark.driver.memory", "1g")
        with output.open("wb") as file, patch.dict(os.environ, QUICK):
            self._gateway = launch_gateway(conf, {"stdout": file, "stderr": file, "start_new_session": True})

    def for_the_next(self) -> dict[str, str]:
        """What the next driver needs to find this JVM, which has forgotten the one before."""
        self.forget_driver()
        parameters = self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}

    def forget_driver(self) -> None:
        """Stop the Spark context that the driver before left. Its tasks may be in the middle of writing.

        What a dead driver had asked for goes on to its end, also the making of a context: so this waits until the
        JVM works for nobody but us.
        """
        companion = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        deadline = time.monotonic() + 60
        while True:
            works_for_others = self._requests() > 1
            context = companion.getActive()
            if context.isDefined():
                context.get().stop()
            elif not works_for_others:
                return
            assert time.monotonic() < deadline, "the JVM still works for a driver that is dead"
            time.sleep(0.05)

    def _requests(self) -> int:
        """How many requests of Python processes the JVM works on; this one counts, too."""
        stacks = self._gateway.jvm.java.lang.Thread.getAllStackTraces()
        ends = [(stack[0].toString(), stack[len(stack) - 2].toString()) for stack in stacks.values() if len(stack) > 1]
        return sum("py4j.ClientServerConnection.run" in first and "sun.nio.ch" not in last for last, first in ends)

    def close(self) -> None:
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(30)
