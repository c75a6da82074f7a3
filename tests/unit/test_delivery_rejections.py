"""Rows that a target rejects: dead letters of the sink, until there are too many."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.tolerance import total
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from tests.unit.delivering import (
    MemoryOutbox,
    Picky,
    Recorder,
    delivering,
    run_once,
    sink_step,
)


def test_a_rejected_row_is_a_dead_letter_of_its_sink_and_stops_nobody() -> None:
    outbox, picky, other = MemoryOutbox(), Picky(), Recorder()
    outbox.commit("a", "!b", "c")
    outbox.commit("d")
    with delivering(outbox, sink_step(picky), sink_step(other, name="other")) as deliverer:
        assert deliverer.wait(10, 2)
        states = deliverer.states()
    assert picky.got == [(1, "a"), (1, "c"), (2, "d")]
    assert [word for _, word in other.got] == ["a", "!b", "c", "d"]
    assert outbox.rejected == {("board", 1): [("has a !", b'{"word":"!b","n":1}')]}
    assert (states["board"].rejected, states["other"].rejected) == (1, 0)


def test_a_crash_after_the_dead_letter_and_before_the_rows_doubles_neither() -> None:
    outbox, picky = MemoryOutbox(), Picky(before=[OSError("reset")])
    outbox.commit("a", "!b")
    state = run_once(outbox, sink_step(picky))
    assert picky.got == [(1, "a")]
    assert list(outbox.rejected) == [("board", 1)]
    assert len(outbox.rejected["board", 1]) == 1
    assert state.rejected == 1


def test_a_sink_that_rejects_more_than_a_tenth_of_many_rows_stops() -> None:
    outbox, picky = MemoryOutbox(), Picky()
    outbox.commit(*["a"] * 89, *["!b"] * 11)
    state = run_once(outbox, sink_step(picky))
    assert state.stopped is not None
    assert "HS-SNK-013  sink 'board' rejects 11 of 100 rows of commit 1" in state.stopped
    assert "has a !" in state.stopped
    assert (picky.got, outbox.rejected) == ([], {})


def test_a_sink_that_rejects_row_by_row_stops_too_and_a_restart_does_not_begin_again() -> None:
    outbox = MemoryOutbox()
    for _ in range(60):
        outbox.commit("!b")
    assert run_once(outbox, sink_step(Picky())).stopped is None
    for _ in range(60):
        outbox.commit("!b")
    for _ in range(2):
        state = run_once(outbox, sink_step(Picky()))
        assert state.stopped is not None
        assert "HS-SNK-013  sink 'board' rejects 100 of its last 100 rows" in state.stopped
        assert (state.cursor, len(outbox.rejected)) == (99, 99)


def test_after_a_second_chance_the_count_of_rejected_rows_begins_again() -> None:
    outbox = MemoryOutbox()
    for _ in range(99):
        outbox.commit("!b")
    outbox.retries.add(outbox.commit("a"))
    for _ in range(50):
        outbox.commit("!b")
    assert run_once(outbox, sink_step(Picky())).stopped is None
    assert total(outbox.counts["board"]) == (50, 50)


def test_rows_that_get_a_second_chance_may_all_be_rejected_again() -> None:
    outbox, picky = MemoryOutbox(), Picky()
    outbox.retries.add(outbox.commit(*["!b"] * 150))
    outbox.commit("a")
    state = run_once(outbox, sink_step(picky))
    assert (state.stopped, state.rejected, picky.got) == (None, 150, [(2, "a")])


def test_what_an_attempt_rejected_that_was_cut_off_is_forgotten_when_it_is_taken_at_last() -> None:
    outbox, picky = MemoryOutbox(), Picky(before=[KeyError("killed")])
    outbox.commit("a", "!b")
    run_once(outbox, sink_step(picky))
    assert list(outbox.rejected) == [("board", 1)]
    mended = Recorder()
    run_once(outbox, sink_step(mended))
    assert (mended.got, outbox.rejected) == ([(1, "a"), (1, "!b")], {})


def test_letters_of_a_batch_that_is_delivered_again_are_those_of_the_last_attempt() -> None:
    outbox, picky = MemoryOutbox(), Picky()
    for word in ("a", "!b", "c"):
        outbox.commit(word)
    run_once(outbox, sink_step(picky, "at-least-once"))
    assert list(outbox.rejected) == [("board", 2)]
    outbox.cursors.clear()  # as after a crash before the batch was over
    run_once(outbox, sink_step(Recorder(), "at-least-once"))
    assert outbox.rejected == {}


def test_the_ledger_shows_rejected_rows_among_the_dead_letters(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    for _ in range(2):  # the same commit again replaces its letters
        rows = pa.table({"word": ["rain"]})
        LedgerOutbox(ledger).store_rejected("board", 7, [("too long", b'{"word":"rain"}')], rows)
    assert open_ledger(tmp_path / "ledger").errors().to_pylist() == [
        {"spout": None, "partition": None, "offset": None, "step": "board", "reason": "too long",
         "raw": b'{"word":"rain"}'}
    ]  # fmt: skip
