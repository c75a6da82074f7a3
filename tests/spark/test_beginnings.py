"""Where spouts begin, and which log they read: decided once, committed, and never changed without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.run import run_topology
from hailstorm.errors import LogError
from hailstorm.faults import inject
from hailstorm.ledger.ledger import Ledger
from hailstorm.spouts import Files, Log, Rate, files
from hailstorm.spouts.roster import OneLog
from hailstorm.spouts.source import Source


class Killed(Exception):
    pass


@dataclass(frozen=True)
class Tail(OneLog):
    """A log that is read from its end on, like Kafka with start="latest"."""

    def beginning(self, first: bool) -> dict[int, int]:
        return self.latest() if first else self.earliest()


def counting(source: Source) -> hs.Topology:
    storm = hs.Topology("counting")
    storm.spout("lines", source, schema="word STRING", decode="json").fold("counts", by="word", n=hs.count())
    return storm


def counts(ledger: Path) -> dict[str, int]:
    return {row["word"]: row["n"] for row in hs.open_ledger(ledger).state("counts").arrow().to_pylist()}


def words(text: str) -> list[dict[str, str]]:
    return [{"word": word} for word in text.split()]


@contextmanager
def started(spark: SparkSession, storm: hs.Topology, ledger: Path) -> Iterator[Negotiator]:
    negotiator = Negotiator(spark, storm, Ledger(ledger, create=True), ways=(1,))
    try:
        negotiator.start()
        yield negotiator
    finally:
        negotiator.fail()


def test_what_comes_after_the_first_start_is_read_whatever_happens_between_two_looks(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, ledger = Log(tmp_path / "log"), tmp_path / "ledger"
    log.append(words("before"))
    storm = counting(Tail(log))
    # Killed between the look and the commit: the topology has not started yet.
    with pytest.raises(Killed), inject("before-commit", Killed()), started(spark, storm, ledger):
        raise AssertionError("it must not get so far")
    log.append(words("also before"))
    with started(spark, storm, ledger) as negotiator:
        assert negotiator.ledger.head.clock == {"lines": {"0": 3}}, "where it begins is in the first commit"
        assert negotiator.ledger.head.commit == 1
        assert not negotiator.tick()
        log.append(words("after"))
    log.append(words("while nobody was looking"))
    with started(spark, storm, ledger) as negotiator:
        assert negotiator.tick()
        # A new partition: all of it, from its first record on, also when it was filled before it was seen.
        log.append(words("new"), partition=1)
        with pytest.raises(Killed), inject("before-commit", Killed()):
            negotiator.tick()
    log.append(words("new"), partition=1)
    with started(spark, storm, ledger) as negotiator:
        assert negotiator.ledger.head.clock["lines"]["1"] == 0
        assert negotiator.tick()
        assert not negotiator.tick()
    assert counts(ledger) == dict.fromkeys(["after", "while", "nobody", "was", "looking"], 1) | {"new": 2}


def test_a_partition_that_retention_cuts_after_it_was_seen_has_a_hole_and_not_another_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, ledger = Log(tmp_path / "log"), tmp_path / "ledger"
    log.append(words("a b c d"))
    with started(spark, counting(log), ledger):
        pass
    log.retain(records=1)
    with pytest.raises(Exception, match="no longer has the offsets 0 to 2"):
        run_topology(counting(log), ledger=ledger, until="caught-up")
    run_topology(counting(log), ledger=ledger, until="caught-up", on_data_loss="continue")
    assert counts(ledger) == {"d": 1}


APP = """
import hailstorm as hs
storm = hs.Topology("app")
storm.spout("lines", {source}, schema="word STRING").fold("counts", by="word", n=hs.count())
"""


def hailstorm(folder: Path, *arguments: str, ok: int = 0) -> str:
    done = CliRunner().invoke(app, [arguments[0], str(folder / "app.py"), *arguments[1:]])
    assert done.exit_code == ok, (done.output, done.exception)
    return done.output + str(done.exception or "")


def remake(path: Path, source: str) -> None:
    """Another log in the same place, with other records."""
    if source == "log":
        shutil.rmtree(path)
        Log(path).append(words("snow snow snow"))
    else:
        shutil.rmtree(path / ".hailstorm-files")
        (path / "a.jsonl").write_text('{"word": "snow"}\n' * 3)


@pytest.mark.parametrize("source", ["log", "files"])
def test_a_log_that_was_made_again_needs_a_word_and_is_then_read_as_a_whole(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    path, ledger = tmp_path / "data", tmp_path / ".hailstorm/app"
    if source == "log":
        Log(path).append(words("rain hail"))
    else:
        path.mkdir()
        (path / "a.jsonl").write_text('{"word": "rain"}\n{"word": "hail"}\n')
    (tmp_path / "app.py").write_text(APP.format(source=f"hs.{source.title()}('data')"))
    hailstorm(tmp_path, "run", "--until", "caught-up")
    remake(path, source)
    told = hailstorm(tmp_path, "run", "--until", "caught-up", ok=1)
    assert "HS-LOG-061" in told
    assert "--accept lines" in told
    assert counts(ledger) == {"rain": 1, "hail": 1}
    said = hailstorm(tmp_path, "run", "--until", "caught-up", "--accept", "lines")
    assert "spout 'lines' reads another log than before, from its beginning" in said
    assert counts(ledger) == {"rain": 1, "hail": 1, "snow": 3}
    assert hs.open_ledger(ledger).live().clock == {"lines": {"0": 2, "10000": 3}}
    status = json.loads(hailstorm(tmp_path, "status", "--json"))
    assert status["lag"] == {"lines": {"10000": 0}}
    # Accepted is accepted: it needs no word again, and goes on.
    if source == "log":
        Log(path).append(words("snow"))
    else:
        (path / "b.jsonl").write_text('{"word": "snow"}\n')
    hailstorm(tmp_path, "run", "--until", "caught-up")
    assert counts(ledger)["snow"] == 4


def test_a_log_that_was_moved_is_the_same_and_another_path_with_another_log_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    Log(tmp_path / "a").append(words("rain"))
    run_topology(counting(Log(tmp_path / "a")), ledger=ledger, until="caught-up")
    (tmp_path / "a").rename(tmp_path / "b")
    Log(tmp_path / "b").append(words("hail"))
    run_topology(counting(Log(tmp_path / "b")), ledger=ledger, until="caught-up")
    assert counts(ledger) == {"rain": 1, "hail": 1}
    Log(tmp_path / "c").append(words("snow snow"))
    with pytest.raises(LogError, match="is not the log that was read before"):
        run_topology(counting(Log(tmp_path / "c")), ledger=ledger, until="caught-up")
    run_topology(counting(Log(tmp_path / "c")), ledger=ledger, until="caught-up", accept=("lines",))
    # Whoever puts the old log back goes on with it where it was left.
    Log(tmp_path / "b").append(words("hail"))
    run_topology(counting(Log(tmp_path / "b")), ledger=ledger, until="caught-up")
    assert counts(ledger) == {"rain": 1, "hail": 2, "snow": 2}


def test_another_rate_is_another_log_and_a_longer_one_is_not(spark: SparkSession, tmp_path: Path) -> None:
    def rate(**changes: float) -> hs.Topology:
        storm = hs.Topology("rated")
        settings = {"per_second": 1000.0, "limit": 5, **changes}
        rows = storm.spout("lines", Rate(settings["per_second"], limit=int(settings["limit"])))
        rows.fold("counts", by="value", n=hs.count())
        return storm

    run_topology(rate(), ledger=tmp_path / "ledger", until="caught-up")
    run_topology(rate(limit=8), ledger=tmp_path / "ledger", until="caught-up")
    with pytest.raises(LogError, match="--accept lines"):
        run_topology(rate(per_second=2000.0), ledger=tmp_path / "ledger", until="caught-up")
    assert hs.open_ledger(tmp_path / "ledger").state("counts").arrow().num_rows == 8


def test_a_log_that_was_restored_from_an_old_copy_stops_the_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hailstorm.engine.ticks.logs._SETTLING", 0.0)
    log, ledger = Log(tmp_path / "log"), tmp_path / "ledger"
    log.append(words("rain"))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    log.append(words("hail snow"))
    run_topology(counting(log), ledger=ledger, until="caught-up")
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")
    with pytest.raises(LogError, match="ends at 1, and was already read up to 3"):
        run_topology(counting(log), ledger=ledger, until="caught-up")


def test_the_times_of_a_log_that_was_replaced_do_not_hold_the_watermark_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    def timed() -> hs.Topology:
        storm = hs.Topology("timed")
        lines = storm.spout("lines", Log(tmp_path / "log"), schema="word STRING, at TIMESTAMP", event_time="at")
        lines.fold("counts", by="word", n=hs.count())
        return storm

    def watermark() -> str | None:
        return hs.open_ledger(tmp_path / "ledger").live().watermark

    Log(tmp_path / "log").append([{"word": "rain", "at": "2024-01-01"}])
    run_topology(timed(), ledger=tmp_path / "ledger", until="caught-up")
    shutil.rmtree(tmp_path / "log")
    Log(tmp_path / "log").append([{"word": "rain", "at": "2024-03-01"}])
    run_topology(timed(), ledger=tmp_path / "ledger", until="caught-up", accept=("lines",))
    assert str(watermark()).startswith("2024-03-01")


def test_files_with_a_pattern_that_gives_other_lines_are_another_log(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_text('{"word": "rain"}\n')
    (tmp_path / "data/b.txt").write_text('{"word": "hail"}\n')
    run_topology(counting(Files(str(tmp_path / "data/*.jsonl"))), ledger=tmp_path / "ledger", until="caught-up")
    with pytest.raises(LogError, match="--accept lines"):
        run_topology(counting(Files(str(tmp_path / "data/*"))), ledger=tmp_path / "ledger", until="caught-up")


def test_caught_up_means_all_files_that_were_there_and_not_those_of_one_look(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LOOK_BYTES", 10)
    (tmp_path / "data").mkdir()
    for name in "abc":
        (tmp_path / f"data/{name}.jsonl").write_text('{"word": "rain"}\n')
    summary = run_topology(counting(Files(str(tmp_path / "data"))), ledger=tmp_path / "ledger", until="caught-up")
    assert summary.rows == 3
