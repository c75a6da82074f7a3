"""A topology that runs while its broker goes away and comes back, and while topics and partitions appear."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.progress import Progress
from hailstorm.engine.run import run_topology
from hailstorm.spouts.kafka import source as kafka
from tests.connectors.kafka_topics import Topics
from tests.connectors.servers.proxy import Proxy


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def test_a_run_waits_for_a_broker_that_is_down_and_finds_new_topics_and_partitions(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_REFRESH", 0.0)
    monkeypatch.setattr(kafka, "PATIENCE", 1.0)
    told: list[Progress] = []
    stop = threading.Event()
    wrong: list[BaseException] = []

    def unreachable() -> int:
        return sum("trying again" in progress.message for progress in told)

    def rows() -> int:
        return max((progress.total_rows for progress in told), default=0)

    def disturb(proxy: Proxy) -> None:
        until(lambda: unreachable() > 0, "the broker to be missed at the start")
        assert rows() == 0
        proxy.refusing = False
        until(lambda: rows() == 5, "the first records")
        for way in ("refusing", "only cut"):
            before, missed = rows(), unreachable()
            proxy.refusing = way == "refusing"
            proxy.cut()
            topics.write("live-a", [b"x"] * 10)
            if proxy.refusing:
                until(lambda: unreachable() > missed, "the broker to be missed in the middle")  # noqa: B023
                proxy.refusing = False
            until(lambda: rows() == before + 10, "what came meanwhile")  # noqa: B023
        topics.grow("live-a", 2)
        topics.create("live-b")
        topics.write("live-a", [b"x"] * 3, partition=1)
        topics.write("live-b", [b"x"] * 4)
        until(lambda: rows() == 32, "what is in the new partition and the new topic")

    def script(proxy: Proxy) -> None:
        try:
            disturb(proxy)
        except BaseException as error:
            wrong.append(error)
        finally:
            stop.set()

    topics.create("live-a")
    topics.write("live-a", [b"x"] * 5)
    server = topics.server
    with Proxy.to(server.behind_port, server.proxy_port) as proxy:
        proxy.refusing = True
        storm = hs.Topology("live")
        source = hs.Kafka(pattern="live-.*", servers=f"127.0.0.1:{proxy.port}", metadata=True)
        lines = storm.spout("lines", source, schema="line STRING, kafka_topic STRING", decode="text")
        lines.fold("counts", by="kafka_topic", n=hs.count())
        thread = threading.Thread(target=script, args=[proxy])
        thread.start()
        run_topology(storm, ledger=tmp_path / "ledger", on_progress=told.append, stop=stop)
        thread.join()
    assert not wrong, wrong
    counts = hs.open_ledger(tmp_path / "ledger").state("counts").arrow().to_pylist()
    assert {row["kafka_topic"]: row["n"] for row in counts} == {"live-a": 28, "live-b": 4}
