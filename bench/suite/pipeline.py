"""A whole pipeline: how many records per second it sustains, and how old they are when they come out at half of that.

Hailstorm reads JSON from Kafka, runs a Python function on every record, counts by key, counts the keys by their count,
keeps the top ten, and delivers the counts to Kafka and the rest to Postgres, everything exactly once. Structured
Streaming can do the first part: JSON from Kafka, a count by key, the counts to Kafka, at least once. It runs no Python
function, no second aggregate, no top and no second sink here.

The rate: so many records wait in the topic that both work for a minute without a pause; what counts is the time until a
`read_committed` consumer, and Postgres, have everything.

The latency: live, there are more counts to deliver (a large tick has one for several records of a key), and a producer,
a consumer and the broker work on the same cores. So the live rate is another one: what Hailstorm gets done of more than
it can, in half a minute. At half of that a consumer sees how old the newest record of every count is when it arrives.
At the end the counts in the topic, and the tables in Postgres, are compared with a plain count. About 10 minutes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from bench.bench import Bench, Outcome, Say, at_least
from bench.broker import Broker, counts_in
from bench.contest import Entrant, Host, Outsider, Ratio, Series
from bench.outside import outside
from bench.peers.peer import CORES, Tick
from bench.suite.kafka_read import SCRIPT
from bench.turn import Turn, latencies_ms, percentiles
from bench.work import Numbers, Work
from tests.connectors.servers.kafka import KafkaServer
from tests.connectors.servers.postgres import PostgresServer

_OURS, _THEIRS = "Hailstorm", "Structured Streaming"
_SETTLE, _REST = 3, 5  # seconds of a turn before and after those that count
_SCRAMBLE = 7_919  # as the producer of bench/turn.py chooses its keys
_MORE = 0.6  # of the rate at which it catches up: more than it can do while others use the cores, too
_BATCH = 500_000  # rows of their largest micro-batch


def measure(quick: bool, say: Say) -> Outcome:
    work = Work("count", rows=20_000 if quick else 300_000, keys=10_000 if quick else 100_000)
    environment = outside(say)
    with KafkaServer.start() as server, PostgresServer.start() as postgres:
        database = postgres.database()
        match_ = _Match(Broker(server.servers), work, say)
        jars = ",".join(map(str, environment.jars))
        theirs = {**match_.between(_THEIRS), "role": "pipeline", "jars": jars, "most_rows": _BATCH, "partitions": CORES}
        ours = {**match_.between(_OURS), "postgres": database}
        with (
            Host(Entrant(_OURS, "pipeline", work, ours)) as hailstorm,
            Host(Outsider(_THEIRS, environment.python, SCRIPT, theirs)) as spark,
        ):
            hosts = (hailstorm, spark)
            for host in hosts:
                host.prepare()
                match_.put(host.label, work.keys)
                match_.drain(host)
            rates = {host.label: match_.sustained(host, 3 if quick else 60) for host in hosts}
            live = match_.live(hailstorm, int(_MORE * rates[_OURS].rows / rates[_OURS].ms * 1000), 4 if quick else 30)
            half = live // 2
            say(f"{live:,} records/s live; latency at {half:,}")
            latency = match_.latency(hailstorm, half, 4 if quick else 60)
            match_.drain(hailstorm)
            match_.check(_OURS, postgres, database)
    series = [Series(label, ((tick,),)) for label, tick in rates.items()]
    rate = {label: tick.rows / tick.ms * 1000 for label, tick in rates.items()}
    times = rate[_OURS] / rate[_THEIRS]
    notes = {
        "records/s, sustained": rate,
        "records/s, live": live,
        "records/s while latency was measured": half,
        "latency ms, p50 and p99": latency,
        "keys compared with a plain count": work.keys,
        **environment.versions,
    }
    shown = [Series(f"{_OURS}: {name}", ((Tick(ms, 0),),)) for name, ms in zip(("p50", "p99"), latency, strict=True)]
    check = at_least("times Structured Streaming's rows/s for the part that it does", Ratio(times, times, times), 0.5)
    return Outcome((*series, *shown), (check,), notes)


class _Match:
    """Each side has a topic to read and one to write; `records` says how many are in the first."""

    def __init__(self, broker: Broker, work: Work, say: Say) -> None:
        self.broker, self.work, self.say = broker, work, say
        self.topics = {side: (broker.topic("in", 1), broker.topic("out", 1)) for side in (_OURS, _THEIRS)}
        self.records = {side: Counter[int]() for side in self.topics}  # by key

    def between(self, side: str) -> dict[str, str]:
        return dict(zip(("servers", "source", "target"), (self.broker.servers, *self.topics[side]), strict=True))

    def put(self, side: str, count: int) -> None:
        now = time.time_ns() // 1000
        for start in range(0, count, 100_000):
            keys = _keys(start, min(start + 100_000, count), self.work.keys)
            lines = pa.array([b'{"k": %d, "at": %d}' % (key, now) for key in keys.tolist()], pa.binary())
            self.broker.put(self.topics[side][0], lines, partitions=1)
        self._count(side, count)

    def drain(self, host: Host) -> Tick:
        """All that waits, up to its delivery."""
        order = {"end": sum(self.records[_THEIRS].values())} if host.label == _THEIRS else {}
        return Tick(**host.ask(do="burst", ticks=0, **order)[0])

    def sustained(self, host: Host, seconds: int) -> Tick:
        """What it does in about so many seconds without a pause: a first try says how much that is."""
        for _ in range(2):  # the first one warms up
            self.put(host.label, self.work.rows)
            tried = self.drain(host)
        count = int(tried.rows / tried.ms * 1000 * seconds)
        self.say(f"{host.label}: {count:,} records, for about {seconds} seconds")
        self.put(host.label, count)
        found = self.drain(host)
        self.say(f"{host.label}: {found.rows / found.ms * 1000:,.0f} records/s")
        return found

    def live(self, host: Host, rate: int, seconds: int) -> int:
        """Records per second that it gets done while so many come."""
        turn = Turn(self.broker.servers, *self.topics[host.label])
        try:
            turn.produce(rate, seconds, self.work.keys)
            host.burst(seconds)
            turn.arrivals()
        finally:
            turn.end()
        self._count(host.label, rate * seconds)
        return int(rate - self.drain(host).rows / seconds)

    def latency(self, host: Host, rate: int, seconds: int) -> tuple[float, float]:
        turn = Turn(self.broker.servers, *self.topics[host.label])
        try:
            turn.produce(rate, _SETTLE + seconds, self.work.keys)
            host.burst(_SETTLE + seconds + _REST)
            began, arrivals = turn.arrivals()
        finally:
            turn.end()
        self._count(host.label, rate * (_SETTLE + seconds))
        start = began + _SETTLE * 1e6
        return percentiles(latencies_ms(arrivals, start, start + seconds * 1e6))

    def check(self, side: str, postgres: PostgresServer, database: str) -> None:
        """The last count of every key, how many keys have each count, and the top ten."""
        expected = self.records[side]
        counts = counts_in(self.broker.values(self.topics[side][1], {0: 0}), self.work.keys)
        assert counts.tolist() == [expected[key] for key in range(self.work.keys)]
        sizes: Mapping[int, int] = dict(postgres.query(database, 'SELECT n, keys FROM "sizes"'))
        assert sizes == Counter(expected.values())
        top = [n for (n,) in postgres.query(database, 'SELECT n FROM "top" ORDER BY rank')]
        assert top == sorted(expected.values(), reverse=True)[:10]

    def _count(self, side: str, count: int) -> None:
        numbers, counts = np.unique(_keys(0, count, self.work.keys), return_counts=True)
        self.records[side].update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


def _keys(start: int, end: int, keys: int) -> Numbers:
    return np.arange(start, end, dtype=np.int64) * _SCRAMBLE % keys


BENCH = Bench("pipeline", "Kafka, a bolt, a fold, a fold of it, a top, to Kafka and PostgreSQL", measure)
