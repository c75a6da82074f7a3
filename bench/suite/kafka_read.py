"""Reading a topic of 2 partitions and 4 million records of about 25 bytes, beside Spark's own Kafka batch reader.

Both bring offset, time, key and value of every record into the JVM, in one task a partition, and count them there.
What they have counted is compared. The requirement is against Spark's reader as it comes. It is also measured with
larger fetches, which few people know to ask for and which make it much faster: that ratio is printed beside it.
About 4 minutes; the first run also makes Spark's environment.
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
_THEIRS, _LARGER = "Spark's Kafka reader", "Spark's Kafka reader, larger fetches"
_TUNED = {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": "8388608"}  # 500 and 1 MB by default


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=1) if quick else Effort(rounds=7, burst=1, warm_up=2)
    work = Work("count", rows=2_000_000 if quick else 4_000_000, keys=1_000_000)
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
            Outsider(_THEIRS, environment.python, SCRIPT, theirs),
            Outsider(_LARGER, environment.python, SCRIPT, {**theirs, "tuned": _TUNED}),
        ]
        series = run_contest(entrants, effort, say)
    ours = series["Hailstorm"]
    for one in series.values():
        assert one.figures == ours.figures, f"{one.label} has read {one.figures}, and we {ours.figures}"
    check = at_least("times the rows/s of Spark's Kafka reader", inverse(ratio(ours, series[_THEIRS])), 1.3)
    tuned = inverse(ratio(ours, series[_LARGER]))
    notes = {"times Spark's Kafka reader with larger fetches": tuned.value, **environment.versions}
    return Outcome(tuple(series.values()), (check,), notes)


BENCH = Bench("kafka-read", "reading a Kafka topic, 2 partitions, 4M records of 25 bytes", measure)
