"""One turn of the latency bench: a producer and a consumer beside the entrant, each in a process of its own.

    python -m bench.turn produce <servers> <topic> <records/s> <seconds> <keys>
    python -m bench.turn consume <servers> <topic>

The producer writes `{"k": 5, "at": 1700000000000000}`, where `at` is the time in microseconds. Every count that comes
out has the `at` of the last record that is in it, and the consumer tells how old that is when it arrives: both are on
one machine, with one clock. Started by `suite/latency.py` and `suite/pipeline.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.contest import ROOT

_NOT_WORTH_A_SLEEP = 0.0005  # seconds
Arrival = tuple[int, int]  # when it was written and when it arrived, in microseconds


class Turn:
    """A consumer that listens from now on. `produce` starts the producer, `arrivals` waits for both."""

    def __init__(self, servers: str, source: str, target: str) -> None:
        self._servers, self._source = servers, source
        self._producer: subprocess.Popen[str] | None = None
        self._consumer = _start("consume", servers, target)
        assert self._consumer.stdout is not None
        assert self._consumer.stdout.readline() == "listening\n", "the consumer did not start"

    def produce(self, rate: int, seconds: int, keys: int) -> None:
        self._producer = _start("produce", self._servers, self._source, str(rate), str(seconds), str(keys))

    def arrivals(self) -> tuple[int, list[Arrival]]:
        """When the producer began, and all that has arrived: also what an earlier turn has left."""
        assert self._producer is not None
        began, _ = self._producer.communicate(timeout=60)
        assert self._producer.returncode == 0, "the producer failed"
        said, _ = self._consumer.communicate("enough\n", timeout=60)
        return int(began), [(written, arrived) for written, arrived in json.loads(said)]

    def end(self) -> None:
        for process in (self._producer, self._consumer):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def latencies_ms(arrivals: Sequence[Arrival], start: float, end: float) -> list[float]:
    """Of what was written between these times, in microseconds."""
    return [(arrived - written) / 1e3 for written, arrived in arrivals if start <= written < end]


def percentiles(latencies: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    middle, high = np.percentile(latencies, (50, 99))
    return float(middle), float(high)


def _start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.turn", *words]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _produce(servers: str, topic: str, rate: int, seconds: int, keys: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 2, "linger.ms": 1})
    print(time.time_ns() // 1000)
    began = time.monotonic()
    for number in range(rate * seconds):
        wait = began + number / rate - time.monotonic()
        if wait > _NOT_WORTH_A_SLEEP:
            time.sleep(wait)
        line = b'{"k": %d, "at": %d}' % (number * 7_919 % keys, time.time_ns() // 1000)
        producer.produce(topic, line, partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0


def _consume(servers: str, topic: str) -> None:
    settings = {"group.id": "bench", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": servers, "log_level": 2, "fetch.wait.max.ms": 50, **settings})
    consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(0.5)  # the end is looked up now, and not when the first record is there
    print("listening", flush=True)
    listener = threading.Thread(target=sys.stdin.readline, daemon=True)
    listener.start()
    found: list[Arrival] = []
    while listener.is_alive():  # until we are told that it is enough
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            arrived = time.time_ns() // 1000
            found.append((json.loads(message.value() or b"")["at"], arrived))
    consumer.close()
    print(json.dumps(found))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", servers, topic, rate, seconds, keys]:
            _produce(servers, topic, int(rate), int(seconds), int(keys))
        case ["consume", servers, topic]:
            _consume(servers, topic)
