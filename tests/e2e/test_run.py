"""The command line with the real engine, as processes: what a person types and sees.

Where a test is not about how Java starts and ends, commands share a warm JVM, and are forks (`tests/forks.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.spouts import Log
from tests.jvm import WarmJvm

pytestmark = pytest.mark.spark

HAILSTORM = [sys.executable, "-m", "hailstorm"]
WORDS = """
import hailstorm as hs
storm = hs.Topology("words")
lines = storm.spout("lines", hs.Log("data/lines"), schema="word STRING")
counts = lines.fold("counts", by="word", n=hs.count())
counts.sink("database", hs.Sqlite("data/words.db", table="words"))
counts.top("top", 3, by="n").sink("board", hs.Console())
"""


def hailstorm_(
    *arguments: str, folder: Path, ok: int = 0, typed: str = "", jvm: WarmJvm | None = None
) -> subprocess.CompletedProcess[str]:
    command = HAILSTORM if jvm is None else [jvm.forks.python, "-m", "hailstorm"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={**os.environ, **(jvm.for_the_next() if jvm else {})},
        capture_output=True,
        text=True,
        input=typed,
        timeout=180,
        check=False,
    )
    assert done.returncode == ok, done.stdout + done.stderr
    return done


def rows(*arguments: str, folder: Path) -> list[dict[str, Any]]:
    """What a command that only reads finds. It needs no process of its own."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A folder with an app that counts words, and a log with three of them."""
    (tmp_path / "app.py").write_text(WORDS)
    Log(tmp_path / "data/lines").append([{"word": word} for word in ("rain", "snow", "rain")])
    return tmp_path


@pytest.fixture
def running(words: Path, jvm: WarmJvm) -> Iterator[subprocess.Popen[str]]:
    """The app, started and past its first tick."""
    environment = {**os.environ, **jvm.for_the_next()}
    process = subprocess.Popen(
        [*HAILSTORM, "run", "app.py"], cwd=words, env=environment, text=True, stdout=-1, stderr=-1
    )
    try:
        wait_for(lambda: committed(words) >= 3 or process.poll() is not None, "the first tick")
        yield process
    finally:
        process.kill()
        process.communicate()


def committed(folder: Path) -> int:
    """How many records the newest commit has read."""
    files = sorted((folder / ".hailstorm/words/commits").glob("[0-9]*.json"))
    return sum(json.loads(files[-1].read_bytes())["to"].get("lines", {}).values()) if files else 0


def wait_for(condition: Any, what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def test_a_run_in_a_pipe_prints_plain_lines_and_a_summary(words: Path) -> None:
    done = hailstorm_("run", "app.py", "--until", "caught-up", "--profile", folder=words)
    assert "\x1b" not in done.stderr + done.stdout
    assert "starting Spark" in done.stderr
    assert "WARNING" not in done.stderr  # what Java says about itself is not for people
    assert "3 rows in 1 ticks" in done.stderr
    assert "hailstorm status app.py" in done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {(row["word"], row["n"]) for row in results} == {("rain", 2), ("snow", 1)}
    assert "median ms" in done.stdout
    status = hailstorm_("status", "app.py", folder=words).stdout
    parts = ("choose", "plan", "read", "compute", "look up", "merge", "write", "commit", "deliver")
    for shown in (done.stdout, status):
        assert [part for part in parts if f" {part} " in shown] == list(parts)
    way = ("waiting", "reading", "tick", "hand-over", "sink", "arrival to delivery")
    assert [part for part in way if f" {part} " in done.stdout] == list(way)


def test_state_can_be_read_while_it_runs_and_a_signal_ends_it_well(running: subprocess.Popen[str], words: Path) -> None:
    read = hailstorm_("state", "app.py", "counts", "--json", folder=words).stdout.splitlines()
    assert [json.loads(line) for line in read] == [{"word": "rain", "n": 2}, {"word": "snow", "n": 1}]
    (status,) = rows("status", "app.py", folder=words)
    assert (status["topology"], status["clock"], status["lag"]) == ("words", {"lines": {"0": 3}}, {"lines": {"0": 0}})
    assert rows("commits", "app.py", folder=words)[-1]["rows"] == 3
    hailstorm_("log", "append", "data/lines", folder=words, typed='{"word": "hail"}\n')
    wait_for(lambda: committed(words) == 4, "the second tick")
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert "Stopped at commit" in errors
    (status,) = rows("status", "app.py", folder=words)
    assert set(status["sinks"]) == {"database", "board"}
    assert all(sink["behind"] == 0 for sink in status["sinks"].values())


def test_a_second_run_is_told_who_has_the_ledger(running: subprocess.Popen[str], words: Path) -> None:
    done = hailstorm_("run", "app.py", folder=words, ok=1)
    assert "HS-LED" in done.stderr
    assert f"process {running.pid}" in done.stderr


def test_a_killed_run_is_gone_on_with(running: subprocess.Popen[str], words: Path, jvm: WarmJvm) -> None:
    running.kill()
    running.wait()
    hailstorm_("log", "append", "data/lines", folder=words, typed='{"word": "rain"}\n')
    hailstorm_("run", "app.py", "--until", "caught-up", folder=words, jvm=jvm)
    assert rows("state", "app.py", "counts", "--key", "rain", folder=words) == [{"word": "rain", "n": 3}]
    before = next(row["commit"] for row in rows("commits", "app.py", folder=words) if row["rows"] == 3)
    at = rows("state", "app.py", "counts", "--key", "rain", "--at", str(before), folder=words)
    assert at == [{"word": "rain", "n": 2}]


def test_a_run_until_a_clock_stops_exactly_there(words: Path, jvm: WarmJvm) -> None:
    hailstorm_("run", "app.py", "--until", '{"lines": {"0": 2}}', folder=words, jvm=jvm)
    (status,) = rows("status", "app.py", folder=words)
    assert (status["clock"], status["lag"]) == ({"lines": {"0": 2}}, {"lines": {"0": 1}})


def test_a_terminal_shows_the_board_and_the_line(words: Path, jvm: WarmJvm) -> None:
    driver, terminal = pty.openpty()
    process = subprocess.Popen(
        [*HAILSTORM, "run", "app.py"],
        cwd=words,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, **jvm.for_the_next(), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(terminal)
    screen = b""
    try:
        deadline = time.monotonic() + 180
        while b"rain" not in screen or b"commit 2" not in screen:
            assert time.monotonic() < deadline, screen.decode(errors="replace")
            if select.select([driver], [], [], 0.2)[0]:
                screen += os.read(driver, 65536)
        process.send_signal(signal.SIGINT)
        while process.poll() is None or select.select([driver], [], [], 0.2)[0]:
            try:
                screen += os.read(driver, 65536)
            except OSError:  # the other end has closed
                break
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(driver)
    assert b"starting Spark" in screen
    assert b"Stopped at commit" in screen


def test_the_demo_feeds_itself_and_stops_by_itself(tmp_path: Path, jvm: WarmJvm) -> None:
    done = hailstorm_("demo", "--seconds", "3", folder=tmp_path, jvm=jvm)
    assert "hailstorm state .hailstorm/demo/trending/app.py counts" in done.stderr
    assert "Stopped at commit" in done.stderr
    top = rows("state", ".hailstorm/demo/trending/app.py", "top", folder=tmp_path)
    assert [row["rank"] for row in top] == list(range(1, 11))
    (status,) = rows("status", ".hailstorm/demo/trending/app.py", folder=tmp_path)
    assert sum(status["clock"]["tweets"].values()) >= 20_000


def test_check_shows_the_graph_the_schemas_and_the_settings(words: Path, jvm: WarmJvm) -> None:
    done = hailstorm_("check", "app.py", folder=words, jvm=jvm)
    assert "is fine" in done.stderr
    assert "n int64" in done.stdout
    assert "max_tick_rows" in done.stdout


def test_check_finds_what_only_spark_can_find(tmp_path: Path, jvm: WarmJvm) -> None:
    (tmp_path / "app.py").write_text(WORDS.replace('"counts", by', '"counts", x=hs.sum("no_such_function(word)"), by'))
    done = hailstorm_("check", "app.py", folder=tmp_path, ok=1, jvm=jvm)
    assert "HS-TOP" in done.stderr
    assert "app.py:5" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(:", "is not valid Python"),
        ("x = 1", "has no topology"),
        ("import hailstorm as hs\nstorm = hs.Topology('empty')", "HS-TOP"),
        (WORDS.replace("data/lines", "no/log"), "there is no log"),
    ],
    ids=["syntax", "no topology", "empty topology", "no log"],
)
def test_a_bad_app_is_an_error_with_a_reason(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "app.py").write_text(text)
    done = hailstorm_("run", "app.py", "--until", "caught-up", folder=tmp_path, ok=1)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_ledger_that_is_a_file_is_refused(words: Path) -> None:
    (words / "file").write_text("mine")
    done = hailstorm_("run", "app.py", "--ledger", "file", folder=words, ok=1)
    assert "is a file" in done.stderr
    assert (words / "file").read_text() == "mine"


def test_an_app_runs_in_a_folder_with_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = """ü %d ${x} "q" it's"""
    # Without a locale Java knows ASCII only, and the folder for temporary files may be called anything, too.
    monkeypatch.setenv("LC_ALL", "C")
    (tmp_path / "t m'p").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t m'p"))
    here = tmp_path / folder
    here.mkdir()
    (here / "app.py").write_text(WORDS)
    Log(here / "data/lines").append([{"word": "rain"}])
    hailstorm_("run", "app.py", "--until", "caught-up", folder=here)
    assert rows("state", "app.py", "counts", folder=here) == [{"word": "rain", "n": 1}]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder, "t m'p"])
    assert (here / ".hailstorm/words/.cache/spark.log").exists()
    assert list((tmp_path / "t m'p").iterdir()) == []  # what Spark wrote on the side is gone


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("spark.driver.memory=900000g", "Could not reserve enough space"),
        ("spark.driver.memory=frog", "Invalid maximum heap size: -Xmxfrog"),
    ],
    ids=["too much memory", "no number"],
)
def test_what_keeps_java_from_starting_is_said_in_its_own_words(words: Path, conf: str, says: str) -> None:
    done = hailstorm_("run", "app.py", "--conf", conf, folder=words, ok=1)
    assert "HS-CLI-060  Java did not start" in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_a_killed_run_left_in_the_temporary_folder_is_removed_by_the_next(words: Path, tmp_path: Path) -> None:
    place = words / "tmp"
    place.mkdir()
    (place / "hailstorm-scratch-alive").mkdir()
    (place / "hailstorm-scratch-precious.txt").write_text("mine")
    environment = {**os.environ, "TMPDIR": str(place)}
    process = subprocess.Popen([*HAILSTORM, "run", "app.py"], cwd=words, env=environment, stdout=-3, stderr=-3)
    try:
        wait_for(lambda: committed(words) >= 3 or process.poll() is not None, "the first tick")
        before = {path.name for path in place.iterdir()}
    finally:
        process.kill()
        process.wait()
    assert len(before) == 3
    code = "from hailstorm.engine.spark.scratch import scratch_folder; print(scratch_folder().name)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() not in before
    assert {path.name for path in place.iterdir()} == {"hailstorm-scratch-alive", "hailstorm-scratch-precious.txt"}


def test_an_app_that_is_run_as_a_script_shows_the_same(words: Path, jvm: WarmJvm) -> None:
    (words / "app.py").write_text(WORDS + "if __name__ == '__main__':\n    storm.run(until='caught-up')\n")
    command, environment = [sys.executable, "app.py"], {**os.environ, **jvm.for_the_next()}
    done = subprocess.run(command, cwd=words, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "starting Spark" in done.stderr
    assert "Stopped at commit 2: 3 rows in 1 ticks" in done.stderr
    assert "hailstorm status app.py" in done.stderr
