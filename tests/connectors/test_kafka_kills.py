"""One topology writes a topic that another reads, both are killed while they run: exactly once across both."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from hailstorm.ledger.reader import open_ledger
from tests.connectors.kafka_topics import Topics
from tests.connectors.killing import run_app
from tests.connectors.servers.kafka import PASSWORD, USER
from tests.jvm import WarmJvm

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


def table_of(topics: Topics, topic: str) -> dict[str, int]:
    """What a compacted topic amounts to. No count may ever fall or come twice: that is what a doubled commit does."""
    table: dict[str, int] = {}
    for message in topics.read(topic, 2):
        word, n = json.loads(message.value() or b"").values()
        assert n > table.get(word, 0)
        table[word] = n
    return table


def test_two_topologies_in_a_row_count_every_word_once(topics: Topics, tmp_path: Path, jvm: WarmJvm) -> None:
    def run(app: Path, fault: str = "") -> int:
        return run_app(app, {"KAFKA_PASSWORD": PASSWORD}, jvm, fault)

    names = {name: topics.new(name, 2) for name in ("lines", "middle", "direct", "chained")}
    settings = {
        "user": USER,
        "servers": topics.server.guarded_servers,
        "cursors": topics.new("cursors", cleanup_policy="compact"),
        **names,
    }
    for name, app in (("first.py", FIRST), ("second.py", SECOND)):
        (tmp_path / name).write_text(app.format(**settings))
    lines = [f"word{n % 7} word{n * n % 11} word{n % 3}" for n in range(LINES)]
    oracle = Counter(word for line in lines for word in line.split())

    def write(lines: list[str]) -> None:
        for partition in range(2):
            records = [json.dumps({"text": line}).encode() for line in lines[partition::2]]
            topics.write(names["lines"], records, partition)

    first, second = tmp_path / "first.py", tmp_path / "second.py"
    write(lines[: LINES // 2])
    assert run(first, "during-delivery:2") == -signal.SIGKILL
    assert run(second) == 0  # what the dead one left open is not there
    write(lines[LINES // 2 :])  # several ticks may go out in one delivery: there must be one for each kill below
    assert run(first, "before-delivery:1") == -signal.SIGKILL
    assert run(first) == 0
    assert [run(second, fault) for fault in ("after-commit:2", "during-delivery:1")] == [-signal.SIGKILL] * 2
    assert run(second) == 0

    # An independent consumer sees every word of the stream once, and both tables are the oracle's.
    assert Counter(json.loads(m.value() or b"")["word"] for m in topics.read(names["middle"], 2)) == oracle
    assert table_of(topics, names["direct"]) == oracle
    assert table_of(topics, names["chained"]) == oracle
    ledgers = b"".join(file.read_bytes() for file in (tmp_path / ".hailstorm").rglob("*.json"))
    assert PASSWORD.encode() not in ledgers


LOOKING = (
    FIRST.split("storm =", 1)[0].replace("hs.Kafka(topic,", "hs.Kafka(pattern=topic,")
    + """
storm = hs.Topology("looking")
source = kafka("{pattern}", start="latest", metadata=True)
lines = storm.spout("lines", source, schema="text STRING, kafka_topic STRING, kafka_partition INT")
lines.fold("counts", by=["kafka_topic", "kafka_partition"], n=hs.count())
"""
)


def test_a_kill_between_a_look_at_the_topics_and_the_commit_moves_no_beginning(
    topics: Topics, tmp_path: Path, jvm: WarmJvm
) -> None:
    """What the look found is in no commit, so the next run looks again: it must lose nothing and read nothing twice."""
    prefix = topics.new("looking")
    old, new = f"{prefix}-old", f"{prefix}-new"
    settings = {"user": USER, "servers": topics.server.guarded_servers, "pattern": f"{prefix}-.*"}
    app = tmp_path / "looking.py"
    app.write_text(LOOKING.format(cursors="hailstorm_cursors", **settings))
    record = json.dumps({"text": "x"}).encode()

    def run(app: Path, fault: str = "") -> int:
        return run_app(app, {"KAFKA_PASSWORD": PASSWORD}, jvm, fault)

    def counts() -> dict[tuple[str, int], int]:
        rows = open_ledger(tmp_path / ".hailstorm/looking").state("counts").arrow().to_pylist()
        return {(row["kafka_topic"], row["kafka_partition"]): row["n"] for row in rows}

    topics.create(old)
    topics.write(old, [record] * 5)
    assert run(app, "before-commit:1") == -signal.SIGKILL  # has looked, and has said nowhere where it begins
    topics.write(old, [record] * 3)
    assert run(app) == 0  # begins here, behind eight records
    assert counts() == {}

    topics.write(old, [record] * 4)
    topics.grow(old, 2)
    topics.write(old, [record] * 2, partition=1)
    topics.create(new)
    topics.write(new, [record] * 3)
    assert run(app, "before-commit:1") == -signal.SIGKILL  # has seen a new topic and a new partition
    topics.write(new, [record])
    topics.write(old, [record], partition=1)
    assert run(app, "before-commit:2") == -signal.SIGKILL  # has read them
    assert run(app) == 0
    assert counts() == {(old, 0): 4, (old, 1): 3, (new, 0): 4}
