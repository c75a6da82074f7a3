"""The commands that look back, typed beside a run that goes on: audit, replay, and trace the other way round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hailstorm.ledger.ledger import Ledger
from hailstorm.spouts import Log
from tests.e2e.test_run import hailstorm_, wait_for
from tests.forks import Forks
from tests.jvm import WarmJvm

pytestmark = pytest.mark.spark

APP = """
import pathlib
import hailstorm as hs
storm = hs.Topology("words")
schema = "word STRING, weight DOUBLE, at TIMESTAMP"
lines = storm.spout("lines", hs.Log("data/lines"), schema=schema, event_time="at")
@lines.bolt(returns="word STRING, weight DOUBLE")
def loud(line):
    return {"word": line.word + pathlib.Path(__file__).with_name("mark.txt").read_text(), "weight": line.weight}
counts = loud.fold("counts", by="word", n=hs.count(), weight=hs.sum("weight"))
counts.sink("database", hs.Sqlite("data/words.db", "words"))
lines.window("10 seconds", emit="final").fold("per", by="word", n=hs.count()).sink("closed", hs.Console())
"""
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def second_jvm(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[WarmJvm]:
    """Of those who look back, while the run has the other one."""
    made = WarmJvm(tmp_path_factory.mktemp("jvm") / "output.txt", forks)
    yield made
    made.close()


@pytest.fixture
def words(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "mark.txt").write_text("!")
    append(tmp_path, 0)
    return tmp_path


def append(folder: Path, second: int) -> None:
    at = (START + timedelta(seconds=second)).isoformat()
    rows = [{"word": word, "weight": 0.1, "at": at} for word in ("rain", "snow", "rain")]
    Log(folder / "data/lines").append(rows)


def newest(folder: Path) -> int:
    """The number of the newest commit."""
    files = sorted((folder / ".hailstorm/words/commits").glob("[0-9]*.json"))
    return int(files[-1].stem) if files else 0


@contextmanager
def going_on(folder: Path, jvm: WarmJvm) -> Iterator[subprocess.Popen[str]]:
    """The app runs, past its first ticks, and gets more to read all the time."""
    done = threading.Event()

    def feed() -> None:
        for second in range(1, 100_000):
            if done.wait(0.2):
                return
            append(folder, second)

    environment = {**os.environ, **jvm.for_the_next()}
    command = [sys.executable, "-m", "hailstorm", "run", "app.py"]
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=-1, stderr=-1)
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        wait_for(lambda: newest(folder) >= 5 or process.poll() is not None, "some commits")
        yield process
    finally:
        done.set()
        feeder.join()
        process.kill()
        process.communicate()


def test_audit_and_replay_of_a_topology_that_runs_and_commits_meanwhile(
    words: Path, jvm: WarmJvm, second_jvm: WarmJvm
) -> None:
    with going_on(words, jvm) as running:
        before = newest(words)
        audited = hailstorm_("audit", "app.py", "--json", folder=words, jvm=second_jvm)
        after = newest(words)
        assert after > before, "it went on meanwhile"
        found = {one["step"]: one for one in map(json.loads, audited.stdout.splitlines())}
        assert set(found) == {"counts", "per"}
        assert all(one["equal"] == one["rows"] > 0 and one["different"] == 0 for one in found.values())
        assert found["counts"]["estimated"] == ["weight"] and found["per"]["estimated"] == []
        assert "'counts': weight are floats: a billionth more or less counted as equal" in audited.stderr
        replayed = hailstorm_("replay", "app.py", "--from", "2", "--to", str(after), folder=words, jvm=second_jvm)
        assert f"{after - 2} commits gave the same again" in replayed.stderr
        assert newest(words) > after, "it went on meanwhile"
        assert running.poll() is None
        (words / "mark.txt").write_text("?")  # the code gives something else by now
        different = hailstorm_("audit", "app.py", "--at", str(after), folder=words, jvm=second_jvm, ok=1)
        assert "'counts' is the first step that differs" in different.stderr
        replayed = hailstorm_(
            "replay", "app.py", "--from", "2", "--to", "5", "--json", folder=words, jvm=second_jvm, ok=1
        )
        unlike = [json.loads(line) for line in replayed.stdout.splitlines()]
        assert ("counts", "state") in {(one["step"], one["what"]) for one in unlike}
        assert {one["commit"] for one in unlike} <= {3, 4, 5}
        assert running.poll() is None


def test_the_records_behind_a_window_that_was_shown_at_its_end(words: Path, jvm: WarmJvm) -> None:
    hailstorm_("run", "app.py", "--until", "caught-up", folder=words, jvm=jvm)
    append(words, 3)
    hailstorm_("run", "app.py", "--until", "caught-up", folder=words, jvm=jvm)
    append(words, 30)
    hailstorm_("run", "app.py", "--until", "caught-up", folder=words, jvm=jvm)
    ledger = Ledger(str(words / ".hailstorm/words"))
    commit = next(one for one in ledger.commits() if one.outbox.get("closed"))
    done = hailstorm_("trace", "app.py", "--output", f"closed/{commit.commit}/0", folder=words, jvm=jvm)
    offsets = [int(line.partition("@")[2]) for line in done.stdout.splitlines()]
    assert offsets in ([0, 2, 3, 5], [1, 4])
    assert f"records, in commits 1 to {commit.commit}" in done.stderr
    later = next(one.commit for one in ledger.commits() if one.end["lines"]["0"] == 3)
    done = hailstorm_(
        *("trace", "app.py", "--output", f"closed/{commit.commit}/0", "--from", str(later), "--json"),
        folder=words,
        jvm=jvm,
    )
    assert [json.loads(line)["offset"] for line in done.stdout.splitlines()] in ([3, 5], [4])
