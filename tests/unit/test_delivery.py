"""Delivery against an outbox in memory: order, retries, and what each delivery mode promises and does not."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hailstorm import faults
from hailstorm.columns import KIND, OLD
from hailstorm.engine.delivery import courier as engine
from hailstorm.engine.delivery.deliverer import Deliverer, Undelivered
from hailstorm.engine.delivery.outbox import Beginning, Entry, LedgerOutbox
from hailstorm.engine.delivery.sink_state import SinkState
from hailstorm.engine.retry_wait import retry_wait
from hailstorm.engine.tolerance import Recent, total
from hailstorm.errors import Location, TransientSinkError
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.sinks.call import Call, Row
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Rejected, Sink
from hailstorm.sinks.sqlite import Sqlite
from hailstorm.topology import ends
from hailstorm.topology.schema import Column, Schema

SCHEMA = Schema((Column("word", "string"), Column("n", "bigint")))
MODES = ("exactly-once", "at-least-once", "at-most-once")


@dataclass
class MemoryOutbox:
    """Commits by number, each a list of words for all sinks; survives the 'crash' of a deliverer."""

    commits: dict[int, list[str]] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Recent] = field(default_factory=dict)
    stores: int = 0
    page: int = 100
    newest_commit: int = 0
    rejected: dict[tuple[str, int], list[tuple[str, bytes]]] = field(default_factory=dict)
    retries: set[int] = field(default_factory=set)
    ledger: str = "ledger"
    is_table: bool = False
    since: int = 0
    whole: int = 0
    resent: int = 0
    first: int = 1  # the first commit whose rows are still there
    health: list[tuple[str, str | None, bool]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds until the next try, as of the telling

    def commit(self, *words: str) -> int:
        self.newest_commit += 1
        if words:
            self.commits[self.newest_commit] = list(words)
        return self.newest_commit

    def is_ours(self) -> bool:
        return True

    def beginning(self, sink: str) -> Beginning:
        return Beginning(since=self.since, last=max(self.commits, default=0), whole=self.whole, resent=self.resent)

    def pending(self, sink: str, after: int) -> list[Entry]:
        later = [number for number in sorted(self.commits) if number > after and number >= self.whole]
        return [
            Entry(number, len(self.commits[number]), (str(number),), number == self.whole)
            for number in later[: self.page]
        ]

    def has_all(self, sink: str, after: int, until: int) -> bool:
        return after >= self.first - 1

    def pieces(self, entry: Entry) -> Iterator[pa.Table]:
        """As Spark may write it: other order, other types and hidden columns; at most three rows at a time."""
        words = self.commits[entry.commit]
        for start in range(0, len(words), 3):
            part = words[start : start + 3]
            count = len(part)
            yield pa.table(
                {"_time": [0] * count, "n": pa.array([1] * count, pa.int32()), "word": part, **self.hidden(count)}
            )

    def hidden(self, count: int) -> dict[str, Any]:
        return {KIND: ["insert"] * count, OLD: pa.nulls(count, pa.struct([("n", pa.int64())]))} if self.is_table else {}

    def load_cursor(self, sink: str) -> int:
        return self.cursors.get(sink, 0)

    def recent(self, sink: str) -> Recent:
        return self.counts.get(sink, ())

    def store_cursor(self, sink: str, commit: int, recent: Recent, ahead: bool = False) -> None:
        self.stores += 1
        self.cursors[sink] = commit
        self.counts[sink] = recent

    def store_health(self, sink: str, error: str | None, next_try: datetime | None) -> None:
        self.health.append((sink, error, next_try is not None))
        if next_try is not None:
            self.waits.append((next_try - datetime.now(UTC)).total_seconds())

    def waiting(self, sink: str, after: int) -> tuple[int, int]:
        found = [words for number, words in self.commits.items() if number > after]
        return len(found), sum(map(len, found))

    def newest(self) -> int:
        return self.newest_commit

    def is_retry(self, commit: int) -> bool:
        return commit in self.retries

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        assert rows.num_rows == len(letters)
        self.rejected[sink, commit] = list(letters)

    def forget_rejected(self, sink: str, commit: int) -> None:
        self.rejected.pop((sink, commit), None)


@dataclass
class Recorder:
    """A sink that keeps no cursor, with errors on demand: before anything arrives, or after."""

    got: list[tuple[int, str]] = field(default_factory=list)
    before: list[Exception] = field(default_factory=list)
    after: list[Exception] = field(default_factory=list)
    opening: list[Exception] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    gate: threading.Event | None = None
    keeps_cursor: bool = False
    forgets: bool = False
    wholes: list[int] = field(default_factory=list)

    def open(self, delivery: Delivery) -> None:
        if self.opening:
            raise self.opening.pop(0)
        self.opened += 1

    def cursor(self) -> Cursor | None:
        return None

    def deliver(self, parcel: Parcel) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        if self.before:
            raise self.before.pop(0)
        if parcel.whole:
            self.wholes.append(parcel.commit)
        self.got += [(parcel.commit, word) for rows in parcel.pieces() for word in rows["word"].to_pylist()]
        if self.after:
            raise self.after.pop(0)

    def close(self) -> None:
        self.closed += 1

    def resolve(self, folder: Path) -> Sink:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {}


def sink_step(sink: Sink, mode: str = "exactly-once", name: str = "board") -> ends.Sink:
    return ends.Sink(name, Location("app.py", 3), ("words",), SCHEMA, sink=sink, delivery=mode)  # type: ignore[arg-type]


@contextmanager
def delivering(outbox: MemoryOutbox, *sinks: ends.Sink) -> Iterator[Deliverer]:
    deliverer = Deliverer("trending", sinks, outbox)
    deliverer.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


def run_once(outbox: MemoryOutbox, sink: ends.Sink) -> SinkState:
    """Until all is delivered or the sink has stopped: a process that lives until then."""
    with delivering(outbox, sink) as deliverer:
        deliverer.wait(10, outbox.newest())
        return deliverer.states()[sink.name]


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


def table_step(sink: Sink) -> ends.Sink:
    return replace(sink_step(sink), is_table=True, key=("word",))


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


@dataclass
class Picky(Recorder):
    """A sink whose target takes no word that begins with a `!`."""

    delivery: Delivery | None = None

    def open(self, delivery: Delivery) -> None:
        self.delivery = delivery

    def deliver(self, parcel: Parcel) -> None:
        rows = pa.concat_tables(parcel.pieces())
        words = rows["word"].to_pylist()
        bad = [number for number, word in enumerate(words) if word.startswith("!")]
        if bad:
            assert self.delivery is not None
            self.delivery.reject(parcel.commit, [Rejected(number, "has a !") for number in bad])
        good = [number for number in range(len(words)) if number not in bad]
        super().deliver(Parcel.of(parcel.commit, rows.take(pa.array(good, pa.int64()))))


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


@dataclass
class Joined(Picky):
    """A sink that takes several commits in one transaction, which is atomic: an error leaves nothing."""

    together: list[list[int]] = field(default_factory=list)

    def deliver_together(self, parcels: Sequence[Parcel]) -> None:
        before = list(self.got)
        try:
            for parcel in parcels:
                self.deliver(parcel)
        except BaseException:
            self.got = before
            raise
        self.together.append([parcel.commit for parcel in parcels])


def test_commits_that_wait_go_in_one_transaction_where_the_sink_can_do_that() -> None:
    outbox, sink = MemoryOutbox(), Joined()
    for word in ("a", "!b", "c", "d"):
        outbox.commit(word)
    state = run_once(outbox, sink_step(sink))
    assert sink.together == [[1, 2, 3, 4]]
    assert sink.got == [(1, "a"), (3, "c"), (4, "d")]
    assert (state.cursor, state.rejected, list(outbox.rejected)) == (4, 1, [("board", 2)])
    assert total(outbox.counts["board"]) == (4, 1)


def test_large_commits_and_whole_tables_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MOST_ROWS_TOGETHER", 4)
    outbox, sink = MemoryOutbox(), Joined()
    for words in ("a b", "c d", "e f g h i", "j", "k"):
        outbox.commit(*words.split())
    run_once(outbox, sink_step(sink))
    assert sink.together == [[1, 2], [4, 5]], "3 came alone, by `deliver`"
    assert [word for _, word in sink.got] == list("abcdefghijk")
    table, whole = MemoryOutbox(is_table=True), Joined()
    table.commit("a")
    table.whole = table.commit("b")
    table.commit("c")
    run_once(table, table_step(whole))
    assert (whole.got, whole.together) == ([(2, "b"), (3, "c")], [])


def test_at_most_once_joins_nothing() -> None:
    outbox, sink = MemoryOutbox(), Joined()
    outbox.commit("a")
    outbox.commit("b")
    run_once(outbox, sink_step(sink, "at-most-once"))
    assert (sink.together, len(sink.got)) == ([], 2)


def test_of_commits_that_fail_together_those_before_the_bad_one_are_delivered() -> None:
    """And exactly as if each had come alone."""
    alone, joined = MemoryOutbox(), MemoryOutbox()
    states = []
    for outbox, sink in ((alone, Picky()), (joined, Joined())):
        for number in range(120):
            outbox.commit("!b" if number % 5 else "a")
        states.append(run_once(outbox, sink_step(sink)))
    assert states[0] == states[1]
    assert states[1].stopped is not None
    assert (alone.rejected, alone.counts) == (joined.rejected, joined.counts)


def test_an_error_that_may_pass_repeats_the_whole_transaction() -> None:
    outbox, sink = MemoryOutbox(), Joined(before=[TransientSinkError(6, "busy")])
    for word in ("a", "!b", "c"):
        outbox.commit(word)
    state = run_once(outbox, sink_step(sink))
    assert sink.got == [(1, "a"), (3, "c")]
    assert (state.rejected, len(outbox.rejected)) == (1, 1)


def test_a_copy_of_a_sinks_own_cursor_is_not_written_for_every_transaction() -> None:
    outbox, sink = MemoryOutbox(), Recorder(keeps_cursor=True)
    with delivering(outbox, sink_step(sink)) as deliverer:
        for _ in range(50):
            deliverer.notify(outbox.commit("a"))
            assert deliverer.wait(10, outbox.newest())
        stores = outbox.stores
    assert stores < 50
    assert outbox.cursors["board"] == 50, "the last one is, at the latest when delivery ends"


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
