"""The broker goes away in the middle and comes back: reading and writing wait for it, nothing is lost or doubled."""

from __future__ import annotations

import json
import threading
import time

import pytest

from hailstorm.errors import TransientSinkError
from hailstorm.sinks.kafka.sink import Kafka
from hailstorm.sinks.sink import Delivery, Parcel
from tests.connectors.kafka_topics import Topics
from tests.connectors.log_contract import some
from tests.connectors.sink_contract import COUNTS, got, stream


@pytest.mark.chaos
@pytest.mark.parametrize("way", ["kill", "stop"])
def test_a_broker_restarts_while_a_topic_is_read_and_another_is_written(topics: Topics, way: str) -> None:
    read_topic, written = topics.new("read"), topics.new("written")
    topics.write(read_topic, some(200_000))
    source = Kafka(read_topic, servers=topics.server.servers)
    sink = Kafka(written, servers=topics.server.servers)
    sink.open(Delivery(written, "out", "ledger", COUNTS, (), False))
    sink.deliver(Parcel.of(1, stream(("rain", 1))))
    batches = source.read(0, 0, source.latest()[0])
    found = next(batches)["value"].to_pylist()

    getattr(topics.server, way)()
    restart = threading.Thread(target=lambda: (time.sleep(1), topics.server.go()))
    restart.start()
    for batch in batches:
        found += batch["value"].to_pylist()
    commit = 2
    while commit <= 4:
        try:
            sink.deliver(Parcel.of(commit, stream((f"word {commit}", commit))))
            commit += 1
        except TransientSinkError:  # as delivery does: close, open, go on at the cursor
            sink.close()
            while True:
                try:
                    sink.open(Delivery(written, "out", "ledger", COUNTS, (), False))
                    break
                except TransientSinkError:
                    time.sleep(0.2)
            commit = (got(sink) or 0) + 1
    restart.join()
    sink.close()

    assert found == some(200_000)
    assert [json.loads(message.value() or b"")["n"] for message in topics.read(written)] == [1, 2, 3, 4]
    assert source.latest() == {0: 200_000}
