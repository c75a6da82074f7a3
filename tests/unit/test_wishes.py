"""What a run is asked to do is looked at before Spark starts, and what it would commit is looked at before it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.engine import run as engine_run
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.ticks.committing import Committer
from hailstorm.errors import HailstormError, LedgerError, WordError
from hailstorm.history import looking_back
from hailstorm.ledger.commit import Run, StateChange
from hailstorm.ledger.ledger import Ledger
from tests.unit.word_ledger import WordLedger

APP = """
import hailstorm as hs
storm = hs.Topology("words")
lines = storm.spout("lines", hs.Log("data/lines"), schema="word STRING")
lines.fold("counts", by="word", n=hs.count())
lines.where("loud", "word > 'a'").sink("board", hs.Console())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def start(*arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError("Spark was started")

    for module in (engine_run, looking_back):
        monkeypatch.setattr(module, "start_session", start)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    hs.Log(tmp_path / "data/lines").append([{"word": "rain"}])
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says", "advises"),
    [
        (["--until", '{"nope": {"0": 4}}'], "'nope', which is not a spout", "The spouts are: lines."),
        (["--until", '{"line": {"0": 4}}'], "'line', which is not a spout", "Did you mean 'lines'?"),
        (["--until", '{"lines": {"0": -4}}'], "a negative number at lines/0: -4", "Say caught-up"),
        (["--until", '{"lines": {"7": 4}}'], "partition 7 of 'lines', which it does not have", "Its partitions are: 0"),
        (["--until", "caughtup"], "'caughtup' does not say until when", "Did you mean 'caught-up'?"),
        (["--until", '{"lines": 4}'], "does not say until when", 'a clock such as {"tweets"'),
        (["--accept", "count"], "there is no step 'count' to accept", "Did you mean 'counts'?"),
        (["--recompute", "count"], "there is no step 'count'", "Did you mean 'counts'?"),
        (["--backfill", "count"], "there is no step 'count'", "Did you mean 'counts'?"),
        (["--backfill", "loud"], "neither 'loud' nor any step below it keeps state", "Steps with state: counts"),
        (["--set", "latncy=5s"], "there is no setting 'latncy'", "Did you mean 'latency'?"),
        (["--set", "latency=soon"], "setting 'latency' cannot be 'soon'", "It takes a duration"),
        (["--every", "1x"], "setting 'every' cannot be '1x'", "It takes a duration"),
        (["--ledger", "ftp://host/words"], "'ftp://host/words' is not the address of a ledger", "s3://bucket/path"),
        (["--ledger", "s3://me:rain@bucket/words"], "'s3://me:***@bucket/words' has a name and a", "AWS_ACCESS_KEY_ID"),
        (["--ledger", "s3://bucket/words?key=rain"], "is not the address of a ledger", "s3://bucket/path"),
        (["--master", "spark://host:7077"], "the ledger is a folder of this machine", "it would be lost"),
        (["--master", "spark://host:7077", "--ledger", "folder"], "the ledger is a folder", "--ledger s3://"),
        (["--conf", "spark.master=yarn"], "the ledger is a folder of this machine", "--ledger s3://"),
        (["--master", "k8s://https://host"], "the ledger is a folder of this machine", "--ledger s3://"),
        (["--master", "mesos://host:5050"], "'mesos://host:5050' is not a Spark master", "spark://host:7077"),
        (["--master", "spark://host"], "'spark://host' is not a Spark master", "spark://host:7077"),
        (["--master", "local[x]"], "'local[x]' is not a Spark master", "local[4]"),
        (["--conf", "latency=5s"], "'latency' is not a setting of Spark", "--set latency="),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_word_is_refused_before_spark_starts(folder: Path, words: list[str], says: str, advises: str) -> None:
    before = sorted(folder.iterdir())
    result = CliRunner().invoke(app, ["run", "app.py", *words])
    assert isinstance(result.exception, WordError), result.exception
    assert says in result.exception.what
    assert advises in result.exception.hint
    assert result.exception.at is None  # the user's words are not in a file
    assert [path for path in folder.iterdir() if path not in before] in ([], [folder / ".hailstorm"])


def test_good_words_get_as_far_as_spark(folder: Path) -> None:
    words = ["--until", '{"lines": {"0": 9}}', "--accept", "counts", "--set", "latency=5s", "--master", "local[2]"]
    result = CliRunner().invoke(app, ["run", "app.py", *words])
    assert str(result.exception) == "Spark was started"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("backfill app.py count", "there is no step 'count'"),
        ("backfill app.py counts --from monday", "there is no snapshot 'monday'"),
        ("rewind app.py --to 1 --steps count", "there is no step 'count'"),
        ("audit app.py --step count", "there is no state of a step 'count' to audit"),
        ("audit app.py --at monday", "there is no snapshot 'monday'"),
        ("audit app.py --from monday", "there is no snapshot 'monday'"),
        ("replay app.py --from monday", "there is no snapshot 'monday'"),
        ("replay app.py --from 2 --to 1", "there is nothing between commit 2 and commit 1"),
        ("trace app.py line/0@1", "there is no spout 'line'"),
        ("trace app.py --key count rain", "there is no step 'count'"),
        ("trace app.py --key counts rain --from monday", "there is no snapshot 'monday'"),
        ("trace app.py --output boards/1/0", "there is no step 'boards'"),
        ("trace app.py --output counts/1/0", "'counts' is no sink"),
        ("trace app.py --output board/7/0", "commit 7"),
        ("resend app.py boards", "there is no sink 'boards'"),
        ("errors app.py --retry --accept count", "there is no step 'count' to accept"),
    ],
)
def test_wrong_words_of_other_commands_are_refused_before_spark_starts(folder: Path, words: str, says: str) -> None:
    ledger = WordLedger(folder / ".hailstorm/words")
    ledger.tick({"rain": 1})
    ledger.tick({"hail": 1})
    result = CliRunner().invoke(app, words.split())
    assert isinstance(result.exception, HailstormError), result.exception
    assert says in result.exception.what
    assert result.exception.at is None  # the user's words are not in a file


@pytest.mark.slow
def test_wrong_words_end_with_exit_code_2(folder: Path) -> None:
    command = [sys.executable, "-m", "hailstorm", "run", "app.py", "--accept", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("HS-CLI-066")


def test_a_reading_command_refuses_such_an_address_too(folder: Path) -> None:
    result = CliRunner().invoke(app, ["status", "ftp://host/words"])
    assert isinstance(result.exception, WordError)


@pytest.mark.parametrize("command", [["new", "file/shop"], ["demo", "--folder", "file/demo"]])
def test_what_cannot_be_written_is_a_plain_error(folder: Path, command: list[str]) -> None:
    (folder / "file").write_text("mine")  # a folder below it cannot be made, by root neither
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, HailstormError)
    assert result.exception.what.startswith("cannot write to 'file/")


@pytest.mark.parametrize(("size", "says"), [(None, "is not there"), (3, "has 3 bytes and not 10")])
def test_a_commit_names_no_file_that_the_driver_does_not_see(tmp_path: Path, size: int | None, says: str) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    committer = Committer(hs.Topology("words"), ledger, LedgerOutbox(ledger))
    if size is not None:
        ledger.store.put("state/counts/x.parquet", b"x" * size)
    run = Run(id="x", seq=1, rows=1, bytes=10, first=0, last=0)
    with pytest.raises(LedgerError, match=says):
        committer.compaction({"counts": StateChange(added=(run,))})
    assert ledger.newest().commit == 0


@pytest.mark.slow
@pytest.mark.parametrize("raises", ["", "true"], ids=["told", "raised"])  # Spark lets its daemon do either
def test_a_worker_that_spark_has_let_go_says_nothing(raises: str) -> None:
    code = (
        "import os, socket, pyspark.worker, hailstorm.engine.spark.daemon, pyspark.daemon\n"
        "ours, theirs = socket.socketpair(); theirs.close()\n"
        "pyspark.worker.main = lambda read, write: write.write(b'x')\n"
        "try:\n"
        "    pyspark.daemon.worker(ours, True)\n"
        "except BaseException:\n"
        "    pyspark.daemon.traceback.print_exc()\n"  # as its manager does
        "os._exit(0)"
    )
    environment = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": raises}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
