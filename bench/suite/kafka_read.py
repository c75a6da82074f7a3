"""Reading a topic of 2 partitions and 4 million records of about 25 bytes, beside Spark's own Kafka batch reader.

Both bring offset, time, key and value of every record into the JVM, in one task a partition, and count them there.
What they have counted is compared. About 3 minutes; the first run also makes Spark's environment.
"""

from __future__ import annotations

from pathlib import Path

from bench import peers
from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.broker import Broker, records
from bench.contest import Effort, Entrant, Outsider, ratio, run_contest
from bench.outside import outside
from bench.work import Work
from tests.connectors.servers.kafka import KafkaServer

SCRIPT = Path(peers.__file__).parent / "spark_kafka.py"
_PUT = 500_000  # records made at a time


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=1) if quick else Effort(rounds=7, burst=1, warm_up=2)
    work = Work("count", rows=500_000 if quick else 4_000_000, keys=1_000_000)
    environment = outside(say)
    with KafkaServer.start() as server:
        broker = Broker(server.servers)
        topic = broker.topic("read")
        for start in range(0, work.rows, _PUT):
            say(f"{start:,} of {work.rows:,} records are in the topic")
            broker.put(topic, records(work, start, start + _PUT))
        options = {"servers": server.servers, "topic": topic}
        jars = ",".join(map(str, environment.jars))
        theirs = {**options, "role": "reader", "jars": jars}
        entrants: list[Entrant | Outsider] = [
            Entrant("Hailstorm", "kafka-reader", work, options),
            Outsider("Spark's Kafka reader", environment.python, SCRIPT, theirs),
        ]
        series = run_contest(entrants, effort, say)
    ours, spark = series.values()
    assert ours.figures == spark.figures, f"both have read the same: {ours.figures}, {spark.figures}"
    times = inverse(ratio(ours, spark))
    return Outcome(
        (ours, spark), (at_least("times the rows/s of Spark's Kafka reader", times, 1.3),), environment.versions
    )


BENCH = Bench("kafka-read", "reading a Kafka topic, 2 partitions, 4M records of 25 bytes", measure)
