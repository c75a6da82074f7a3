"""`--ledger`: what needs the app's code and its logs finds a ledger that is not where the app says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.spouts import Log

APP = """
from pathlib import Path

import hailstorm as hs

storm = hs.Topology("storm")
lines = storm.spout("lines", hs.Log("lines"), schema="word STRING")


@lines.bolt(returns="word STRING")
def good(line):
    if line.word == "bad" and not (Path(__file__).parent / "fixed").exists():
        raise ValueError("a bad word")
    return {"word": line.word}


good.fold("counts", by="word", n=hs.count())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    Log(tmp_path / "lines").create(1).append([{"word": word} for word in ("hail", "bad", "hail")])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # an app puts its folder there
    return tmp_path


def typed(*words: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, [words[0], "app.py", *words[1:], "--ledger", "elsewhere"])
    assert done.exit_code == 0, (done.output, done.exception)
    return [json.loads(line) for line in done.stdout.splitlines()] if "--json" in words else []


def test_commands_that_need_the_app_find_a_ledger_that_is_elsewhere(spark: SparkSession, folder: Path) -> None:
    typed("run", "--until", "caught-up")
    assert not (folder / ".hailstorm").exists()
    then = typed("state", "counts", "--at", '{"lines": {"0": 1}}', "--json")
    assert then == [{"word": "hail", "n": 1}], "a moment between commits, for which the app is run"
    since = typed("diff", "counts", "lines/0@1", "latest", "--json")
    assert [(row["word"], row["before"]["n"], row["after"]["n"]) for row in since] == [("hail", 1, 2)]
    (folder / "fixed").touch()
    assert typed("errors", "--retry", "--json")[0]["retried"] == 1
    assert typed("state", "counts", "--key", "bad", "--json") == [{"word": "bad", "n": 1}]
    assert typed("status", "--json")[0]["lag"] == {"lines": {"0": 0}}
    assert typed("erase", "counts", "--key", "bad", "--logs", "--yes", "--json")[0]["logs"] == {"lines": 1}
    assert typed("state", "counts", "--json") == [{"word": "hail", "n": 2}]
    assert not (folder / ".hailstorm").exists()
