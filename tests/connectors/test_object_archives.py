"""Archives in an object store: files of old records are found, read and watched there as in a folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from hailstorm.errors import HailstormError
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import Store
from tests.connectors.servers.s3 import BUCKET, S3Server, known_here
from tests.unit.test_archives import lines, opened, parquet, row, rows_of, shop, whole

pytest.importorskip("obstore")

_places = itertools.count(1)


@pytest.fixture
def address(s3_server: S3Server, tmp_path: Path) -> Iterator[str]:
    with known_here(s3_server.environment(), tmp_path / "cache"):
        yield f"s3://{BUCKET}/archive {next(_places)}"


@pytest.fixture
def store(address: str, tmp_path: Path) -> Store:
    """Half of the records in Parquet, half in lines, and what a batch job leaves beside them."""
    made = open_store(address)
    rows = whole()
    files = {
        "old/part-0.parquet": parquet(tmp_path / "a.parquet", rows[::2]),
        "old/part-1.jsonl.gz": lines(tmp_path / "b.jsonl.gz", rows[1::2]),
        "old/_SUCCESS": lines(tmp_path / "c.txt", []),
        "old/_temporary/part-0.parquet": parquet(tmp_path / "a.parquet", rows[::2]),
        "all.jsonl": lines(tmp_path / "d.jsonl", rows),
    }
    for name, path in files.items():
        made.put(name, path.read_bytes())
    return made


@pytest.mark.parametrize("form", ["old", "old/", "all.jsonl", "o*/part-*", "*.jsonl"])
def test_files_are_found_by_address_folder_or_pattern(store: Store, address: str, tmp_path: Path, form: str) -> None:
    archived = opened(shop(tmp_path), f"{address}/{form}")
    assert archived.earliest() == {0: 0, 1: 0}
    for partition, end in ((0, 4), (1, 2)):
        found = rows_of(archived, partition, 0, end)
        assert [(one["item"], one["amount"]) for one in found] == [("tea", offset) for offset in range(end)]


def test_files_that_change_or_go_meanwhile_are_errors(store: Store, address: str, tmp_path: Path) -> None:
    archived = opened(shop(tmp_path), f"{address}/old")
    store.put("old/part-0.parquet", parquet(tmp_path / "a.parquet", [row(0, 0, item="coffee")]).read_bytes())
    with pytest.raises(HailstormError, match="HS-LOG-024"):
        list(archived.rows(0, 0, 4))
    store.delete("old/part-0.parquet")
    with pytest.raises(HailstormError, match="HS-LOG-023"):
        list(archived.rows(0, 0, 4))


@pytest.mark.parametrize("form", ["nothing", "old/*.csv", "old/_SUCCESS"])
def test_places_without_files_of_records_are_errors(store: Store, address: str, tmp_path: Path, form: str) -> None:
    with pytest.raises(HailstormError, match="HS-LOG-070"):
        opened(shop(tmp_path), f"{address}/{form}")


def test_a_bucket_that_is_not_there_is_an_error(store: Store, tmp_path: Path) -> None:
    with pytest.raises(HailstormError, match="HS-LOG-070  the files at s3://no-such-bucket"):
        opened(shop(tmp_path), "s3://no-such-bucket/old")
