"""The console sink: a live table for the run command to draw, JSON lines when nobody looks."""

from __future__ import annotations

import io
import json
import threading

import pyarrow as pa
import pytest
from rich.console import Console as Terminal

from hailstorm.columns import KIND, OLD
from hailstorm.errors import SinkError
from hailstorm.sinks import Console
from hailstorm.sinks.sink import Delivery, Parcel

TOP = pa.schema([("word", pa.string()), ("n", pa.int64()), ("rank", pa.int32())])
COUNTS = pa.schema([("word", pa.string()), ("n", pa.int64())])


def terminal() -> Terminal:
    return Terminal(file=io.StringIO(), force_terminal=True, width=60, color_system=None)


def changes(schema: pa.Schema, *rows: tuple[object, ...]) -> pa.Table:
    values = [dict(zip([*schema.names, KIND], row, strict=True)) for row in rows]
    return pa.Table.from_pylist(values, schema=schema.append(pa.field(KIND, pa.string())))


def drawn(sink: Console) -> list[list[str]]:
    """The cells of the table as a person sees them."""
    screen = terminal()
    screen.print(sink.renderable())
    assert isinstance(screen.file, io.StringIO)
    lines = screen.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def test_a_top_is_drawn_in_order_of_rank_as_it_changes() -> None:
    sink = Console(limit=2, terminal=terminal())
    sink.open(Delivery("trending", "board", "ledger", TOP, ("word",), True))
    sink.deliver(
        Parcel.of(1, changes(TOP, ("hail", 1, 3, "insert"), ("snow", 5000, 2, "insert"), ("rain", 9000, 1, "insert")))
    )
    assert drawn(sink) == [["rain", "9,000", "1"], ["snow", "5,000", "2"]]
    sink.deliver(Parcel.of(2, changes(TOP, ("snow", 9001, 1, "update"), ("rain", 9000, 2, "update"))))
    assert drawn(sink) == [["snow", "9,001", "1"], ["rain", "9,000", "2"]]
    sink.deliver(
        Parcel.of(
            3, changes(TOP, ("snow", None, None, "delete"), ("rain", 9000, 1, "update"), ("hail", 1, 2, "update"))
        )
    )
    assert drawn(sink) == [["rain", "9,000", "1"], ["hail", "1", "2"]]


def test_of_other_tables_the_latest_changes_are_drawn() -> None:
    sink = Console(limit=2, terminal=terminal())
    sink.open(Delivery("trending", "board", "ledger", COUNTS, ("word",), True))
    sink.deliver(Parcel.of(1, changes(COUNTS, ("a", 1, "insert"), ("b", 1, "insert"), ("c", 1, "insert"))))
    assert drawn(sink) == [["c", "1"], ["b", "1"]]
    sink.deliver(Parcel.of(2, changes(COUNTS, ("b", 2, "update"))))
    assert drawn(sink) == [["b", "2"], ["c", "1"]]


def test_of_a_stream_the_latest_rows_are_drawn() -> None:
    sink = Console(limit=2, title="rows", terminal=terminal())
    sink.open(Delivery("trending", "board", "ledger", COUNTS, (), False))
    sink.deliver(Parcel.of(1, pa.table({"word": ["a", "a", "[bold]b"], "n": [1, 1, None]}, schema=COUNTS)))
    assert drawn(sink) == [["[bold]b", ""], ["a", "1"]], "what users write is no markup"


def test_in_a_terminal_it_prints_nothing_by_itself_and_the_last_table_stays_after_the_end() -> None:
    screen = terminal()
    sink = Console(terminal=screen)
    assert drawn(sink) == [], "it can be drawn before it is open"
    sink.open(Delivery("trending", "board", "ledger", COUNTS, (), False))
    sink.deliver(Parcel.of(1, pa.table({"word": ["a"], "n": [1]}, schema=COUNTS)))
    sink.close()
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue() == ""
    assert drawn(sink) == [["a", "1"]]


def test_what_is_drawn_survives_a_retry() -> None:
    sink = Console(terminal=terminal())
    for commit in (1, 2):  # delivery closes and opens a sink after an error
        sink.open(Delivery("trending", "board", "ledger", COUNTS, ("word",), True))
        sink.deliver(Parcel.of(commit, changes(COUNTS, (f"word {commit}", commit, "insert"))))
        sink.close()
    assert drawn(sink) == [["word 2", "2"], ["word 1", "1"]]


def test_elsewhere_every_change_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Console()
    sink.open(Delivery("trending", "board", "ledger", COUNTS, ("word",), True))
    rows = changes(COUNTS, ("Grüße\n", 1, "insert"), ("b", None, "delete"))
    sink.deliver(Parcel.of(1, rows.append_column(OLD, pa.nulls(2, pa.struct(list(COUNTS))))))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"_sink": "board", "_commit": 1, "word": "Grüße\n", "n": 1, "_kind": "insert"},
        {"_sink": "board", "_commit": 1, "word": "b", "n": None, "_kind": "delete"},
    ]


def test_a_reader_that_has_gone_stops_the_sink() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    sink = Console(terminal=Terminal(file=Closed(), force_terminal=False))
    sink.open(Delivery("trending", "board", "ledger", COUNTS, (), False))
    with pytest.raises(SinkError, match="nobody reads"):
        sink.deliver(Parcel.of(1, pa.table({"word": ["a"], "n": [1]}, schema=COUNTS)))


def test_it_is_drawn_while_it_is_delivered_to() -> None:
    sink, failed = Console(limit=50, terminal=terminal()), list[BaseException]()
    sink.open(Delivery("trending", "board", "ledger", COUNTS, ("word",), True))
    done = threading.Event()

    def draw() -> None:
        try:
            while not done.is_set():
                drawn(sink)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for commit in range(1, 60):
        sink.deliver(Parcel.of(commit, changes(COUNTS, *((f"w{n * commit % 97}", n, "update") for n in range(50)))))
    done.set()
    thread.join()
    assert failed == []


def test_a_board_begins_with_the_whole_table_and_a_pipe_does_not() -> None:
    screen = Console(terminal=Terminal(force_terminal=True, file=io.StringIO()))
    assert screen.forgets
    assert not Console(terminal=Terminal(force_terminal=False, file=io.StringIO())).forgets
    screen.open(Delivery("trending", "board", "ledger", COUNTS, ("word",), True))
    screen.deliver(Parcel.of(3, changes(COUNTS, ("a", 1, "insert"), ("b", 2, "insert")), whole=True))
    screen.deliver(Parcel.of(4, changes(COUNTS, ("a", 5, "update"))))
    assert [(row["word"], row["n"]) for row in screen._session.get().shown] == [("a", 5), ("b", 2)]
