"""A resident worker on a cluster of two executors, one of which is killed. Run as a process of its own: it is a Spark
application of its own. Says how ticks were run then, and whether each record was counted once, as JSON."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import hailstorm as hs
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.spark.session import start_session
from hailstorm.testing import Driver

CONF = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
SECONDS_TO_COME_BACK = 120.0
storm = hs.Topology("cluster")
rows = storm.spout("rows", hs.Log("x"), schema="word STRING")
rows.fold("counts", by="word", n=hs.count())


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def main() -> None:
    spark = start_session("cluster", master="local-cluster[2,1,1024]", conf=CONF)
    ways: list[str] = []
    with Driver(storm, spark, tasks=(0,)) as driver:

        def tick() -> None:
            driver.feed("rows", [{"word": "hail"}] * 10)
            driver.advance()
            ways.append(driver._negotiator.account.last.way)

        def ready() -> Resident:
            """A worker. A busy machine may give one up, and an executor that has died takes its slot with it until
            the cluster has made another one."""
            deadline = time.monotonic() + SECONDS_TO_COME_BACK
            while (resident := driver._negotiator._resident(wait=True)) is None:
                assert time.monotonic() < deadline, driver._negotiator.account.last.message
                time.sleep(0.2)
            return resident

        ready()
        driver._negotiator._insists = False  # from here on it is as in a run: nobody waits for a worker
        worker = ready()
        daemon = parent(worker.process)
        for process in (parent(daemon), daemon, worker.process):  # all that an executor's machine takes with it
            os.kill(process, signal.SIGKILL)
        tick()
        without = ways[-1]
        for _ in range(10):  # it may be given up again between the two
            ready()
            tick()
            if ways[-1] == "resident":
                break
        (counts,) = driver.table("counts")
        print(json.dumps({"without": without, "then": ways[-1], "lost or doubled": counts["n"] - 10 * len(ways)}))
    spark.stop()


if __name__ == "__main__":
    main()
