"""Several commits in one transaction of a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from hailstorm.engine.delivery import courier as engine
from hailstorm.engine.tolerance import total
from hailstorm.errors import TransientSinkError
from hailstorm.sinks.sink import Parcel
from tests.unit.delivering import (
    MemoryOutbox,
    Picky,
    Recorder,
    delivering,
    run_once,
    sink_step,
    table_step,
)


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
