"""A small app with types, as a user would write it: mypy --strict has nothing to say about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import duckdb
import pandas as pd
import pyarrow as pa

import hailstorm as hs
from hailstorm.testing import Driver


class Longest(hs.Monoid):
    state = "STRING"

    def zero(self) -> str:
        return ""

    def lift(self, text: str | None) -> str:
        return text or ""

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=lambda text: (len(text), text))


storm = hs.Topology("typed", latency="1 second", max_tick_rows=10_000, on_overload="queue")
tweets = storm.spout(
    "tweets",
    hs.Log("data/tweets"),
    schema="user STRING, text STRING, at TIMESTAMP",
    event_time="at",
    max_ahead="1 hour",
)
events = storm.spout("events", hs.Kafka("events", servers="localhost:9092"), schema="user STRING, n INT")
assert_type(tweets, hs.Stream)


@tweets.bolt(returns="word STRING, at TIMESTAMP")
def words(tweet: hs.Row) -> Iterator[dict[str, Any]]:
    for word in tweet.text.split():
        yield {"word": word, "at": tweet.at}


def shout(row: hs.Row) -> dict[str, str] | None:
    return {"word": row.word.upper()} if row.word else None


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


assert_type(words, hs.Stream)
loud = words.bolt(shout, name="loud", returns="word STRING", grouping=hs.fields("word"), on_error="skip")
copied = loud.arrow("copied", same, returns="word STRING")
long = words.where("long", "length(word) > 3").select("named", columns={"columns": "word"}, name="word", by="at")
counts = words.fold("counts", by="word", n=hs.count(), last_seen=hs.max("at"), longest=Longest("word"))
assert_type(counts, hs.Table)
assert_type(counts.select("few", n="n").where("some", "n > 1"), hs.Table)
counts.top("top", 10, by="n").sink("board", hs.Console())
counts.sink("database", hs.Sqlite("out.db", table="counts"), delivery="at-least-once")
long.sink("files", hs.Parquet("out"))
copied.sink("called", hs.Call(print))
events.sink("elsewhere", hs.Kafka("others", servers="localhost:9092"))

if __name__ == "__main__":
    summary = storm.run(until="caught-up", ledger="ledger", every="1s")
    print(summary.rows, hs.open_ledger("ledger").state("counts").arrow())

    assert_type(storm.plan().waits, tuple[str, ...])
    assert_type(storm.retry(accept=["words"], ledger="ledger").failed, int)
    assert_type(storm.resend("database").commit, int)
    for audited in storm.audit("counts", at="latest", since=3, keys="a..f"):
        assert_type(audited.comparison.different, int)
    assert_type(storm.replay(3, "latest").commits, int)
    assert_type(storm.trace("tweets/0@1200").commit, int | None)
    made = storm.trace_key("counts", since=3, word="rain") + storm.trace_output("board", 3, 0)
    assert_type([record.offset for record in made], list[int])
    assert_type(storm.rewind("latest-5", steps=["counts"], dry_run=True).to, int)

    ledger = hs.open_ledger("ledger")
    assert_type(ledger.state("counts").duckdb(), duckdb.DuckDBPyRelation)
    assert_type(ledger.state("counts").pandas(), pd.DataFrame)
    assert_type(ledger.diff("counts", "monday").pandas(), pd.DataFrame)
    assert_type(hs.Log("data/tweets").info()["partitions"][0]["records"], int)
    assert_type(storm.graph().json()["steps"][0]["name"], str)
    assert_type(ledger.snapshot("monday", at="latest-5").commit, int)
    assert_type(ledger.export("monday", "monday.tar").snapshot, str)
    assert_type(hs.import_snapshot("monday.tar", "elsewhere").commit, int)
    assert_type(ledger.release("monday").commit, int)
    assert_type([problem.file for problem in ledger.verify().problems], list[str])
    assert_type(ledger.discard("words", "a test"), dict[str, int])
    assert_type([ledger.release_state(kept.step).commit for kept in ledger.kept_states()], list[int])
    assert_type(ledger.erase("counts", dry_run=True, logs_of=storm, word="rain").letters, int)

    with Driver(storm) as driver:
        driver.feed("tweets", [{"user": "ada", "text": "hail"}])
        assert_type(driver.advance(), int)
        assert_type(driver.retry(), tuple[int, int])
