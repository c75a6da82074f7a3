"""Delivery against an outbox in memory: order, retries, and what each delivery mode promises and does not."""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from hailstorm import faults
from hailstorm.engine.delivery.deliverer import Undelivered
from hailstorm.engine.delivery.sink_state import SinkState
from hailstorm.engine.retry_wait import retry_wait
from hailstorm.errors import TransientSinkError
from hailstorm.sinks.call import Call, Row
from hailstorm.sinks.sink import Cursor, Delivery, Parcel
from hailstorm.sinks.sqlite import Sqlite
from hailstorm.topology.schema import Column, Schema
from tests.unit.delivering import (
    SCHEMA,
    MemoryOutbox,
    Recorder,
    delivering,
    eventually,
    run_once,
    sink_step,
    table_step,
)

MODES = ("exactly-once", "at-least-once", "at-most-once")


@pytest.mark.parametrize("mode", MODES)
def test_commits_arrive_in_order_whether_they_were_there_before_or_come_later(mode: str) -> None:
    outbox, sink = MemoryOutbox(page=2), Recorder()
    for word in "abc":
        outbox.commit(word)
    with delivering(outbox, sink_step(sink, mode)) as deliverer:
        deliverer.notify(outbox.commit("d", "e"))
        deliverer.notify(outbox.commit())  # a commit without rows for this sink
        assert deliverer.wait(10, 5)
        assert deliverer.states() == {"board": SinkState(cursor=5, behind=0)}
    assert sink.got == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (4, "e")]
    assert outbox.cursors["board"] == 4
    assert (sink.opened, sink.closed) == (1, 1)


@pytest.mark.parametrize("mode", MODES)
def test_the_next_process_goes_on_at_the_cursor(mode: str) -> None:
    outbox, first, second = MemoryOutbox(), Recorder(), Recorder()
    outbox.commit("a")
    run_once(outbox, sink_step(first, mode))
    outbox.commit("b")
    run_once(outbox, sink_step(second, mode))
    assert (first.got, second.got) == ([(1, "a")], [(2, "b")])


@pytest.mark.slow
def test_a_failing_sink_is_tried_again_while_another_goes_on() -> None:
    outbox = MemoryOutbox()
    errors: list[Exception] = [
        TransientSinkError(6, "locked"),
        ConnectionError("gone"),
        TransientSinkError(6, "locked"),
    ]
    failing, healthy = Recorder(before=errors, opening=[TimeoutError("slow")]), Recorder()
    outbox.commit("a")
    with delivering(outbox, sink_step(failing), sink_step(healthy, name="other")) as deliverer:
        assert deliverer.wait(10, 1)
        assert deliverer.states()["board"] == SinkState(cursor=1, behind=0)
    assert failing.got == healthy.got == [(1, "a")]
    assert failing.opened == 4, "it is opened again after every error"
    told = [(error and error.split()[0], again) for sink, error, again in outbox.health if sink == "board"]
    reasons = [reason for reason, again in told if again]
    assert reasons == ["TimeoutError:", "HS-SNK-006", "ConnectionError:", "HS-SNK-006"], "the ledger knows each error"
    assert told[-1] == (None, False), "and that it has passed"


def test_waits_grow_to_half_a_minute_and_are_the_same_in_every_run() -> None:
    waits = [retry_wait("trending/board", attempt) for attempt in range(1, 40)]
    assert waits == [retry_wait("trending/board", attempt) for attempt in range(1, 40)]
    assert waits[:8] != [retry_wait("trending/other", attempt) for attempt in range(1, 9)]
    for attempt, wait in enumerate(waits):
        full = min(0.1 * 2**attempt, 30)
        assert 0.75 * full <= wait <= full


@pytest.mark.slow
def test_waits_grow_when_opening_works_and_delivering_does_not() -> None:
    outbox = MemoryOutbox()
    sink = Recorder(before=[OSError("full") for _ in range(4)])
    outbox.commit("a")
    with delivering(outbox, sink_step(sink)) as deliverer:
        assert deliverer.wait(10, 1)
    assert len(outbox.waits) == 4
    assert all(later > 1.2 * earlier for earlier, later in pairwise(outbox.waits))


def test_a_sink_that_cannot_go_on_says_why_and_stops_no_other() -> None:
    outbox, broken, healthy = MemoryOutbox(), Recorder(before=[ValueError("no such column")]), Recorder()
    outbox.commit("a")
    with delivering(outbox, sink_step(broken), sink_step(healthy, name="other")) as deliverer:
        assert not deliverer.wait(10, 1), "the broken one does not arrive, and nobody waits for it"
        deliverer.notify(outbox.commit("b"))
        eventually(lambda: deliverer.states()["other"].cursor == 2)
        state = deliverer.states()["board"]
        undelivered = deliverer.undelivered()
    assert state == SinkState(cursor=0, behind=2, stopped="ValueError: no such column")
    assert undelivered == (Undelivered("board", 2, 2, "ValueError: no such column", stopped=True),)
    assert ("board", "ValueError: no such column", False) in outbox.health
    assert broken.got == []
    assert healthy.got == [(1, "a"), (2, "b")]


def test_delivery_goes_on_while_the_sink_is_slow_and_shows_how_far_behind_it_is() -> None:
    outbox, sink = MemoryOutbox(), Recorder(gate=threading.Event())
    with delivering(outbox, sink_step(sink)) as deliverer:
        for word in "abcd":
            deliverer.notify(outbox.commit(word))
        assert deliverer.states()["board"].behind == 4
        assert not deliverer.wait(0.05, 4)
        assert sink.gate is not None
        sink.gate.set()
        assert deliverer.wait(10, 4)
        assert deliverer.states()["board"].behind == 0


def test_draining_does_not_sit_out_a_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hailstorm.engine.retry_wait._FIRST_WAIT", 30.0)
    outbox, sink = MemoryOutbox(), Recorder(before=[OSError("busy")])
    with delivering(outbox, sink_step(sink)) as deliverer:
        deliverer.notify(outbox.commit("a"))
        eventually(lambda: deliverer.states()["board"].retry_in is not None)
        assert deliverer.drain(10)
    assert sink.got == [(1, "a")]


def test_stopping_ends_a_long_wait_at_once_and_leaves_the_rows_in_the_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hailstorm.engine.retry_wait._FIRST_WAIT", 30.0)
    outbox, sink = MemoryOutbox(), Recorder(before=[OSError("busy")])
    outbox.commit("a")
    start = time.monotonic()
    with delivering(outbox, sink_step(sink)) as deliverer:
        eventually(lambda: deliverer.states()["board"].failing is not None)
    assert time.monotonic() - start < 5
    assert outbox.cursors == {}


def test_exactly_once_without_an_own_cursor_repeats_with_the_same_idempotency_keys() -> None:
    outbox, keys = MemoryOutbox(), list[str]()

    def receive(rows: list[Row]) -> None:
        keys.extend(row.key for row in rows)

    outbox.commit("a", "b")
    with faults.inject("during-delivery", ZeroDivisionError()):  # a crash between the call and its cursor
        assert run_once(outbox, sink_step(Call(receive))).stopped
    run_once(outbox, sink_step(Call(receive)))
    assert keys == ["trending/board/1/0", "trending/board/1/1"] * 2
    run_once(outbox, sink_step(Call(receive)))
    assert len(keys) == 4, "once the cursor is stored, it is not called again"


def test_at_least_once_loses_nothing_and_may_repeat_a_batch() -> None:
    outbox, crash, second = MemoryOutbox(), Recorder(), Recorder()
    for word in "abc":
        outbox.commit(word)
    original = crash.deliver

    def deliver(parcel: Parcel) -> None:
        if parcel.commit == 3:
            raise ZeroDivisionError("the process dies here")
        original(parcel)

    crash.deliver = deliver  # type: ignore[method-assign]
    assert run_once(outbox, sink_step(crash, "at-least-once")).stopped
    assert outbox.stores == 0, "the cursor is stored once per batch"
    run_once(outbox, sink_step(second, "at-least-once"))
    assert crash.got == [(1, "a"), (2, "b")]
    assert second.got == [(1, "a"), (2, "b"), (3, "c")]
    assert outbox.stores == 1


def test_at_least_once_repeats_nothing_within_one_process() -> None:
    outbox, sink = MemoryOutbox(), Recorder()
    for word in "abc":
        outbox.commit(word)
    original, errors = sink.deliver, [OSError("busy")]

    def deliver(parcel: Parcel) -> None:
        if parcel.commit == 3 and errors:
            raise errors.pop()
        original(parcel)

    sink.deliver = deliver  # type: ignore[method-assign]
    run_once(outbox, sink_step(sink, "at-least-once"))
    assert sink.got == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_at_most_once_doubles_nothing_and_counts_what_it_gave_up(when: str) -> None:
    outbox, sink = MemoryOutbox(), Recorder()
    getattr(sink, when).append(OSError("reset"))
    for word in "ab":
        outbox.commit(word)
    state = run_once(outbox, sink_step(sink, "at-most-once"))
    assert sink.got == [(1, "a"), (2, "b")][when == "before" :]
    assert (state.lost, state.cursor, state.failing) == (1, 2, None)


def test_at_most_once_does_not_deliver_again_after_a_crash() -> None:
    outbox, sink = MemoryOutbox(), Recorder()
    outbox.commit("a")
    with faults.inject("during-delivery", ZeroDivisionError()):  # after the cursor, before the rows
        run_once(outbox, sink_step(sink, "at-most-once"))
    outbox.commit("b")
    run_once(outbox, sink_step(sink, "at-most-once"))
    assert sink.got == [(2, "b")]


def test_at_most_once_holds_for_a_sink_that_keeps_its_own_cursor(tmp_path: Path) -> None:
    outbox, sink = MemoryOutbox(), Sqlite(tmp_path / "all.db", "words")
    outbox.commit("a")
    with faults.inject("during-delivery", ZeroDivisionError()):
        run_once(outbox, sink_step(sink, "at-most-once"))
    outbox.commit("b")
    run_once(outbox, sink_step(sink, "at-most-once"))
    sink.open(Delivery("trending", "board", "ledger", pa.schema([("word", pa.string()), ("n", pa.int64())]), (), False))
    assert sink._session.get().connection.execute("SELECT word, n FROM words").fetchall() == [("b", 1)]
    sink.close()


def test_the_sinks_own_cursor_counts_and_the_ledger_has_a_copy_for_its_readers(tmp_path: Path) -> None:
    outbox = MemoryOutbox()
    for word in "abc":
        outbox.commit(word)
    run_once(outbox, sink_step(Sqlite(tmp_path / "first.db", "words")))
    assert (outbox.cursors, outbox.stores) == ({"board": 3}, 1)
    empty = Sqlite(tmp_path / "second.db", "words")
    run_once(outbox, sink_step(empty))
    empty.open(
        Delivery("trending", "board", "ledger", pa.schema([("word", pa.string()), ("n", pa.int64())]), (), False)
    )
    assert empty.cursor() == Cursor("ledger", 3)
    assert empty._session.get().connection.execute("SELECT count(*) FROM words").fetchone() == (3,)
    empty.close()


def test_a_target_that_another_ledger_has_written_to_is_refused_whatever_its_number(tmp_path: Path) -> None:
    outbox = MemoryOutbox()
    outbox.commit("a")
    run_once(outbox, sink_step(Sqlite(tmp_path / "all.db", "words")))
    for commits in ("x", "xyz"):  # at the same commit, and further
        other = MemoryOutbox(ledger="another")
        for word in commits:
            other.commit(word)
        state = run_once(other, sink_step(Sqlite(tmp_path / "all.db", "words")))
        assert "HS-SNK-060" in str(state.stopped)
        assert "commit 1 of ledger ledger; this is ledger another" in str(state.stopped)
        assert "hailstorm resend" not in str(state.stopped), "a stream cannot be sent again"


def test_a_ledger_that_is_older_than_its_target_is_refused(tmp_path: Path) -> None:
    outbox = MemoryOutbox()
    for word in "abc":
        outbox.commit(word)
    run_once(outbox, sink_step(Sqlite(tmp_path / "all.db", "words")))
    backup = MemoryOutbox()
    backup.commit("x")
    state = run_once(backup, sink_step(Sqlite(tmp_path / "all.db", "words")))
    assert "HS-SNK-009" in str(state.stopped)
    assert "has got commit 3, but this ledger is only at commit 1" in str(state.stopped)
    assert "app.py:3" in str(state.stopped)


def test_two_sqlite_sinks_in_one_file_are_delivered_to_at_the_same_time(tmp_path: Path) -> None:
    outbox = MemoryOutbox()
    sinks = [sink_step(Sqlite(tmp_path / "all.db", name), name=name) for name in ("x", "y")]
    with delivering(outbox, *sinks) as deliverer:
        for number in range(30):
            deliverer.notify(outbox.commit(f"word {number}"))
        assert deliverer.wait(30, 30)
    for sink in sinks:
        sink.sink.open(
            Delivery("trending", sink.name, "ledger", pa.schema([("word", pa.string()), ("n", pa.int64())]), (), False)
        )
        assert sink.sink._session.get().connection.execute(f"SELECT count(*) FROM {sink.name}").fetchone() == (30,)
        sink.sink.close()


def test_rows_from_before_a_new_column_have_null_there() -> None:
    outbox, seen = MemoryOutbox(), list[pa.Table]()
    outbox.commit("a")
    sink = Recorder()
    sink.deliver = lambda parcel: seen.extend(parcel.pieces())  # type: ignore[method-assign]
    wide = replace(sink_step(sink), schema=Schema((*SCHEMA.columns, Column("extra", "string"))))
    assert run_once(outbox, wide).stopped is None
    assert seen[0].to_pylist() == [{"word": "a", "n": 1, "extra": None}]


def test_rows_that_do_not_fit_a_changed_type_stop_the_sink_with_a_reason() -> None:
    outbox = MemoryOutbox()
    outbox.commit("a")
    other = replace(sink_step(Recorder()), schema=Schema((Column("word", "int"), Column("n", "bigint"))))
    assert "HS-SNK-010" in str(run_once(outbox, other).stopped)


def test_a_sink_that_joins_a_table_waits_for_the_whole_of_it() -> None:
    outbox, sink = MemoryOutbox(is_table=True), Recorder()
    outbox.commit("a")
    outbox.since = outbox.commit()  # the sink was added here
    outbox.commit("b")
    with delivering(outbox, table_step(sink)) as deliverer:
        eventually(lambda: deliverer.lacking() == ("board",))
        assert not deliverer.wait(10, 3), "nobody waits for what somebody else must do"
        assert sink.got == [], "changes alone would make a wrong table"
        assert deliverer.states()["board"].note == "gets the whole table first"
        outbox.whole = outbox.commit("a", "b")
        deliverer.notify(4)
        assert deliverer.wait(10, 4)
        assert deliverer.lacking() == ()
        deliverer.notify(outbox.commit("c"))
        assert deliverer.wait(10, 5)
    assert (sink.got, sink.wholes) == ([(4, "a"), (4, "b"), (5, "c")], [4])
    again = Recorder()
    run_once(outbox, table_step(again))
    assert again.got == [], "it has got it, and does not need it again"


def test_a_target_that_has_lost_its_cursor_gets_the_whole_table(tmp_path: Path) -> None:
    outbox = MemoryOutbox(is_table=True)
    outbox.commit("a")
    run_once(outbox, table_step(Sqlite(tmp_path / "first.db", "words")))
    with delivering(outbox, table_step(Sqlite(tmp_path / "second.db", "words"))) as deliverer:
        eventually(lambda: deliverer.lacking() == ("board",))


def test_a_stream_goes_on_from_the_outbox_or_says_what_is_lost(tmp_path: Path) -> None:
    outbox = MemoryOutbox()
    for word in "abc":
        outbox.commit(word)
    run_once(outbox, sink_step(Sqlite(tmp_path / "first.db", "words")))
    state = run_once(outbox, sink_step(Sqlite(tmp_path / "second.db", "words")))
    assert (state.note, state.cursor) == (None, 3)
    outbox.first = 3  # what came before is not kept any more
    state = run_once(outbox, sink_step(Sqlite(tmp_path / "third.db", "words")))
    assert "goes on after commit 3" in str(state.note)
    outbox.since = outbox.commit("d")
    state = run_once(outbox, sink_step(Recorder(), name="new"))
    assert "starts from now: what came before commit 4" in str(state.note)


def test_a_screen_gets_the_whole_table_at_every_start_and_not_after_every_error() -> None:
    outbox = MemoryOutbox(is_table=True)
    outbox.commit("a")
    for number in (2, 4):
        sink = Recorder(forgets=True, before=[OSError("reset")])
        with delivering(outbox, table_step(sink)) as deliverer:
            eventually(lambda: deliverer.lacking() == ("board",))
            outbox.whole = outbox.commit("a")
            deliverer.notify(number)
            assert deliverer.wait(10, number)
            deliverer.notify(outbox.commit("b"))
            assert deliverer.wait(10, number + 1)
        assert sink.wholes == [number]


def test_a_resent_table_replaces_what_another_ledger_wrote(tmp_path: Path) -> None:
    first = MemoryOutbox(is_table=True)
    first.commit("a")
    sink = Sqlite(tmp_path / "all.db", "words")
    run_once(first, table_step(sink))
    second = MemoryOutbox(is_table=True, ledger="another")
    second.commit("b")
    stopped = str(run_once(second, table_step(sink)).stopped)
    assert "HS-SNK-060" in stopped
    assert "hailstorm resend APP board" in stopped
    second.whole = second.resent = second.commit("b", "c")
    assert run_once(second, table_step(sink)).stopped is None
    with sqlite3.connect(tmp_path / "all.db") as connection:
        assert connection.execute("SELECT word FROM words ORDER BY 1").fetchall() == [("b",), ("c",)]
    connection.close()
    assert "HS-SNK-060" in str(run_once(first, table_step(sink)).stopped), "who was there before is refused now"


def test_the_copy_of_a_cursor_is_never_ahead_of_the_sinks_own(tmp_path: Path) -> None:
    """Commits without rows for a sink are not in its target. A copy that counted them would ask for the whole table."""
    outbox, sink = MemoryOutbox(is_table=True), Sqlite(tmp_path / "all.db", "words")
    outbox.commit("a")
    with delivering(outbox, table_step(sink)) as deliverer:
        assert deliverer.wait(10, 1)
        for words in ("b", ""):  # the copy of the second one waits for a while; the third has nothing for the sink
            deliverer.notify(outbox.commit(*words))
            assert deliverer.wait(10, outbox.newest())
    with delivering(outbox, table_step(sink)) as deliverer:
        assert deliverer.wait(10, 3), "it has got all, and lacks nothing"
        assert deliverer.lacking() == ()
