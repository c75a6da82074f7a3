"""The reading commands, on a small ledger that is made by hand: no Spark is started, and none is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import HailstormError, WordError
from hailstorm.ledger.commit import DataFile, Discarded, Hole, SinkShape, Stamp, StateChange, StepShape
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.letters import LETTER
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import write_run


def _run(ledger: Ledger, seq: int, counts: dict[str, int]) -> StateChange:
    table = pa.table(
        {
            "_bucket": pa.array([0] * len(counts), pa.int16()),
            "_hash": pa.array(hash_columns([pa.array(list(counts))], len(counts))),
            "word": list(counts),
            "n": list(counts.values()),
            "_updated": pa.array([None] * len(counts), pa.timestamp("us", tz="UTC")),
            "_deleted": [False] * len(counts),
        }
    ).sort_by("_hash")
    return StateChange(added=(write_run(ledger.store, "counts", table, Stamp(seq, 1)),))


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Two commits of word counts, a sink that is one behind, and a dead letter."""
    root = tmp_path / "words"
    ledger = Ledger(root, create=True)
    now = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    steps = {"counts": StepShape(kind="fold", key=("word",), values=("n",), fingerprint="f")}
    state = {"counts": _run(ledger, 1, {"rain": 1, "snow": 5})}
    end = {"lines": {"0": 6}}
    file = DataFile(path="outbox/board/x.parquet", rows=1, bytes=1)
    outbox = {"board": (file,), "removed": (file,)}
    sinks = {"board": SinkShape(since=0, is_table=True, fingerprint="f")}
    first = {"state": state, "steps": steps, "fingerprints": {"counts": "f"}, "sinks": sinks, "end": end}
    first["outbox"] = outbox
    ledger.commit(next_commit(ledger.head, "tick", 1, now, rows=6, ms=12.5, **first))
    letter = {
        "spout": "lines",
        "partition": 0,
        "offset": 6,
        "step": "lines",
        "reason": "not JSON",
        "raw": b"\xffno",
    }
    (root / "errors").mkdir()
    pq.write_table(pa.Table.from_pylist([letter], LETTER), root / "errors/e.parquet")
    state = {"counts": _run(ledger, 2, {"rain": 3, "hail": 2})}
    letters = (DataFile(path="errors/e.parquet", rows=1, bytes=1),)
    end = {"lines": {"0": 11}}
    ledger.commit(
        next_commit(
            ledger.head, "tick", 1, now, state=state, end=end, rows=4, errors=1, dead_letters=letters, outbox=outbox
        )
    )
    ledger.cursors.store(
        "board", SinkRecord(commit=1, error="HS-SNK-006  locked", next_try="2026-01-31T09:31:00+00:00")
    )
    return str(root)


def _lines(*arguments: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_state_is_one_flat_object_per_key(ledger: str) -> None:
    assert _lines("state", ledger, "counts", "--json") == [
        {"word": "hail", "n": 2},
        {"word": "rain", "n": 3},
        {"word": "snow", "n": 5},
    ]


def test_state_at_an_earlier_commit_is_what_it_was(ledger: str) -> None:
    rows = _lines("state", ledger, "counts", "--at", "1", "--json")
    assert rows == [{"word": "rain", "n": 1}, {"word": "snow", "n": 5}]


def test_keys_are_named_or_bare(ledger: str) -> None:
    expected = [{"word": "rain", "n": 3}, {"word": "snow", "n": 5}]
    assert _lines("state", ledger, "counts", "--key", "rain", "--key", "word=snow", "--json") == expected


def test_a_key_that_is_not_there_says_so(ledger: str) -> None:
    result = CliRunner().invoke(app, ["state", ledger, "counts", "--key", "sleet", "--json"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "'counts' has no key sleet" in result.stderr


def test_a_key_column_that_does_not_exist_is_an_error_with_a_suggestion(ledger: str) -> None:
    result = CliRunner().invoke(app, ["state", ledger, "counts", "--key", "wrod=rain"])
    assert isinstance(result.exception, HailstormError)
    assert "Did you mean 'word'?" in result.exception.hint
    assert "--key word=wrod=rain" in result.exception.hint, "how to ask for a key with a '=' in it"
    assert _lines("state", ledger, "counts", "--key", "word=n=many", "--json") == []


def test_before_the_first_row_there_are_no_keys(tmp_path: Path) -> None:
    empty = Ledger(tmp_path / "empty", create=True)
    steps = {"counts": StepShape(kind="fold", key=("word",), values=("n",), fingerprint="f")}
    empty.commit(next_commit(empty.head, "evolve", 1, datetime(2026, 1, 31, tzinfo=UTC), steps=steps))
    assert _lines("state", str(tmp_path / "empty"), "counts", "--key", "rain", "--where", "n > 1", "--json") == []


def test_where_is_sql(ledger: str) -> None:
    rows = _lines("state", ledger, "counts", "--where", "n > 2 AND word LIKE 's%'", "--json")
    assert rows == [{"word": "snow", "n": 5}]


def test_where_that_does_not_parse_is_an_error(ledger: str) -> None:
    result = CliRunner().invoke(app, ["state", ledger, "counts", "--where", "n >"])
    assert isinstance(result.exception, HailstormError)
    assert "Columns: word, n" in result.exception.hint


def test_limit_cuts_and_a_table_says_what_is_left_out(ledger: str) -> None:
    assert len(_lines("state", ledger, "counts", "--limit", "2", "--json")) == 2


def test_a_limit_holds_no_more_than_it_shows(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "arrow", lambda state: pytest.fail("the whole state was loaded"))
    assert len(_lines("state", ledger, "counts", "--limit", "2", "--json")) == 2
    assert "rain" in CliRunner().invoke(app, ["state", ledger, "counts", "--limit", "2"]).stdout


def test_an_unknown_step_lists_the_known_ones(ledger: str) -> None:
    result = CliRunner().invoke(app, ["state", ledger, "count"])
    assert isinstance(result.exception, HailstormError)
    assert "Did you mean 'counts'?" in result.exception.hint


def test_a_moment_that_is_no_commit_is_wrong_usage(ledger: str) -> None:
    result = CliRunner().invoke(app, ["state", ledger, "counts", "--at", "12 o'clock"])
    assert isinstance(result.exception, WordError)


def test_commits_have_exactly_the_fields_that_scripts_rely_on(ledger: str) -> None:
    first, second = _lines("commits", ledger, "--json")
    fields = ["commit", "reason", "at", "from", "to", "rows", "ms", "watermark", "late", "errors"]
    assert list(first) == fields
    assert (first["commit"], first["rows"], first["ms"], first["from"]) == (1, 6, 12.5, {})
    assert (second["from"], second["to"], second["errors"]) == ({"lines": {"0": 6}}, {"lines": {"0": 11}}, 1)


def test_commits_may_be_limited_to_the_newest(ledger: str) -> None:
    assert [row["commit"] for row in _lines("commits", ledger, "--limit", "1", "--json")] == [2]


def test_status_is_one_object_with_exactly_these_fields(ledger: str) -> None:
    (status,) = _lines("status", ledger, "--json")
    assert status == {
        "topology": "words",
        "commit": 2,
        "clock": {"lines": {"0": 11}},
        "lag": {},
        "watermark": None,
        "watermarks": {},
        "sinks": {
            "board": {
                "cursor": 1,
                "behind": 1,
                "error": "HS-SNK-006  locked",
                "next_try": "2026-01-31T09:31:00+00:00",
                "recent": {"rows": 0, "errors": 0},
            }
        },
        "errors": 1,
        "late": 0,
        "recent": {"rows": 0, "errors": 0},
    }


def test_status_shows_the_watermarks_of_every_step(ledger: str) -> None:
    opened = Ledger(Path(ledger))
    minute = 60_000_000
    watermarks = {"lines": (2 * minute, 2 * minute), "counts": (2 * minute, minute), "others": (None, None)}
    opened.commit(next_commit(opened.head, "tick", 1, datetime.now(UTC), watermarks=watermarks))
    (status,) = _lines("status", ledger, "--json")
    assert status["watermarks"] == {
        "lines": {"input": "1970-01-01T00:02:00+00:00", "output": "1970-01-01T00:02:00+00:00"},
        "counts": {"input": "1970-01-01T00:02:00+00:00", "output": "1970-01-01T00:01:00+00:00"},
        "others": {"input": None, "output": None},
    }
    lines = CliRunner().invoke(app, ["status", ledger]).output.splitlines()
    (shown,) = (line.split() for line in lines if "00:01:00" in line)
    assert [word for word in shown if word != "│"] == [
        "counts", "1970-01-01T00:02:00+00:00", "1970-01-01T00:01:00+00:00",
    ]  # fmt: skip


def test_status_shows_the_bad_rows_of_the_last_ones(ledger: str) -> None:
    opened = Ledger(Path(ledger))
    opened.commit(next_commit(opened.head, "tick", 1, datetime.now(UTC), recent=((60, 1), (50, 4))))
    opened.cursors.store("board", SinkRecord(commit=3, recent=((120, 7),)))
    (status,) = _lines("status", ledger, "--json")
    assert status["recent"] == {"rows": 110, "errors": 5}
    assert status["sinks"]["board"]["recent"] == {"rows": 120, "errors": 7}
    shown = CliRunner().invoke(app, ["status", ledger]).output
    assert "errors 1 (5 in the last 110 rows)" in shown
    assert "7 in the last 120" in shown


def test_status_and_commits_name_what_was_not_read(ledger: str) -> None:
    opened = Ledger(Path(ledger))
    holes = {"lines": {"0": [Hole(11, 20), Hole(20, 50, "dropped")]}}
    end = {"lines": {"0": 60}}
    opened.commit(next_commit(opened.head, "tick", 1, datetime.now(UTC), end=end, rows=10, holes=holes))
    (status,) = _lines("status", ledger, "--json")
    assert status["holes"] == {"lines": {"0": [[11, 20, "gone"]]}}
    assert status["skipped"] == {"lines": {"0": 30}}
    assert [row.get("skipped") for row in _lines("commits", ledger, "--json")] == [None, None, 30]
    shown = CliRunner().invoke(app, ["status", ledger]).output
    assert "lines/0 has lost the offsets 11 to 19" in shown
    assert "has skipped 30 records" in shown


def test_dead_letters_are_discarded_by_name_and_with_a_reason_that_stays(ledger: str) -> None:
    def refused(*words: str) -> str:
        error = CliRunner().invoke(app, ["errors", ledger, *words]).exception
        assert isinstance(error, HailstormError)
        return error.code

    assert refused("--discard", "lines") == "HS-CLI-081"
    assert refused("--reason", "why") == "HS-CLI-081"
    assert refused("--retry", "--discard", "lines", "--reason", "why") == "HS-CLI-080"
    assert refused("--accept", "lines") == "HS-CLI-082"
    assert refused("--discard", "liens", "--reason", "why") == "HS-LED-035"
    assert len(_lines("errors", ledger, "--json")) == 1
    said = CliRunner().invoke(app, ["errors", ledger, "--discard", "lines", "--reason", "a test"]).stdout
    assert said == "1 dead letters of 'lines' were discarded.\n"
    assert _lines("errors", ledger, "--json") == []
    (newest,) = _lines("commits", ledger, "--limit", "1", "--json")
    assert newest["reason"] == "discard"
    assert Ledger(Path(ledger)).read_commit(3).discarded == {"lines": Discarded(1, "a test")}
    assert refused("--discard", "all", "--reason", "why") == "HS-LED-035"


def test_discarding_says_in_json_how_many_of_each_step(ledger: str) -> None:
    assert _lines("errors", ledger, "--discard", "all", "--reason", "why", "--json") == [{"discarded": {"lines": 1}}]


def test_errors_show_raw_bytes_even_when_they_are_not_text(ledger: str) -> None:
    assert _lines("errors", ledger, "--json") == [
        {"spout": "lines", "partition": 0, "offset": 6, "step": "lines", "reason": "not JSON", "raw": "\\xffno"}
    ]


@pytest.mark.parametrize("command", ["status", "commits", "errors", "state"])
def test_people_get_tables(ledger: str, command: str) -> None:
    result = CliRunner().invoke(app, [command, ledger, *(["counts"] if command == "state" else [])])
    assert result.exit_code == 0, result.output
    assert "─" in result.stdout


def test_reading_imports_no_spark(ledger: str) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from hailstorm.cli.app import app\n"
        f"assert CliRunner().invoke(app, ['state', {ledger!r}, 'counts']).exit_code == 0\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'pyspark']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_reading_commands_leave_pandas_alone_and_who_wants_it_gets_it() -> None:
    program = """
import sys
from hailstorm.cli.without_pandas import without_pandas

without_pandas()
import pyarrow as pa

table = pa.table({"n": [1, 2]})
assert "pandas" not in sys.modules
assert table.to_pandas()["n"].tolist() == [1, 2]
import pandas as pd

assert pa.array(pd.Series([1, None])).null_count == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_state_says_where_a_delta_reader_finds_a_commit(ledger: str) -> None:
    table = f"{ledger}/moments/counts"
    told = CliRunner().invoke(app, ["state", ledger, "counts", "--at", "1", "--delta"])
    assert told.output == f"{table} version 1\n"
    told = CliRunner().invoke(app, ["state", ledger, "counts", "--delta", "--json"])
    found = json.loads(told.output)
    assert found == {"address": table, "version": Ledger(ledger).head.commit}
    assert DeltaTable(table, version=1).transaction_version("hailstorm") == 1
    refused = CliRunner().invoke(app, ["state", ledger, "counts", "--delta", "--key", "rain"])
    assert refused.exception is not None
    assert "HS-CLI-097" in str(refused.exception)
