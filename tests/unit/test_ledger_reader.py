"""The read side: state now and then, dead letters, and what is asked for in vain."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hailstorm.errors import LedgerError
from hailstorm.ledger.commit import DataFile, Run, Stamp, StateChange, StepShape, commit_name
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import LETTER, open_ledger
from hailstorm.ledger.runs import write_run
from hailstorm.ledger.stores.local import LocalStore

COUNTS = StepShape(kind="fold", key=("word",), values=("n",), fingerprint="f")
TOP = StepShape(kind="top", key=("word",), values=("n", "rank"), waits="rank", order=("rank",))


def tick(ledger: Ledger, **fields: Any) -> None:
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), **fields))


def written(ledger: Ledger, step: str, rows: list[dict[str, Any]]) -> Run:
    table = pa.Table.from_pylist([{"_hash": ord(row["word"]), "_deleted": False, **row} for row in rows])
    return write_run(ledger.store, step, table.sort_by("_hash"), Stamp(ledger.head.commit + 1, 1))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger", create=True)
    tick(made, steps={"counts": COUNTS, "top": TOP})
    for rows in (
        [{"word": "a", "n": 1}, {"word": "b", "n": 1}],
        [{"word": "b", "n": 2}, {"word": "c", "n": 1}],
        [{"word": "a", "n": 1, "_deleted": True}],
    ):
        tick(made, state={"counts": StateChange(added=(written(made, "counts", rows),))})
    return made


def test_state_is_the_newest_row_of_every_key_now_and_at_every_commit(ledger: Ledger) -> None:
    reader = open_ledger(ledger.root)
    states = [reader.state("counts", at).arrow().to_pylist() for at in (1, 2, 3, 4, None)]
    assert states == [
        [],
        [{"word": "a", "n": 1}, {"word": "b", "n": 1}],
        [{"word": "a", "n": 1}, {"word": "b", "n": 2}, {"word": "c", "n": 1}],
        [{"word": "b", "n": 2}, {"word": "c", "n": 1}],
        [{"word": "b", "n": 2}, {"word": "c", "n": 1}],
    ]
    assert reader.state("counts").pandas()["n"].tolist() == [2, 1]
    assert reader.state("counts").duckdb().fetchall() == [("b", 2), ("c", 1)]


def test_a_commit_is_read_once_and_only_what_came_since_is_read_then(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_ledger(ledger.root)
    read: list[str] = []
    real = LocalStore.get

    def counted(store: LocalStore, name: str) -> bytes | None:
        data = real(store, name)
        if data is not None:
            read.append(name)
        return data

    monkeypatch.setattr(LocalStore, "get", counted)
    for _ in range(3):
        assert reader.state("counts").arrow().num_rows == 2
    assert read == []
    tick(ledger, state={"counts": StateChange(added=(written(ledger, "counts", [{"word": "d", "n": 1}]),))})
    read.clear()  # the writer looks at history.json
    for _ in range(3):
        assert reader.state("counts").arrow().num_rows == 3
        assert reader.state("counts", at=4).arrow().num_rows == 2
        assert reader.state("counts", at=3).arrow().num_rows == 3
    assert len(read) == len(set(read)), "the older ones for their own moment, and then no more"


def test_a_moment_that_is_gone_is_an_error_also_for_who_has_seen_it(ledger: Ledger) -> None:
    reader = open_ledger(ledger.root)
    assert reader.state("counts", at=2).arrow().num_rows == 2
    for number in (1, 2):
        ledger.store.delete(commit_name(number))
    with pytest.raises(LedgerError, match="HS-LED-032"):
        reader.state("counts", at=2)


def test_reading_waits_for_no_disk(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_ledger(ledger.root)
    reader.state("counts").arrow()  # makes the folder of pins
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("something was synced"))
    assert reader.state("counts").arrow().num_rows == 2
    assert not ledger.store.list("pins")


def test_a_reader_sees_what_was_committed_since_it_was_opened(ledger: Ledger) -> None:
    reader = open_ledger(ledger.root)
    tick(ledger, state={"counts": StateChange(added=(written(ledger, "counts", [{"word": "z", "n": 9}]),))})
    assert {"word": "z", "n": 9} in reader.state("counts").arrow().to_pylist()


def test_a_value_that_was_added_to_a_fold_is_null_until_a_row_has_it(ledger: Ledger) -> None:
    wider = StepShape(kind="fold", key=("word",), values=("n", "most"), fingerprint="g")
    tick(ledger, steps={"counts": wider, "top": TOP})
    assert open_ledger(ledger.root).state("counts").arrow().to_pylist() == [
        {"word": "b", "n": 2, "most": None},
        {"word": "c", "n": 1, "most": None},
    ]


def test_a_top_is_shown_in_its_order_without_its_reserve(ledger: Ledger) -> None:
    rows = [{"word": "a", "n": 1, "rank": 2}, {"word": "b", "n": 5, "rank": 1}, {"word": "c", "n": 0, "rank": None}]
    tick(ledger, state={"top": StateChange(added=(written(ledger, "top", rows),))})
    assert open_ledger(ledger.root).state("top").arrow().to_pylist() == [
        {"word": "b", "n": 5, "rank": 1},
        {"word": "a", "n": 1, "rank": 2},
    ]


def test_a_step_without_state_is_named_with_those_that_have_some(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'count' keeps state") as error:
        open_ledger(ledger.root).state("count")
    assert "counts, top" in error.value.hint
    assert "Did you mean 'counts'?" in error.value.hint


def test_commits_are_read_in_order(ledger: Ledger) -> None:
    reader = open_ledger(ledger.root)
    assert [commit.commit for commit in reader.commits()] == [1, 2, 3, 4]
    assert [commit.commit for commit in reader.commits(after=2)] == [3, 4]


def test_dead_letters_that_were_retried_are_gone(ledger: Ledger) -> None:
    def letters(name: str, offset: int) -> DataFile:
        row = {"spout": "t", "partition": 0, "offset": offset, "step": "t", "reason": "bad", "raw": b"\xff"}
        (ledger.root / "errors").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row], LETTER), ledger.root / "errors" / name)
        return DataFile(path=f"errors/{name}", rows=1, bytes=1)

    reader = open_ledger(ledger.root)
    assert reader.errors().num_rows == 0
    tick(ledger, dead_letters=(letters("a.parquet", 1),))
    tick(ledger, dead_letters=(letters("b.parquet", 2),))
    assert reader.errors().column("offset").to_pylist() == [1, 2]
    tick(ledger, retried=("errors/a.parquet",))
    assert reader.errors().column("offset").to_pylist() == [2]


def test_reading_leaves_no_file_behind(ledger: Ledger) -> None:
    def files() -> list[Path]:
        return sorted(path for path in ledger.root.rglob("*") if path.is_file())

    before = files()
    reader = open_ledger(ledger.root)
    reader.state("counts").arrow()
    list(reader.commits())
    assert files() == before


def test_a_notebook_shows_ledgers_and_states(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_ledger(ledger.root)
    html = reader._repr_html_()
    assert "commit 4 of " in html
    assert "<tr><td>counts</td><td>fold</td><td>word</td><td>n</td></tr>" in html
    assert reader.state("counts")._repr_html_() == (
        "<table><caption>counts at commit 4: 2 rows</caption><thead><tr><th>word</th><th>n</th></tr></thead>"
        "<tbody><tr><td>b</td><td>2</td></tr><tr><td>c</td><td>1</td></tr></tbody></table>"
    )
    monkeypatch.setattr("hailstorm.ledger.reader.SHOWN", 1)
    assert reader.state("counts")._repr_html_().endswith("<p>… and 1 more</p>")
