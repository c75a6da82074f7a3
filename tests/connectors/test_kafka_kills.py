"""One topology writes a topic that another reads, both are killed while they run: exactly once across both."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.connectors.kafka_topics import Topics
from tests.connectors.killing import run_app
from tests.connectors.servers.kafka import PASSWORD, USER

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

FIRST = """
import hailstorm as hs

def kafka(topic, **more):
    options = {{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "{user}",
                "sasl.password": "${{env:KAFKA_PASSWORD}}"}}
    return hs.Kafka(topic, servers="{servers}", options=options, cursor_topic="{cursors}", **more)

storm = hs.Topology("first", max_tick_rows=700)
lines = storm.spout("lines", kafka("{lines}"), schema="text STRING")

@lines.bolt(returns="word STRING")
def words(line):
    for word in line.text.split():
        yield {{"word": word}}

words.sink("words_out", kafka("{middle}", key="word"))
words.fold("counts", by="word", n=hs.count()).sink("counts_out", kafka("{direct}"))
"""
SECOND = (
    FIRST.split("storm =", 1)[0]
    + """
storm = hs.Topology("second", max_tick_rows=2000)
words = storm.spout("words", kafka("{middle}"), schema="word STRING, kafka_key STRING")
words.fold("counts", by="kafka_key", n=hs.count()).sink("counts_out", kafka("{chained}"))
"""
)
LINES = 3000


def run(app: Path, fault: str = "") -> int:
    return run_app(app, {"KAFKA_PASSWORD": PASSWORD}, fault)


def table_of(topics: Topics, topic: str) -> dict[str, int]:
    """What a compacted topic amounts to. No count may ever fall or come twice: that is what a doubled commit does."""
    table: dict[str, int] = {}
    for message in topics.read(topic, 2):
        word, n = json.loads(message.value() or b"").values()
        assert n > table.get(word, 0)
        table[word] = n
    return table


def test_two_topologies_in_a_row_count_every_word_once(topics: Topics, tmp_path: Path) -> None:
    names = {name: topics.new(name, 2) for name in ("lines", "middle", "direct", "chained")}
    settings = {"user": USER, "servers": topics.server.guarded_servers, "cursors": topics.new("cursors"), **names}
    for name, app in (("first.py", FIRST), ("second.py", SECOND)):
        (tmp_path / name).write_text(app.format(**settings))
    lines = [f"word{n % 7} word{n * n % 11} word{n % 3}" for n in range(LINES)]
    oracle = Counter(word for line in lines for word in line.split())
    for partition in range(2):
        topics.write(names["lines"], [json.dumps({"text": line}).encode() for line in lines[partition::2]], partition)

    first, second = tmp_path / "first.py", tmp_path / "second.py"
    assert run(first, "during-delivery:2") == -signal.SIGKILL
    assert run(second) == 0  # what the dead one left open is not there
    assert run(first, "before-delivery:3") == -signal.SIGKILL
    assert run(first) == 0
    assert [run(second, fault) for fault in ("after-commit:2", "during-delivery:1")] == [-signal.SIGKILL] * 2
    assert run(second) == 0

    # An independent consumer sees every word of the stream once, and both tables are the oracle's.
    assert Counter(json.loads(m.value() or b"")["word"] for m in topics.read(names["middle"], 2)) == oracle
    assert table_of(topics, names["direct"]) == oracle
    assert table_of(topics, names["chained"]) == oracle
    ledgers = b"".join(file.read_bytes() for file in (tmp_path / ".hailstorm").rglob("*.json"))
    assert PASSWORD.encode() not in ledgers
