"""What all tests share: one Spark session and one warm JVM per process, and the servers that a process has
started.

`make test` runs two processes, and gives each a whole file of tests at a time, in the order of the folders: those that
take longest are first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.connectors import tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.connectors.servers.s3 import S3Server
    from tests.forks import Forks
    from tests.jvm import WarmJvm


_archiving: list[subprocess.Popen[bytes]] = []  # the process that makes the archive of classes, or none


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use Spark are marked by that alone, so that `make check` can leave them out. In a soak, tests that
    hypothesis draws are long ones (`length.py`)."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if os.environ.get("HAILSTORM_SOAK") and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("soak")


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a whole run, the process that starts the others has Spark's classes archived, beside the first tests."""
    if hasattr(session.config, "workerinput") or not _runs_everything(session.config):
        return
    from tests.jvm import archive

    if not archive().exists():
        script = Path(__file__).with_name("classes_process.py")
        environment = os.environ | {"PYTHONPATH": str(script.parents[1])}
        _archiving.append(
            subprocess.Popen(
                [sys.executable, script, archive()],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    for process in _archiving:
        process.kill()
        process.wait()
    if hasattr(session.config, "workeroutput"):  # one of several processes: the first one counts together
        session.config.workeroutput |= {"faults": dict(tally.FAULTS), "waits": tally.WAITS}
    elif _runs_everything(session.config) and not session.testsfailed and tally.missing():
        print(f"\nThe tests of faults have lost their bite: no {', no '.join(tally.missing())}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _runs_everything(config: pytest.Config) -> bool:
    chosen = config.option.keyword or config.option.collectonly or config.option.markexpr != "not soak"
    return not chosen and config.args == config.getini("testpaths")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    tally.FAULTS.update(output.get("faults", {}))
    tally.WAITS.update(output.get("waits", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if tally.FAULTS:
        terminalreporter.write_line(tally.summary())


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    from tests.connectors.servers.s3 import S3Server

    with S3Server.start() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from hailstorm.engine.spark.session import start_session
    from tests.jvm import quick

    with pytest.MonkeyPatch.context() as environment:
        for name, value in quick().items():
            environment.setenv(name, value)
        session = start_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """For commands that are not about how Python starts."""
    from tests.forks import Forks

    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[WarmJvm]:
    """For the commands of one test after another; nobody waits for a JVM to start."""
    from tests.jvm import WarmJvm

    made = WarmJvm(tmp_path_factory.mktemp("jvm") / "output.txt", forks)
    yield made
    made.close()
