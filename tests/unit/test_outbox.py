"""The outbox as delivery sees it: bounded pieces, rows of older columns, and what a whole table makes needless."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from hailstorm.engine.delivery import outbox as engine
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.outbox import Beginning, Entry, LedgerOutbox, fitting, read_pieces
from hailstorm.engine.resident.worker import in_stream
from hailstorm.errors import LedgerError, Location, SinkError
from hailstorm.ledger.commit import RESENT, DataFile, SinkShape
from hailstorm.ledger.lease import NAME as LEASE
from hailstorm.ledger.lease import Holder, Lease
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.sinks.call import Call
from hailstorm.sinks.sink import Parcel
from hailstorm.topology import ends
from hailstorm.topology.retention import DEFAULT
from hailstorm.topology.schema import Column, Schema


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger", create=True)


def written(ledger: Ledger, name: str, rows: pa.Table) -> DataFile:
    path = f"outbox/board/{name}.parquet"
    size = ledger.store.write(path, lambda sink: pq.write_table(rows, sink))
    return DataFile(path=path, rows=rows.num_rows, bytes=size)


def commit(ledger: Ledger, *words: str, **fields: Any) -> int:
    number = ledger.head.commit + 1
    files = (written(ledger, str(number), pa.table({"word": list(words)})),) if words else ()
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), outbox={"board": files}, **fields))
    return number


def test_large_rows_come_a_few_at_a_time_and_small_files_together(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_PIECE_BYTES", 1 << 20)
    large = pa.table({"raw": [bytes([n % 251]) * 300_000 for n in range(20)]})
    small = [pa.table({"raw": [bytes([n])]}) for n in range(3)]
    files = [written(ledger, f"f{n}", rows).path for n, rows in enumerate((*small, large, *small))]
    pieces = list(read_pieces(ledger.store, files))
    assert pa.concat_tables(pieces).equals(pa.concat_tables([*small, large, *small]))
    assert max(piece.nbytes for piece in pieces) < 1_500_000
    assert pieces[0].num_rows >= 3, "small files share a piece"
    assert [piece.num_rows for piece in pieces] == [p.num_rows for p in read_pieces(ledger.store, files)]


def test_a_ledger_is_ours_until_another_driver_commits_or_takes_the_lease(ledger: Ledger, tmp_path: Path) -> None:
    outbox = LedgerOutbox(ledger)
    commit(ledger, "a")
    assert outbox.is_ours()
    with Lease(ledger.store).held():
        assert outbox.is_ours()
        held = msgspec.json.decode(ledger.store.get(LEASE) or b"", type=Holder)
        for other, is_ours in ((replace(held, pid=1, host="elsewhere"), False), (replace(held, pid=0), True)):
            ledger.store.put(LEASE, msgspec.json.encode(other))  # the second one's process has ended
            assert outbox.is_ours() == is_ours
    second = Ledger(tmp_path / "ledger")
    second.commit(next_commit(second.head, "tick", second.epoch, datetime.now(UTC)))
    assert not outbox.is_ours()


def test_a_file_that_is_missing_is_an_error_and_never_no_rows(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="is missing"):
        list(read_pieces(ledger.store, ["outbox/board/no.parquet"]))


def test_rows_from_before_a_column_have_null_there_and_other_types_are_refused() -> None:
    rows = pa.table({"word": ["a"], "_kind": ["insert"]})
    wide = pa.schema([("word", pa.string()), ("n", pa.int64())])
    assert fitting(rows, wide).to_pylist() == [{"word": "a", "n": None, "_kind": "insert"}]
    with pytest.raises(SinkError, match="HS-SNK-010"):
        fitting(rows, pa.schema([("word", pa.int64())]))


def test_a_whole_table_makes_what_came_before_it_needless(ledger: Ledger) -> None:
    outbox = LedgerOutbox(ledger)
    commit(ledger, "a", sinks={"board": SinkShape(since=0, is_table=True, fingerprint="f")})
    commit(ledger, "b")
    commit(ledger, whole={"board": RESENT})  # an empty table
    commit(ledger, "c")
    assert outbox.pending("board", 0) == [
        Entry(3, 0, (), whole=True),
        Entry(4, 1, ("outbox/board/4.parquet",)),
    ]
    assert [entry.commit for entry in outbox.pending("board", 3)] == [4]
    assert outbox.waiting("board", 1) == (2, 1)
    assert outbox.beginning("board") == Beginning(since=0, last=4, whole=3, resent=3)


def test_commits_that_are_forgotten_while_a_slow_sink_looks_are_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_REMEMBERED", 4)
    outbox = LedgerOutbox(ledger)

    def make(count: int) -> None:
        for _ in range(count):
            outbox.remember(ledger.read_commit(commit(ledger, "a")) or pytest.fail("no commit"))

    make(4)
    entries = outbox._entries("board", 0)
    assert next(entries).commit == 1
    make(6)
    assert [entry.commit for entry in entries] == [2, 3, 4], "up to the newest when it began to look"
    assert [entry.commit for entry in outbox.pending("board", 4)] == [5, 6, 7, 8, 9, 10]


def test_rows_that_are_delivered_at_most_once_stay_until_they_have_been_read(ledger: Ledger) -> None:
    """Their cursor is stored first. Vacuum, which runs beside delivery, must not take them for delivered."""
    got: list[str] = []

    class Slow(Call):
        def deliver(self, parcel: Parcel) -> None:
            Vacuum(ledger, DEFAULT).work()
            super().deliver(parcel)

    for word in "abc":
        files = (written(ledger, ledger.stamp.new_name(), pa.table({"word": [word]})),)
        ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), outbox={"board": files}))
    sink = ends.Sink(
        "board",
        Location("app.py", 3),
        ("words",),
        Schema((Column("word", "string"),)),
        sink=Slow(lambda rows: got.extend(row["word"] for row in rows)),
        delivery="at-most-once",
    )
    deliverer = Deliverer("words", [sink], LedgerOutbox(ledger))
    deliverer.start()
    assert deliverer.drain(30), deliverer.states()
    deliverer.stop()
    assert got == ["a", "b", "c"]
    assert len(ledger.store.list("outbox/board")) == 1, "the last one waits for the next"


def test_what_is_not_kept_any_more_is_known(ledger: Ledger) -> None:
    outbox = LedgerOutbox(ledger)
    for word in "abc":
        commit(ledger, word)
    assert outbox.has_all("board", 0, 3)
    ledger.store.delete("outbox/board/2.parquet")
    assert not outbox.has_all("board", 0, 3)
    assert outbox.has_all("board", 2, 3)


def test_rows_that_are_held_are_the_rows_of_their_files_in_the_same_pieces(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [pa.table({"word": [f"{file}-{row}" for row in range(file)], "n": range(file)}) for file in (3, 1, 40, 7)]
    files = [written(ledger, f"held-{number}", table) for number, table in enumerate(tables)]
    entry = Entry(1, 51, tuple(file.path for file in files))
    outbox = LedgerOutbox(ledger)
    for most in (1_000_000, 10):
        monkeypatch.setattr(engine, "_PIECE_ROWS", most)
        held = LedgerOutbox(ledger)
        held.hold({file.path: in_stream(table) for file, table in zip(files, tables, strict=True)})
        read, kept = list(outbox.pieces(entry)), list(held.pieces(entry))
        assert pa.concat_tables(read).equals(pa.concat_tables(kept))
        if most > 51:
            assert [piece.num_rows for piece in read] == [piece.num_rows for piece in kept] == [51]


def test_what_is_held_is_bounded_and_what_had_to_go_is_read(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_HELD_BYTES", 2_000)
    outbox = LedgerOutbox(ledger)
    files = []
    for number in range(10):
        table = pa.table({"n": list(range(number * 100, number * 100 + 100))})
        files.append(written(ledger, str(number), table))
        outbox.hold({files[-1].path: in_stream(table)})
    assert 1 <= len(outbox._held) < 10
    outbox.hold(dict(outbox._held))  # the same once more: an attempt that was repeated
    assert outbox._held_bytes == sum(map(len, outbox._held.values())) <= 2_000
    for number, file in enumerate(files):
        (piece,) = outbox.pieces(Entry(1, 100, (file.path,)))
        assert piece["n"].to_pylist()[0] == number * 100
