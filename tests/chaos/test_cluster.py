"""A cluster of two machines that share nothing with the driver but the ledger: the state is the oracle's, also after an
executor and the driver were killed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from hailstorm.ledger.compaction import layers_of
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import LedgerReader, open_ledger
from hailstorm.ledger.stores import open_store
from hailstorm.spouts import Log
from tests.chaos.cluster import HERE, SMALL, Cluster, cluster
from tests.chaos.world import FAR, wait_for
from tests.connectors.servers.s3 import BUCKET, SECRET, known_here

pytest.importorskip("obstore")
pytestmark = [pytest.mark.chaos, pytest.mark.spark]
__all__ = ["cluster"]  # a fixture

LEDGER = f"s3://{BUCKET}/far"
HEARD = Log(f"s3://{BUCKET}/heard", partitions=2)
PLANNED = ("--set", "ways=planned", "--set", "max_tick_rows=5000")


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[Cluster]:
    shutil.copy(HERE / "cluster_app.py", cluster.near / "app.py")
    (cluster.near / "own_words.py").write_text("def word(number):\n    return f'w{number}'\n")
    with known_here(cluster.server.environment(), cluster.near / "judge"):
        for part in range(20):
            HEARD.append([{"word": f"h{(part * 7 + number) % 9}"} for number in range(50)], partition=part % 2)
        yield cluster


def expected(live: Live) -> dict[str, tuple[int, int]]:
    """By word: how often, and the sum, of the records before the clock."""
    count, total = Counter[str](), Counter[str]()
    for partition, end in live.clock["numbers"].items():
        for offset in range(end):
            word = f"w{(offset * 7 + int(partition)) % 500}"
            count[word] += 1
            total[word] += offset % 11
    return {word: (count[word], total[word]) for word in count}


def judge(address: str) -> LedgerReader:
    reader = open_ledger(address)
    live = reader.live()  # everything is of this commit: a driver may be at work
    wanted, counts = expected(live), reader.state("counts", at=live.commit).arrow().to_pylist()
    assert {row["word"]: (row["n"], row["total"]) for row in counts} == wanted
    best = sorted(((-total, word) for word, (_, total) in wanted.items()))[:5]
    heard = Counter[str]()
    for partition, end in live.clock["heard"].items():
        for batch in HEARD.read(int(partition), 0, end):
            heard.update(json.loads(value)["word"] for value in batch.column("value").to_pylist())
    words = reader.state("heard_words", at=live.commit).arrow().to_pylist()
    assert {row["word"]: row["n"] for row in words} == heard
    for step in ("counts", "heard_words"):  # each task has a range of hashes of its own
        for layer in layers_of(live.runs.get(step, ())):
            ranges = sorted((run.first, run.last) for run in layer.runs)
            assert all(before < after for (_, before), (after, _) in pairwise(ranges)), ranges
    top = reader.state("top", at=live.commit).arrow().to_pylist()
    assert sorted(-row["total"] for row in top) == sorted(total for total, _ in best)
    return reader


def test_a_topology_runs_on_machines_that_see_nothing_of_the_drivers(driver: Cluster) -> None:
    until = json.dumps({"numbers": {"0": 8000, "1": 8000}})
    driver.run("run", "app.py", "--ledger", LEDGER, "--until", until, *SMALL, *PLANNED)
    reader = judge(LEDGER)
    assert reader.live().clock["numbers"] == {"0": 8000, "1": 8000}
    for name in ("one", "two"):
        assert list((driver.far / name / "cache").rglob("*.arrow")), f"machine {name} has copies of its own"
    assert any(commit.reason == "compact" for commit in reader.commits())
    assert not list((driver.near / "cache").rglob("*.arrow")), "runs are merged by tasks: the driver reads none"
    store = open_store(LEDGER)
    assert not list(store.files("scratch")), "what waves leave for each other goes with the tick"
    with sqlite3.connect(driver.near / "out/board.db") as board:
        assert {word for (word,) in board.execute("SELECT word FROM board")} == {
            row["word"] for row in reader.state("top").arrow().to_pylist()
        }
    board.close()


@pytest.mark.timeout(1_500)  # many starts of Spark, each with executors that start, too
def test_an_executor_and_the_driver_die_in_the_middle_and_nothing_is_lost_or_doubled(driver: Cluster) -> None:
    address = f"{LEDGER}-dying"
    words = ("run", "app.py", "--ledger", address, *SMALL)
    shutil.rmtree(driver.near / "out", ignore_errors=True)  # a table that another ledger fills is refused
    Ledger(address, create=True)
    process = driver.start(*words, "--set", "max_tick_rows=1000")

    def commits(more: int) -> None:
        wanted = open_ledger(address).live().commit + more
        wait_for(lambda: open_ledger(address).live().commit >= wanted or process.poll() is not None, "commits", FAR)
        assert process.poll() is None, driver.said()

    commits(4)
    driver.end(driver.workers[0])
    commits(2)  # there is one slot now: a resident worker must not keep it
    driver.workers[0] = driver.add_worker("three")
    commits(4)
    judge(address)
    process.kill()
    process.wait()
    judge(address)
    driver.run(*words, "--until", "caught-up")
    clock = judge(address).live().clock
    assert clock == {"numbers": {"0": 40_000, "1": 40_000}, "heard": {"0": 500, "1": 500}}
    assert SECRET not in driver.said()


def test_the_doctor_looks_at_every_executor(driver: Cluster) -> None:
    """Here at an app whose log only the driver sees, and at a ledger that is not there."""
    text = (driver.near / "app.py").read_text()
    start, end = text.index("    hs.Rate("), text.index('    schema="k')
    (driver.near / "near.py").write_text(text[:start] + '    hs.Log("numbers"),\n' + text[end:])
    Log(driver.near / "numbers").create()
    said = driver.run("doctor", "near.py", "--ledger", f"{LEDGER}-nowhere", "--json", *SMALL, code=1)
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    executors = [one for one in found if one["check"].startswith("executor")]
    assert len(executors) == 2 and not any(one["ok"] for one in executors), said
    for one in executors:
        assert "it cannot read the ledger: there is none" in one["found"]
        assert "it cannot read the log of 'numbers'" in one["found"]
