"""What commands print: JSON that scripts rely on, tables for people, the progress line."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import rich.progress
from rich.console import Console

from hailstorm.cli import output
from hailstorm.cli.live import ProgressDisplay, profile_rows, progress_text
from hailstorm.cli.run import show_summary
from hailstorm.engine.delivery.sink_state import SinkState
from hailstorm.engine.progress import Progress, Summary
from hailstorm.errors import UsageError
from hailstorm.ledger.json_value import Beyond, to_json


def test_a_standby_says_whom_it_waits_for() -> None:
    waits = Progress("standing by", "standing by: 'storm' runs on here, process 7", commit=1234)
    assert progress_text(waits, 0, 3.2).plain == "standing by: 'storm' runs on here, process 7, commit 1,234 (3 s)"
    file = io.StringIO()
    with ProgressDisplay(console=Console(file=file, soft_wrap=True)) as display:
        for commit in range(5):
            display(Progress("standing by", waits.message, commit=commit))
    assert file.getvalue().count("standing by") == 1, "a log file gets a line now and then"


def test_json_times_are_iso_8601_in_utc_and_decimals_are_exact() -> None:
    row = {"at": datetime(2026, 1, 31, 9, 30, tzinfo=UTC), "price": Decimal("0.10"), "n": 3}
    assert to_json(row) == '{"at":"2026-01-31T09:30:00Z","price":"0.10","n":3}'


def test_json_has_names_for_numbers_without_digits() -> None:
    row = {"x": [math.nan, math.inf, {"y": -math.inf}, 0.5], "m": [("a", math.nan)]}
    assert to_json(row) == '{"x":["NaN","Infinity",{"y":"-Infinity"},0.5],"m":[["a","NaN"]]}'


def test_a_map_is_an_object_of_the_texts_of_its_keys_and_no_decimal_has_an_exponent() -> None:
    row = {"m": {True: Decimal("0E-10"), 0.5: {math.nan: b"a"}, datetime(2026, 1, 31, tzinfo=UTC): Beyond('["+1"]')}}
    assert to_json(row) == '{"m":{"true":"0.0000000000","0.5":{"NaN":"YQ=="},"2026-01-31T00:00:00Z":["+1"]}}'
    table = pa.table({"m": pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string()))})
    assert to_json(output.rows_of(table)[0]) == '{"m":{"1":"a"}}'


def test_times_that_python_has_no_value_for_are_texts() -> None:
    late = pa.scalar(253_402_300_800_000_000, pa.int64()).cast(pa.timestamp("us", "UTC"))  # the year 10000
    soon = pa.scalar(datetime(2026, 1, 31, tzinfo=UTC), pa.timestamp("us", "UTC"))
    times = pa.array([soon, late])
    table = pa.table({"n": [1, 2], "at": times, "s": pa.StructArray.from_arrays([times], names=["at"])})
    rows = output.rows_of(table)
    assert [row["n"] for row in rows] == [1, 2]
    assert rows[1]["at"].startswith("+10000-01-01T00:00:00")
    assert rows[1]["s"] == {"at": rows[1]["at"]}
    assert output.rows_of(table.slice(0, 1))[0]["at"] == datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (None, ""),
        (True, "true"),
        (0.5, "0.5"),
        (12345.678, "12,345.7"),
        (datetime(2026, 1, 31, 9, 30, tzinfo=timezone(timedelta(hours=2))), "2026-01-31 07:30:00"),
        (b"a\xff", "a\\xff"),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_values_read_as_people_write_them(value: object, text: str) -> None:
    assert output.as_text(value) == text


def test_the_line_says_what_overload_skipped_and_why_input_pauses() -> None:
    assert "OVERLOADED skipped 12,345" in progress_text(Progress("running", skipped=12_345), 0, 0).plain
    paused = Progress("paused", "until sink 'board' is at most 1,000 commits behind")
    assert progress_text(paused, 0, 0).plain.startswith("PAUSED until sink 'board' is at most 1,000 commits behind")


def test_an_error_keeps_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=40)
    monkeypatch.setattr(output, "err", Console(file=console.file, width=40, soft_wrap=True, highlight=False))
    error = UsageError(99, "a [long] sentence that is longer than the terminal is wide", hint="Do this.\nOr that.")
    output.show_error(error)
    assert console.file.getvalue() == error.render() + "\n"  # type: ignore[attr-defined]


RUNNING = Progress(
    "running",
    commit=1234,
    rows=500,
    total_rows=9000,
    tick_ms=241.4,
    lag=17,
    watermark=datetime(2026, 1, 31, 9, 30, tzinfo=UTC),
    sinks={"board": SinkState(cursor=1234, behind=0)},
    timings={"read": 100.0, "commit": 20.0},
)


def test_the_progress_line_has_all_there_is_to_watch() -> None:
    assert progress_text(RUNNING, 5123.4, 3.0).plain == (
        "commit 1,234  5,123 rows/s  tick 241 ms  lag 17  watermark 2026-01-31 09:30:00  sinks ok  errors 0"
    )


def test_a_sink_in_trouble_is_named_with_its_reason() -> None:
    sinks = {
        "archive": SinkState(cursor=3, behind=9, failing="database is locked"),
        "slow": SinkState(cursor=3, behind=9),
        "picky": SinkState(cursor=12, behind=0, rejected=4),
        "dead": SinkState(cursor=3, behind=9, stopped="no such table"),
    }
    text = progress_text(Progress("running", sinks=sinks), 0, 0).plain
    assert "sink archive retrying: database is locked" in text
    assert "sink slow 9 behind" in text
    assert "sink picky rejected 4 rows" in text
    assert "sink dead STOPPED: no such table" in text
    assert "sinks ok" not in text


def test_without_a_terminal_there_is_one_plain_line_a_second_and_one_for_each_phase() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=Console(file=file, soft_wrap=True)) as display:
        display(Progress("starting", "starting Spark"))
        for _ in range(50):
            display(RUNNING)
        display(Progress("stopped", "stopped"))
    lines = [line.split("  ", 1)[1] for line in file.getvalue().splitlines()]
    assert [line.split()[0] for line in lines] == ["starting", "commit", "stopped"]
    assert "\x1b" not in file.getvalue()


def test_without_a_terminal_the_error_of_a_sink_is_printed_when_it_changes_and_not_on_every_line() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=Console(file=file, soft_wrap=True)) as display:
        for error in ("locked", "locked", "locked", None, "full"):
            state = SinkState(cursor=3, behind=9, failing=error)
            display._printed = float("-inf")  # as if a second had passed
            display(Progress("running", sinks={"archive": state}))
    lines = [line.split("  ", 1)[1] for line in file.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("sink")] == ["sink archive: locked", "sink archive: full"]
    progress = [line for line in lines if line.startswith("commit")]
    assert len(progress) == 5
    assert not any("locked" in line or "full" in line for line in progress)
    assert "sink archive retrying" in progress[1]


def test_a_terminal_gets_a_live_line() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=Console(file=file, force_terminal=True, width=120)) as display:
        display(RUNNING)
    assert "commit 1,234" in file.getvalue()


def test_the_profile_shows_where_the_time_went() -> None:
    timings = {"read": [1.0, 2.0, 3.0, 94.0], "commit": [25.0] * 4, "tick": [50.0] * 4}
    assert profile_rows(timings, ("read", "plan", "commit")) == [
        {"part": "read", "median ms": 2.0, "p99 ms": 94.0, "share": "50%"},
        {"part": "commit", "median ms": 25.0, "p99 ms": 25.0, "share": "50%"},
        {"part": "tick", "median ms": 50.0, "p99 ms": 50.0, "share": "100%"},
    ]


def test_json_lines_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json_lines([{"a": 1}, {"a": "x\ny"}])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"a": 1}, {"a": "x\ny"}]


def test_the_summary_says_what_was_skipped_and_rejected_and_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary("led", commit=4, ticks=3, rows=600, errors=0, late=0, skipped=5400, rejected=3, seconds=2.0)
    show_summary(summary, "app.py")
    text = capsys.readouterr().err
    assert "0 errors, 5,400 skipped on overload, 3 rejected by sinks" in text
    assert "errors app.py" in text


def test_commands_to_type_are_quoted_where_a_path_has_a_space_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary("led", commit=4, ticks=3, rows=600, errors=0, late=0, skipped=0, rejected=0, seconds=2.0)
    show_summary(summary, "my shop/app.py")
    assert "status 'my shop/app.py'\n" in capsys.readouterr().err


def test_a_console_is_one_of_rich_once_it_is_used() -> None:
    written = io.StringIO()
    console: Any = output._Later(file=written, force_terminal=True, width=80)
    with rich.progress.Progress(console=console, transient=True) as progress:
        progress.add_task("copying", total=1)
        progress.refresh()
    console.print("a [bold]word[/bold]", style="dim")
    assert isinstance(console, Console)
    assert "copying" in written.getvalue() and "word" in written.getvalue()
