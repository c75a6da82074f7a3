"""Not everything delivered, or not there any more: what a person and a script see of it, and do about it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hailstorm.spouts import Log
from tests.e2e.test_run import HAILSTORM, hailstorm_, rows, wait_for
from tests.jvm import WarmJvm

pytestmark = pytest.mark.spark

APP = """
import pathlib
import hailstorm as hs

def call(rows):
    if pathlib.Path("broken").exists():
        raise ValueError("a bug")

storm = hs.Topology("words")
lines = storm.spout("lines", hs.Log("data/lines"), schema="word STRING")
lines.sink("service", hs.Call(call))
"""


def test_not_all_delivered_is_exit_code_3_and_a_sentence_also_when_nothing_is_new(tmp_path: Path, jvm: WarmJvm) -> None:
    (tmp_path / "app.py").write_text(APP)
    Log(tmp_path / "data/lines").append([{"word": "rain"}, {"word": "snow"}])
    (tmp_path / "broken").touch()
    for _ in range(2):  # the second run has nothing new to read, and still says what waits
        done = hailstorm_("run", "app.py", "--until", "caught-up", folder=tmp_path, jvm=jvm, ok=3)
        waits = "Sink 'service' has not got everything: 1 commits (2 rows) wait in the outbox: HS-SNK-007"
        assert waits in done.stderr
        assert "Fix that, then run again: hailstorm run app.py" in done.stderr
    (status,) = rows("status", "app.py", folder=tmp_path)
    assert status["sinks"]["service"]["error"].startswith("HS-SNK-007")
    assert status["sinks"]["service"]["next_try"] is None
    assert "it has stopped" in hailstorm_("status", "app.py", folder=tmp_path).stderr
    (tmp_path / "broken").unlink()
    hailstorm_("run", "app.py", "--until", "caught-up", folder=tmp_path, jvm=jvm)
    (status,) = rows("status", "app.py", folder=tmp_path)
    assert (status["sinks"]["service"]["behind"], status["sinks"]["service"]["error"]) == (0, None)


def test_a_script_that_runs_its_topology_ends_as_the_command_does(tmp_path: Path, jvm: WarmJvm) -> None:
    (tmp_path / "app.py").write_text(APP + "\nstorm.run(until='caught-up')\nprint('after')\n")
    Log(tmp_path / "data/lines").append([{"word": "rain"}])
    (tmp_path / "broken").touch()

    def script() -> subprocess.CompletedProcess[str]:
        command, environment = [sys.executable, "app.py"], {**os.environ, **jvm.for_the_next()}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)

    done = script()
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "Sink 'service' has not got everything: 1 commits (1 rows) wait in the outbox: HS-SNK-007" in done.stderr
    (tmp_path / "broken").unlink()
    done = script()
    assert (done.returncode, done.stdout) == (0, "after\n"), done.stderr


def test_ctrl_c_while_a_sink_is_down_is_exit_code_3_and_does_not_wait_for_it(tmp_path: Path, jvm: WarmJvm) -> None:
    (tmp_path / "app.py").write_text(APP.replace('ValueError("a bug")', 'ConnectionError("down")'))
    Log(tmp_path / "data/lines").append([{"word": "rain"}, {"word": "snow"}])
    (tmp_path / "broken").touch()
    environment = {**os.environ, **jvm.for_the_next()}
    process = subprocess.Popen(
        [*HAILSTORM, "run", "app.py"], cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=-1
    )
    try:
        cursors = tmp_path / ".hailstorm/words/cursors/service"
        wait_for(lambda: any("down" in file.read_text() for file in cursors.glob("*.json")), "the sink to fail")
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3, said
    assert "Sink 'service' has not got everything: 1 commits (2 rows) wait in the outbox" in said
    assert time.monotonic() - asked < 45  # and not the minute that a run waits that has ended by itself


RETRIED = """
import pathlib
import hailstorm as hs

def whole(row):
    return {"n": int(row.word)}

storm = hs.Topology("words")
lines = storm.spout("lines", hs.Log("data/lines"), schema="word STRING")
lines.bolt(whole, name="whole", returns="n INT").fold("total", n=hs.sum("n"))
"""


def test_dead_letters_are_retried_in_a_changed_topology_when_the_change_is_accepted(
    tmp_path: Path, jvm: WarmJvm
) -> None:
    (tmp_path / "app.py").write_text(RETRIED)
    Log(tmp_path / "data/lines").append([{"word": "20"}, {"word": "one"}])
    hailstorm_("run", "app.py", "--until", "caught-up", folder=tmp_path, jvm=jvm)
    fixed = RETRIED.replace("int(row.word)", "1 if row.word == 'one' else int(row.word)").replace('"n")', '"n * 1")')
    (tmp_path / "app.py").write_text(fixed)
    refused = hailstorm_("errors", "app.py", "--retry", folder=tmp_path, ok=1, jvm=jvm)
    assert "--accept total" in refused.stderr
    done = hailstorm_("errors", "app.py", "--retry", "--accept", "total", folder=tmp_path, jvm=jvm)
    assert "1 of 1 dead letters went through; 0 stay." in done.stdout
    assert rows("state", "app.py", "total", folder=tmp_path) == [{"n": 21}]


TABLE = """
import hailstorm as hs

storm = hs.Topology("words")
counts = storm.spout("lines", hs.Log("data/lines"), schema="word STRING").fold("counts", by="word", n=hs.count())
counts.sink("database", hs.Sqlite("data/words.db", table="words"))
"""


def test_a_table_that_was_dropped_is_noticed_and_resend_brings_it_back(tmp_path: Path, jvm: WarmJvm) -> None:
    (tmp_path / "app.py").write_text(TABLE)
    Log(tmp_path / "data/lines").append([{"word": "rain"}, {"word": "snow"}, {"word": "rain"}])
    hailstorm_("run", "app.py", "--until", "caught-up", folder=tmp_path, jvm=jvm)
    connection = sqlite3.connect(tmp_path / "data/words.db")
    connection.execute("DROP TABLE words")
    connection.commit()
    done = hailstorm_("run", "app.py", "--until", "caught-up", folder=tmp_path, jvm=jvm, ok=3)
    assert "HS-SNK-063" in done.stderr
    assert "hailstorm resend APP database" in done.stderr
    assert "there is no sink 'databse'" in hailstorm_("resend", "app.py", "databse", folder=tmp_path, ok=2).stderr
    done = hailstorm_("resend", "app.py", "database", folder=tmp_path, jvm=jvm)
    assert "Sink 'database' has the whole table" in done.stdout
    assert connection.execute("SELECT word, n FROM words ORDER BY 1").fetchall() == [("rain", 2), ("snow", 1)]
    connection.close()
    (status,) = rows("status", "app.py", folder=tmp_path)
    assert (status["sinks"]["database"]["behind"], status["sinks"]["database"]["error"]) == (0, None)
