"""A topology in a process of its own, killed at a fault point or left to catch up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.connectors.tally import suffered
from tests.jvm import WarmJvm


def run_app(app: Path, secrets: Mapping[str, str], jvm: WarmJvm, fault: str = "") -> int:
    """The return code: 0, or that of a kill. `secrets` are its environment, and appear in nothing that it says."""
    # Workers are started by a JVM that was there before, and does not have the driver's environment.
    own = [word for name, value in secrets.items() for word in ("--conf", f"spark.executorEnv.{name}={value}")]
    environment = {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), "HAILSTORM_FAULT": fault}
    done = subprocess.run(
        [jvm.forks.python, "-m", "hailstorm", "run", app.name, "--until", "caught-up", "--master", "local[2]", *own],
        cwd=app.parent,
        env={**os.environ, **jvm.for_the_next(), **environment, **secrets},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not any(secret in done.stdout + done.stderr for secret in secrets.values())
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    suffered("topology killed", int(done.returncode < 0))
    return done.returncode
