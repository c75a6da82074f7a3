"""From Kafka to Kafka: a running count at a million keys, beside Structured Streaming at its best batch size.

Both read the same topic, JSON records in 2 partitions, and write every changed count to a topic of their own. In a
burst a million new records wait; its time ends when the last count can be seen by a `read_committed` consumer. Ours is
delivered in transactions, exactly once; Structured Streaming's sink is at-least-once. It has a shuffle partition a core
and shows first which size of a micro-batch is its fastest, each after a restart and a burst that does not count. At the
end the last count of every key, as a consumer reads it, is compared with a plain count of the input, on both sides.
About 5 minutes.
"""

from __future__ import annotations

import time

import numpy as np

from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.broker import Broker, counts_in, records, totals
from bench.contest import Entrant, Host, Outsider, Series, ratio
from bench.outside import outside
from bench.peers.peer import Tick
from bench.suite.kafka_read import SCRIPT
from bench.work import Work
from tests.connectors.servers.kafka import KafkaServer

WORK = Work("count", rows=1_000_000, keys=1_000_000)
_OURS, _THEIRS = "Hailstorm", "Structured Streaming"
_SIZES = (100_000, 500_000, 1_000_000)
_SETTLE = 200_000  # records after a restart: the first micro-batch loads the state
# Ticks large enough that their fixed cost is small, and small enough that delivery runs beside the next one.
_SETTINGS = {"latency": "1000 seconds", "max_tick_rows": "250000"}


def measure(quick: bool, say: Say) -> Outcome:
    rounds, sizes = (2, _SIZES[1:2]) if quick else (5, _SIZES)
    environment = outside(say)
    with KafkaServer.start() as server:
        broker = Broker(server.servers)
        match_ = _Match(broker, say)
        topics = {"servers": server.servers, "source": match_.source}
        jars = ",".join(map(str, environment.jars))
        theirs = {**topics, "target": match_.targets[_THEIRS], "role": "counter", "jars": jars, "most_rows": sizes[-1]}
        ours = {**topics, "target": match_.targets[_OURS], **_SETTINGS}
        with (
            Host(Outsider(_THEIRS, environment.python, SCRIPT, theirs)) as spark,
            Host(Entrant(_OURS, "kafka-counter", WORK, ours)) as hailstorm,
        ):
            say("fill the state of both")
            match_.put(WORK.keys)
            for host in (spark, hailstorm):
                host.prepare()
                match_.burst(host)
            tries = {size: match_.try_size(spark, size) for size in sizes}
            best = min(tries, key=lambda size: tries[size].ms / tries[size].rows)
            say(f"Structured Streaming is fastest with {best:,} rows a micro-batch")
            match_.restart(spark, best)
            match_.burst(hailstorm)  # what Structured Streaming has tried on
            found = match_.rounds([hailstorm, spark], rounds)
            match_.check()
    mine, best_of_theirs = Series(_OURS, tuple(found[_OURS])), Series(_THEIRS, tuple(found[_THEIRS]))
    times = inverse(ratio(mine, best_of_theirs))
    rates = {f"{_THEIRS}, {size:,} rows a batch, rows/s": tick.rows / tick.ms * 1000 for size, tick in tries.items()}
    notes = {**rates, "keys compared with a plain count": WORK.keys, **environment.versions}
    return Outcome((mine, best_of_theirs), (at_least("times Structured Streaming's rows/s", times, 2),), notes)


class _Match:
    """The topics of both sides, and how many records have been put into the one that they share."""

    def __init__(self, broker: Broker, say: Say) -> None:
        self.broker, self.say = broker, say
        self.source = broker.topic("count-in")
        self.targets = {_OURS: broker.topic("count-ours"), _THEIRS: broker.topic("count-theirs")}
        self.before = {side: {0: 0, 1: 0} for side in self.targets}  # where the output ended before the last burst
        self.records = 0

    def put(self, count: int) -> None:
        self.broker.put(self.source, records(WORK, self.records, self.records + count))
        self.records += count

    def burst(self, host: Host) -> Tick:
        """All that waits, up to its delivery."""
        self.before[host.label] = self.broker.settle(self.targets[host.label])
        order = {"end": self.records} if host.label == _THEIRS else {}
        tick = Tick(**host.ask(do="burst", ticks=1, **order)[0])
        self.say(f"{host.label}: {tick.rows:,} records in {tick.ms:,.0f} ms")
        return tick

    def restart(self, spark: Host, size: int) -> None:
        spark.ask(do="size", most_rows=size)
        self.put(_SETTLE)
        self.burst(spark)

    def try_size(self, spark: Host, size: int) -> Tick:
        self.say(f"Structured Streaming with {size:,} rows a micro-batch")
        self.restart(spark, size)
        self.put(WORK.rows)
        return self.burst(spark)

    def rounds(self, hosts: list[Host], count: int) -> dict[str, list[tuple[Tick, ...]]]:
        found: dict[str, list[tuple[Tick, ...]]] = {host.label: [] for host in hosts}
        for number in range(count + 1):  # the first one warms up
            self.say(f"round {number} of {count}")
            self.put(WORK.rows)
            for host in hosts[:: 1 if number % 2 else -1]:
                time.sleep(0.5)  # the broker has written what it got
                tick = self.burst(host)
                if number:
                    found[host.label].append((tick,))
        return found

    def check(self) -> None:
        """Every key is among the last million records, so what came out of the last burst has all of them."""
        expected = totals(WORK, self.records)
        for side, target in self.targets.items():
            self.say(f"compare what {side} has written with a plain count")
            counts = counts_in(self.broker.values(target, self.before[side]), WORK.keys)
            wrong = int(np.count_nonzero(counts != expected))
            assert not wrong, f"{side} has {wrong:,} wrong counts of {WORK.keys:,}"


BENCH = Bench("kafka-count", "Kafka to Kafka: running count, exactly once, 1M keys", measure)
