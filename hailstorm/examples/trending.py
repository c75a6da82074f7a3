"""Trending words: split tweets into words, count them, show the ten most frequent ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import hailstorm as hs

storm = hs.Topology("trending")

tweets = storm.spout(
    "tweets",
    hs.Log("data/tweets"),
    schema="user STRING, text STRING, at TIMESTAMP",
    event_time="at",
    lateness="10 minutes",
)


@tweets.bolt(returns="word STRING, at TIMESTAMP")
def words(tweet: Any) -> Iterator[dict[str, Any]]:
    for word in tweet.text.lower().split():
        yield {"word": word, "at": tweet.at}


counts = words.fold("counts", by="word", n=hs.count(), last_seen=hs.max("at"))
counts.top("top", 10, by="n").sink("board", hs.Console(title="Trending words"))


WEATHER = ("rain", "snow", "hail", "storm", "wind", "cloud", "sun", "ice", "fog", "thunder", "frost", "sleet")
WORDS = (*WEATHER, "umbrella", "boots", "garden", "river", "train", "bridge", "market", "coffee", "bread", "music")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Tweets of one minute. What is talked about drifts: every twenty seeds another word is in fashion."""
    chance = random.Random(seed)
    fashion = WORDS[(seed // 20 * 7) % len(WORDS)]
    weights = [1 / (rank + 5) for rank in range(len(WORDS))]
    begin = BEGIN + timedelta(minutes=seed)
    tweets = []
    for number in range(n):
        said = [*chance.choices(WORDS, weights, k=chance.randint(2, 5)), *[fashion] * chance.randint(0, 4)]
        chance.shuffle(said)
        at = begin + timedelta(seconds=60 * number / n)
        tweets.append({"user": f"user{chance.randrange(1000)}", "text": " ".join(said), "at": at.isoformat()})
    return tweets


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n tweets, the same ones for the same seed."""
    log.append(events(n, seed), key="user", partitions=2)


def oracle(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these tweets, in plain Python."""
    counts: dict[str, dict[str, Any]] = {}
    for tweet in events:
        at = datetime.fromisoformat(tweet["at"])
        for word in tweet["text"].lower().split():
            row = counts.setdefault(word, {"word": word, "n": 0, "last_seen": at})
            row["n"] += 1
            row["last_seen"] = max(row["last_seen"], at)
    most = sorted(counts.values(), key=lambda row: (-row["n"], row["word"]))[:10]
    return {"counts": list(counts.values()), "top": [{**row, "rank": rank} for rank, row in enumerate(most, 1)]}
