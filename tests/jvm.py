"""One warm JVM for many drivers, one after another.

Starting a JVM and compiling a topology's code in it costs more than all the rest of a kill. A driver that is given a
gateway uses that JVM instead of its own; before the next driver starts, the Spark context of the one before is
stopped from here. What a driver does with the ledger is the same; the tests that kill a JVM start their own.

Python can be warm, too: who uses such a JVM may be one of its `forks`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from tests.forks import Forks

# Every test plans something else, and no code is hot for long: the JVM's second compiler took a third of all its time.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"


def quick() -> dict[str, str]:
    """The environment for JVMs that live for seconds, or do nothing twice."""
    options = _ONE_COMPILER
    if archive().exists():  # a JVM that is told of one that is not there does without its own, too
        options += f" -XX:SharedArchiveFile={archive()} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return {"SPARK_SUBMIT_OPTS": options, "SPARK_LAUNCHER_OPTS": _ONE_COMPILER}


@cache
def archive() -> Path:
    """Where the archive of Spark's classes is, for this Java and this Spark, once it is made (`classes_process.py`).
    With it a JVM takes half as long to start."""
    java = Path(shutil.which("java", path=_path_of_java()) or "java").resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    known = f"{java} {java.stat().st_mtime if java.exists() else 0} {jars} {jars.stat().st_mtime}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hailstorm"
    return folder / f"classes-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def _path_of_java() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin") if home else os.environ.get("PATH", os.defpath)


class WarmJvm:
    def __init__(self, output: Path, forks: Forks) -> None:
        self.forks = forks
        conf = SparkConf(loadDefaults=False).set("spark.driver.memory", "1g")
        with output.open("wb") as file, patch.dict(os.environ, quick()):
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
