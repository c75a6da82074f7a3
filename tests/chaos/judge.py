"""The judge: compares everything that a killed run left behind with the oracle.

It needs no run that ends well: whatever the newest commit is, its state must be that of exactly the records before
its clock; whatever a sink's cursor is, it must hold exactly the rows of the commits up to there; and a published
table must be the state of the commit that it names.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from hailstorm.cli.status import status_of
from hailstorm.ledger.reader import LedgerReader, open_ledger
from tests.chaos import oracle
from tests.chaos.world import World

Row = Mapping[str, Any]
SINKS = {"words_sqlite", "counts_sqlite", "words_parquet", "counts_parquet", "total_sqlite", "sizes_duckdb", "top_call"}


def judge(world: World) -> int:
    """Fails when anything was lost or doubled. The newest commit."""
    if not world.store.exists("hailstorm.json"):
        return 0  # killed before there was a ledger
    reader = open_ledger(world.address)
    newest = reader.live().commit
    _judge_commits(world, reader)
    if newest > 0:
        _judge_state(world, reader, newest)
    if newest > 1:
        _judge_state(world, reader, world.chance.randrange(1, newest))
    _judge_sinks(world, reader)
    _judge_published(world, reader)
    assert status_of(reader, world.address, None)["commit"] == newest
    return newest


def judge_the_end(world: World) -> None:
    """After a run that has caught up: everything that was fed is in the state, and every sink has got it all."""
    newest = judge(world)
    reader = open_ledger(world.address)
    assert len(_before(world, reader, newest)) == len(world.records)
    behind = {name: sink["behind"] for name, sink in status_of(reader, world.address, None)["sinks"].items()}
    assert behind == dict.fromkeys(SINKS, 0)
    for step in reader.live().steps:
        table = DeltaTable(f"{world.address}/delta/{step}", storage_options=_options(world))
        assert reader.live(published_commit(table)).clock == reader.live().clock, "what a run leaves is published"
    assert cursors(world, reader) == {name: reader.live().outboxes[name] for name in SINKS}


def cursors(world: World, reader: LedgerReader) -> dict[str, int]:
    """How far each sink is, by its own account; a sink that was never opened is at 0."""
    found = dict.fromkeys(SINKS, 0)
    out = world.folder / "out"
    if (out / "tables.db").exists():
        found |= dict(_sqlite(out / "tables.db", "SELECT sink, commit_number FROM hailstorm_cursors", or_else=[]))
    if (out / "sizes.duckdb").exists():
        found |= dict(
            _duckdb(out / "sizes.duckdb", "SELECT sink, max(commit_number) FROM hailstorm_cursors GROUP BY 1")
        )
    for sink in ("words", "counts"):
        found[f"{sink}_parquet"] = max((int(path.stem) for path in (out / sink).glob("[0-9]*.parquet")), default=0)
    found["top_call"] = reader.cursor("top_call").commit
    return found


def _judge_commits(world: World, reader: LedgerReader) -> None:
    """Commits follow each other without a gap, and no record is read by two of them."""
    clock: dict[str, dict[str, int]] = {}
    epoch = number = rows = 0
    watermark = ""
    for number, commit in enumerate(reader.commits(), 1):
        assert commit.commit == number
        if commit.reason == "tick" and clock:
            assert commit.start == clock, f"commit {number} goes on from another clock"
        assert commit.epoch >= epoch
        assert (commit.watermark or "") >= watermark
        clock, epoch, watermark, rows = commit.end or clock, commit.epoch, commit.watermark or "", rows + commit.rows
        for files in commit.outbox.values():
            for file in files:
                assert pq.read_metadata(world.store.open(file.path)).num_rows == file.rows
    live = reader.live()
    assert (live.commit, live.rows) == (number, rows)
    assert rows == len(_before(world, reader, number))


def _judge_state(world: World, reader: LedgerReader, at: int) -> None:
    live = reader.live(at)
    records = _before(world, reader, at)
    for step, expected in oracle.tables(records.values()).items():
        same_rows(f"state of '{step}' at commit {at}", reader.state(step, at=at).arrow().to_pylist(), expected)
    bad = sorted(place for place, record in records.items() if oracle.is_bad(record))
    assert live.errors == len(bad), at
    if at == reader.live().commit:
        letters = reader.errors().to_pylist()
        assert sorted((letter["partition"], letter["offset"]) for letter in letters) == bad
        for letter in letters:
            # What does not decode is kept as it came; what a bolt refused, as the row that it got.
            raw = records[letter["partition"], letter["offset"]]
            assert letter["raw"] == raw if letter["step"] == "events" else b"poison" in letter["raw"]


def _judge_sinks(world: World, reader: LedgerReader) -> None:
    out = world.folder / "out"
    for sink, cursor in cursors(world, reader).items():
        records = _before(world, reader, cursor).values()
        tables, words = oracle.tables(records), oracle.words(records)
        what = f"sink '{sink}' at commit {cursor}"
        match sink:
            case "top_call":
                _judge_calls(out / "calls.jsonl", reader, cursor)
            case _ if not cursor:
                assert _nothing_arrived(out, sink), what
            case "words_sqlite":
                same_rows(what, _with_times(_sqlite_rows(out, "words"), "at"), words)
            case "counts_sqlite":
                same_rows(what, _with_times(_sqlite_rows(out, "counts"), "last"), tables["counts"])
            case "total_sqlite":
                same_rows(what, _sqlite_rows(out, "total"), tables["total"])
            case "sizes_duckdb":
                rows = _duckdb(out / "sizes.duckdb", "SELECT n, words, largest FROM sizes")
                same_rows(
                    what, [dict(zip(("n", "words", "largest"), row, strict=True)) for row in rows], tables["sizes"]
                )
            case "words_parquet":
                same_rows(what, _parquet_rows(out / "words"), words)
            case "counts_parquet":
                same_rows(what, _after_changes(_parquet_rows(out / "counts")), tables["counts"])
                assert _outbox_rows(world, reader, sink, cursor) == sum(1 for _ in _parquet_rows(out / "counts"))


def _judge_published(world: World, reader: LedgerReader) -> None:
    for step in world.store.list("delta"):
        folder = f"{world.address}/delta/{step}"
        if DeltaTable.is_deltatable(folder, storage_options=_options(world)):
            table = DeltaTable(folder, storage_options=_options(world))
            commit = published_commit(table)
            rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()).to_pylist()
            expected = oracle.tables(_before(world, reader, commit).values())[step]
            same_rows(f"published '{step}' at commit {commit}", rows, expected)


def _options(world: World) -> dict[str, str] | None:
    """For a ledger that is not a folder. Where the store is, this process's own environment says: not through a proxy
    that lives here, too, because this package keeps all other threads waiting."""
    return {"AWS_ALLOW_HTTP": "true", "AZURE_ALLOW_HTTP": "true"} if world.environment else None


def published_commit(table: DeltaTable) -> int:
    commit = table.transaction_version("hailstorm")
    assert commit is not None
    return commit


def _nothing_arrived(out: Path, sink: str) -> bool:
    """A sink without a cursor has no rows: rows and cursor come together. Other sinks of the step may be further."""
    table, _, kind = sink.partition("_")
    if kind == "parquet":
        return not list((out / table).glob("[0-9]*.parquet"))
    file = out / ("tables.db" if kind == "sqlite" else f"{table}.duckdb")
    if not file.exists():
        return True
    query = f"SELECT * FROM {table}"
    return not (_sqlite(file, query, or_else=[]) if kind == "sqlite" else _duckdb(file, query))


def _judge_calls(calls: Path, reader: LedgerReader, cursor: int) -> None:
    """A call may come twice, with the same key and the same row; without the repeats it is exactly the outbox."""
    heard: dict[str, Row] = {}
    for line in calls.read_text().splitlines() if calls.exists() else ():
        row = json.loads(line)
        assert heard.setdefault(row["key"], row) == row
    sent = {commit.commit: sum(file.rows for file in commit.outbox.get("top_call", ())) for commit in reader.commits()}
    got = Counter(int(key.split("/")[2]) for key in heard)
    assert {n: rows for n, rows in sent.items() if rows and n <= cursor} == {n: got[n] for n in got if n <= cursor}
    # The one commit after the cursor may have arrived, and not been noted before the kill.
    assert {n for n in got if n > cursor} <= set([n for n, rows in sent.items() if rows and n > cursor][:1])


def _before(world: World, reader: LedgerReader, commit: int) -> dict[tuple[int, int], bytes]:
    """The records before a commit's clock."""
    clock = reader.live(commit).clock.get("events", {})
    ends = {int(partition): end for partition, end in clock.items()}
    return {place: record for place, record in list(world.records.items()) if place[1] < ends.get(place[0], 0)}


def same_rows(what: str, found: Iterable[Row], expected: Iterable[Row]) -> None:
    left, right = (Counter(tuple(sorted(row.items())) for row in rows) for rows in (found, expected))
    assert left == right, (
        f"{what}: too much {list((left - right).items())[:5]}, missing {list((right - left).items())[:5]}"
    )


def _after_changes(changes: Iterable[Row]) -> list[Row]:
    """What a consumer of a changelog has in the end. Inserting what is there, or deleting what is not, is wrong."""
    rows: dict[str, Row] = {}
    for change in changes:
        row = dict(change)
        kind, word = row.pop("_kind"), row["word"]
        assert (kind == "insert") == (word not in rows), change
        if kind == "delete":
            del rows[word]
        else:
            rows[word] = row
    return list(rows.values())


def _outbox_rows(world: World, reader: LedgerReader, sink: str, cursor: int) -> int:
    return sum(file.rows for c in reader.commits() if c.commit <= cursor for file in c.outbox.get(sink, ()))


def _parquet_rows(folder: Path) -> list[Row]:
    files = sorted(folder.glob("[0-9]*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def _sqlite_rows(out: Path, table: str) -> list[dict[str, Any]]:
    with sqlite3.connect(out / "tables.db") as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
    connection.close()
    return rows


def _sqlite(path: Path, query: str, or_else: list[Any]) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return or_else
    finally:
        connection.close()


def _duckdb(path: Path, query: str) -> list[Any]:
    with duckdb.connect(str(path)) as connection:
        try:
            return connection.execute(query).fetchall()
        except duckdb.CatalogException:  # killed before its first transaction
            return []


def _with_times(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """SQLite has no times: they are text there."""
    return [{**row, column: datetime.fromisoformat(row[column]).astimezone(UTC)} for row in rows]
