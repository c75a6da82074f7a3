"""Earlier commits as Delta tables in an object store, where a second name is a copy: they share these, and all of it
goes with the commits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from hailstorm.history.opened import OpenLedger, open_ledger
from hailstorm.ledger import vacuum
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import read_retention
from tests.connectors.servers.s3 import BUCKET, S3Server, known_here
from tests.unit.word_ledger import WordLedger

pytest.importorskip("obstore")

_places = itertools.count(1)


@pytest.fixture
def words(s3_server: S3Server, tmp_path: Path) -> Iterator[WordLedger]:
    with known_here(s3_server.environment(), tmp_path / "near"):
        made = WordLedger(f"s3://{BUCKET}/moments-{next(_places)}/ledger")
        for number in range(6):
            made.tick({"rain": number, f"word{number}": 1})
        made.compact()
        made.tick({"snow": 1})
        yield made


def shown(reader: OpenLedger, commit: int) -> list[dict[str, object]]:
    found = reader.delta("counts", commit)
    table = DeltaTable(found.address, version=found.version, storage_options={"AWS_ALLOW_HTTP": "true"})
    rows = QueryBuilder().register("t", table).execute("SELECT * FROM t ORDER BY word").read_all()
    return list(pa.table(rows).to_pylist())


def unlike(reader: OpenLedger) -> list[int]:
    numbers = [commit.commit for commit in reader.commits()]
    states = {number: reader.state("counts", number) for number in numbers}
    return [
        number
        for number, state in states.items()
        if state.live.runs.get("counts") and shown(reader, number) != state.arrow().sort_by("word").to_pylist()
    ]


def test_every_kept_commit_is_a_version_in_a_store_and_goes_with_its_files(
    words: WordLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, store = open_ledger(words.ledger.address), words.ledger.store
    assert unlike(reader) == []
    copies = [name for name in store.list("moments/counts") if name.endswith(".parquet")]
    assert sorted(copies) == store.list("state/counts"), "one copy of a run, however many commits have it"
    monkeypatch.setattr(vacuum, "KEEP_LOOSE", 1)
    work = Vacuum(words.ledger, read_retention("1 second, rest: none"), now=lambda: time.time() + 100)
    while work.work(whole=True):
        pass
    kept = [commit.commit for commit in reader.commits()]
    assert len(kept) < 4
    assert {int(name[:20]) for name in store.list("moments/counts/_delta_log")} <= set(kept)
    runs = {f"{run.id}.parquet" for number in kept for run in words.ledger.at(number).runs["counts"]}
    assert {name for name in store.list("moments/counts") if name.endswith(".parquet")} == runs
    assert unlike(reader) == []
