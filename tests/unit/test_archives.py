"""Archives: files with records that a log no longer has. All offsets are looked at before anything is run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hailstorm as hs
from hailstorm.errors import HailstormError
from hailstorm.history.archives import files_by_spout, open_archive, with_archives
from hailstorm.ledger.commit import Commit
from hailstorm.ledger.live import Live
from hailstorm.spouts.archive import Archived
from hailstorm.topology.ends import Spout
from hailstorm.topology.topology import Topology

AT = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def shop(folder: Path, schema: str = "item STRING, amount INT", **options: Any) -> Topology:
    """A log of ten records in partition 0 and five in partition 1, of which the first four and two are gone."""
    log = hs.Log(str(folder / "orders"))
    if not (folder / "orders").exists():
        for partition, count in ((0, 10), (1, 5)):
            log.append([{"item": "tea", "amount": n} for n in range(count)], partition=partition, partitions=2)
        log.retain(records=6)
        for partition, keep in ((0, 4), (1, 2)):
            log._folder(partition).keep_from(keep)
    storm = hs.Topology("shop")
    orders = storm.spout("orders", log, schema=schema, event_time=options.pop("event_time", None), **options)
    others = storm.spout("others", hs.Log(str(folder / "orders")), schema="item STRING")
    orders.fold("sold", by="item", n=hs.count())
    orders.select("names", item="item").union("all", others).fold("both", by="item", n=hs.count())
    return storm


def head() -> Live:
    clock = {name: {"0": 10, "1": 5} for name in ("orders", "others")}
    return Live().after(Commit(commit=1, epoch=1, reason="tick", at="", now=0, start=clock, end=clock))


def row(partition: int, offset: int, **more: Any) -> Row:
    return {"_partition": partition, "_offset": offset, "_time": AT, "item": "tea", "amount": offset, **more}


def whole() -> list[Row]:
    return [row(0, n) for n in range(4)] + [row(1, n) for n in range(2)]


def parquet(path: Path, rows: list[Row], schema: pa.Schema | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)
    return path


def lines(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{one if isinstance(one, str) else json.dumps(one, default=str)}\n" for one in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def opened(storm: Topology, path: Path | str, on_data_loss: Any = "fail") -> Archived:
    found = with_archives(storm, head(), "sold", {"": str(path)}, on_data_loss).step("orders")
    assert isinstance(found, Spout)
    assert isinstance(found.source, Archived)
    return found.source


def rows_of(archived: Archived, partition: int, start: int, end: int) -> list[Row]:
    batches = archived.rows(partition, start, end)
    return [{"_offset": one["offset"], **one["row"]} for batch in batches for one in batch.to_pylist()]


def refused(storm: Topology, path: Path | str) -> HailstormError:
    with pytest.raises(HailstormError) as caught:
        archived = opened(storm, path)
        for partition in archived.archive.spans:
            list(archived.rows(partition, 0, 100))
    return caught.value


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: parquet(folder / "a.parquet", whole()),
        lambda folder: parquet(folder / "a.parquet", whole(), row_group_size=1),
        lambda folder: parquet(folder / "a.parquet", whole()[::-1], row_group_size=2),
        lambda folder: lines(folder / "a.jsonl", whole()),
        lambda folder: lines(folder / "deep" / "a.jsonl.gz", whole()),
        lambda folder: [parquet(folder / f"p{n}.parquet", whole()[n::2]) for n in range(2)],
    ],
    ids=["parquet", "row groups", "not in order", "lines", "gz", "among each other"],
)
def test_rows_of_an_archive_come_in_order_whatever_files_they_are_in(
    tmp_path: Path, write: Callable[[Path], Any]
) -> None:
    write(tmp_path / "old")
    archived = opened(shop(tmp_path), tmp_path / "old")
    assert rows_of(archived, 0, 1, 9) == [{"_offset": n, "item": "tea", "amount": n} for n in (1, 2, 3)]
    assert rows_of(archived, 1, 0, 5) == [{"_offset": n, "item": "tea", "amount": n} for n in (0, 1)]
    assert archived.earliest() == {0: 0, 1: 0}
    read = [n for batch in archived.read(0, 1, 9) for n in batch.column("offset").to_pylist()]
    assert read == [4, 5, 6, 7, 8], "and from there on it is the log"
    assert archived.latest() == {0: 10, 1: 5}


def test_the_size_of_a_range_does_not_depend_on_how_it_is_cut_into_row_groups(tmp_path: Path) -> None:
    """A tick reads so many bytes: what is too large would be read in many small ticks."""
    rows = [row(0, n, item="tea" * 1000) for n in range(4)]
    sizes = []
    for groups in (1, 4):
        options = {"row_group_size": 4 // groups, "use_dictionary": False, "write_statistics": False}
        archived = opened(shop(tmp_path), parquet(tmp_path / f"{groups}.parquet", rows, **options))
        sizes.append(archived.size(0, 0, 4) or 0)
        assert archived.size(0, 0, 2) == pytest.approx(sizes[-1] / 2, rel=0.01)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2)


def test_an_archive_may_begin_anywhere_and_have_some_partitions_only(tmp_path: Path) -> None:
    parquet(tmp_path / "old.parquet", [row(0, 2), row(0, 3)])
    archived = opened(shop(tmp_path), tmp_path / "*.parquet")
    assert archived.earliest() == {0: 2, 1: 2}


def test_times_that_spark_writes_are_moments(tmp_path: Path) -> None:
    storm = shop(tmp_path, "item STRING, amount INT, at TIMESTAMP", event_time="at")
    rows = [row(0, n, at=AT.replace(tzinfo=None)) for n in range(4)]
    parquet(tmp_path / "old.parquet", rows, use_deprecated_int96_timestamps=True)
    assert rows_of(opened(storm, tmp_path / "old.parquet"), 0, 0, 1)[0]["at"] == AT


def test_types_are_exact_or_refused(tmp_path: Path) -> None:
    storm = shop(tmp_path, "item STRING, amount DECIMAL(5,2)")
    rows = [row(0, n, amount=n) for n in range(4)]
    parquet(tmp_path / "fits.parquet", rows)
    assert rows_of(opened(storm, tmp_path / "fits.parquet"), 0, 3, 4)[0]["amount"] == Decimal("3.00")
    parquet(tmp_path / "large.parquet", [{**one, "amount": 12345} for one in rows])
    assert refused(storm, tmp_path / "large.parquet").code == "HS-LOG-072"
    parquet(tmp_path / "float.parquet", [{**one, "amount": 0.1} for one in rows])
    error = refused(storm, tmp_path / "float.parquet")
    assert error.code == "HS-LOG-072"
    assert "'amount' is DECIMAL(5,2), and the column that came is double" in error.what


def test_what_must_not_be_null_is_refused(tmp_path: Path) -> None:
    storm = shop(tmp_path, "item STRING NOT NULL, amount INT")
    parquet(tmp_path / "old.parquet", [row(0, n, item=None if n == 2 else "tea") for n in range(4)])
    assert "'item' is NOT NULL, and is null at offset 2" in refused(storm, tmp_path / "old.parquet").what


WRONG: dict[str, tuple[Callable[[], list[Any]], str, str]] = {
    "a column is missing": (
        lambda: [{("amuont" if k == "amount" else k): v for k, v in one.items()} for one in whole()],
        "HS-LOG-071",
        "Did you mean 'amuont'?",
    ),
    "no offsets": (
        lambda: [{k: v for k, v in one.items() if k != "_offset"} for one in whole()],
        "HS-LOG-071",
        "'_offset'",
    ),
    "no times": (
        lambda: [{k: v for k, v in one.items() if k != "_time"} for one in whole()],
        "HS-LOG-071",
        "its event time",
    ),
    "twice": (lambda: [*whole(), row(0, 2)], "HS-LOG-073", "orders/0@2 is in the files twice"),
    "a gap": (lambda: [one for one in whole() if one["amount"] != 1], "HS-LOG-074", "orders/0@1 up to offset 1"),
    "a gap before the log": (lambda: whole()[:3], "HS-LOG-074", "orders/0@3 up to offset 3"),
    "the log has it": (lambda: [*whole(), row(0, 4)], "HS-LOG-075", "both have orders/0@4"),
    "another partition": (lambda: [*whole(), row(7, 0)], "HS-LOG-013", "partition 7"),
    "below zero": (lambda: [*whole(), row(0, -1)], "HS-LOG-072", "below 0"),
    "a text": (lambda: [row(0, n, _offset=str(n)) for n in range(4)], "HS-LOG-072", "_offset"),
    "a null": (lambda: [row(0, n, _offset=n or None) for n in range(4)], "HS-LOG-072", "_offset"),
}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", list(WRONG))
def test_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    made, code, what = WRONG[name]
    path = tmp_path / f"old.{kind}"
    (parquet if kind == "parquet" else lines)(path, made())
    error = refused(shop(tmp_path), path)
    assert error.code == code, error
    assert what in str(error)


def test_gaps_that_are_accepted_are_known(tmp_path: Path) -> None:
    path = parquet(tmp_path / "old.parquet", [row(0, 0), row(0, 2), row(1, 1)])
    archived = opened(shop(tmp_path), path, "continue")
    assert archived.missing() == {0: ((1, 2), (3, 4)), 1: ()}
    assert [one["_offset"] for one in rows_of(archived, 0, 0, 10)] == [0, 2]


def test_a_function_may_have_made_several_rows_of_a_record(tmp_path: Path) -> None:
    path = parquet(tmp_path / "old.parquet", [*whole(), row(0, 2, item="milk")])
    archived = opened(shop(tmp_path, decode=lambda value: []), path)
    assert [one["item"] for one in rows_of(archived, 0, 2, 3)] == ["tea", "milk"]


def test_a_file_that_changes_or_goes_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = parquet(tmp_path / "old.parquet", whole())
    archived = opened(shop(tmp_path), path)
    parquet(path, [row(0, n, item="coffee") for n in range(4)])
    with pytest.raises(HailstormError, match="HS-LOG-024"):
        list(archived.rows(0, 0, 4))
    path.unlink()
    with pytest.raises(HailstormError, match="HS-LOG-023"):
        list(archived.rows(0, 0, 4))


@pytest.mark.parametrize("path", ["nowhere", "http://host/old", "broken.parquet"])
def test_a_place_without_such_files_is_an_error(tmp_path: Path, path: str) -> None:
    storm = shop(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    spout = storm.step("orders")
    assert isinstance(spout, Spout)
    with pytest.raises(HailstormError, match="HS-LOG-070"):
        open_archive(spout, path if "://" in path else str(tmp_path / path))


def test_which_spout_the_files_are_of(tmp_path: Path) -> None:
    storm = shop(tmp_path)
    assert files_by_spout(("a/b=c", "others=d"), storm) == {"": "a/b=c", "others": "d"}
    for words, step, what in (
        (("old", "other"), "sold", "twice"),
        (("oders=old",), "sold", "Did you mean 'orders'"),
        (("old",), "both", "several spouts"),
        (("others=old",), "sold", "no spout 'others'"),
    ):
        with pytest.raises(HailstormError, match="HS-CLI-116") as caught:
            with_archives(storm, head(), step, files_by_spout(words, storm))
        assert what in str(caught.value)
