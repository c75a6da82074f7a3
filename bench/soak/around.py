"""What stands around the `latency` soak: a broker, a producer before it, and behind it a consumer that is
`read_committed` and tells how old every record is when it arrives. All are on one machine, with one clock.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.contest import ROOT
from tests.connectors.servers.kafka import KafkaServer

RATE, KEYS = 1_000, 100_000
# In milliseconds: forty steps to a tenfold, and the last is without an end.
EDGES = np.append(np.geomspace(1, 100_000, 201), np.inf)
_TOPICS = ("lines", "counts")
_LONG = 7 * 86_400  # seconds that a producer goes on, if nobody ends it


class Ages:
    """How many records were how old, since `begin`; and the last count of every key, since ever."""

    def __init__(self, servers: str) -> None:
        self.counts = np.zeros(len(EDGES) - 1, dtype=np.int64)
        self.oldest = 0.0
        self._servers = servers
        self._last = np.zeros(KEYS, dtype=np.int64)
        self._counting = self._ended = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._counting = True

    def counted(self) -> int:
        """How many records are in the counts that have arrived."""
        return int(self._last.sum())

    def end(self) -> None:
        self._ended = True
        self._thread.join()

    def save(self, file: Path) -> None:
        with file.open("w", newline="") as lines:
            writer = csv.writer(lines)
            writer.writerow(("below_ms", "records"))
            writer.writerows(
                (round(float(edge), 3), int(count)) for edge, count in zip(EDGES[1:], self.counts, strict=True)
            )

    def _listen(self) -> None:
        settings: dict[str, Any] = {"group.id": "soak", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
        consumer = Consumer(
            {"bootstrap.servers": self._servers, "log_level": 2, "isolation.level": "read_committed", **settings}
        )
        consumer.assign([TopicPartition("counts", 0, 0)])
        while not self._ended:
            first = consumer.poll(0.1)
            if first is None:
                continue
            arrived = time.time_ns() // 1000
            # What came with it is there already, and as old.
            messages = [first, *consumer.consume(5_000, 0)]
            table = pa.json.read_json(
                pa.BufferReader(b"\n".join(m.value() or b"" for m in messages if m.error() is None))
            )
            self._last[table["k"].to_numpy()] = table["n"].to_numpy()
            if self._counting:
                ages = (arrived - table["at"].to_numpy()) / 1e3
                self.counts += np.histogram(ages, EDGES)[0]
                self.oldest = max(self.oldest, float(ages.max()))
        consumer.close()


@contextmanager
def kafka_around() -> Iterator[Ages]:
    """A soak that is run within finds the broker in its environment."""
    with KafkaServer.start() as server:
        admin = AdminClient({"bootstrap.servers": server.servers})
        for future in admin.create_topics([NewTopic(name, 1) for name in _TOPICS]).values():
            future.result(30)
        os.environ["SOAK_SERVERS"] = server.servers
        ages = Ages(server.servers)
        words = ("produce", server.servers, "lines", str(RATE), str(_LONG), str(KEYS))
        producer = subprocess.Popen([sys.executable, "-m", "bench.turn", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            yield ages
        finally:
            producer.kill()
            producer.wait()
            ages.end()
