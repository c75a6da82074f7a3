"""Files of dead letters are merged: the list in the head stays short, and the letters are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.engine.stages import task as task_module
from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.task import Task
from hailstorm.engine.ticks.letters import merged_letters
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.letters import letters_table, with_rows
from hailstorm.ledger.runs import write_rows
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import read_table


def refuse(ledger: Ledger, step: str, offset: int, row: dict[str, Any]) -> None:
    letters = with_rows(letters_table([("rows", 0, offset, step, "why", b"raw")]), pa.Table.from_pylist([row]))
    file = write_rows(ledger.store, "errors", letters, ledger.stamp)
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), dead_letters=(file,), errors=1))


def merge(ledger: Ledger) -> bool:
    merged = merged_letters(ledger)
    if merged is None:
        return False
    fields = {"dead_letters": merged.files, "retried": merged.gone}
    ledger.commit(next_commit(ledger.head, "compact", 1, datetime.now(UTC), **fields))
    return True


def letters_of(ledger: Ledger) -> list[tuple[str, int, Any]]:
    found = [row for file in ledger.head.dead_letters for row in read_table(ledger.store, file.path).to_pylist()]
    return sorted(((row["step"], row["offset"], row["row"]) for row in found), key=lambda one: one[:2])


def test_the_list_of_open_letters_does_not_grow_with_the_ticks_that_had_some(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    longest = 0
    for offset in range(300):
        refuse(ledger, "ab"[offset % 2], offset, {"n": offset} if offset < 150 else {"n": offset, "more": "x"})
        merge(ledger)
        longest = max(longest, len(ledger.head.dead_letters))
    assert longest <= 65
    expected = [("ab"[n % 2], n, {"n": n} if n < 150 else {"n": n, "more": "x"}) for n in range(300)]
    assert letters_of(ledger) == sorted(expected, key=lambda one: one[:2])
    assert ledger.head.errors == 300


def test_few_files_and_files_that_are_not_alike_are_left_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    for number in range(64):
        refuse(ledger, "a", number, {"n": number})
    assert not merge(ledger)
    other = Ledger(tmp_path / "other", create=True)
    for number in range(70):
        refuse(other, f"step {number}", number, {"n": number})
    assert not merge(other)


def test_a_task_holds_only_so_many_letters_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_MOST_LETTERS", 3)
    monkeypatch.setattr(task_module, "_MOST_LETTER_BYTES", 1_000)
    order = Order(
        ledger=str(tmp_path), cache=str(tmp_path / "cache"), scratch=str(tmp_path / "s"), seq=1, epoch=1, now=0
    )
    task = Task(order, 0, Report("test"))
    row = pa.RecordBatch.from_pylist([{"n": 1}])
    for offset in range(7):
        task.refuse("a", "why", "dead-letter", ("rows", 0, offset), b"raw", row)
        assert len(task.letters) < 3
    task.refuse("a", "why", "dead-letter", ("rows", 0, 7), b"x" * 2_000, row)
    assert task.letters == []
    task.refuse("a", "why", "dead-letter", ("rows", 0, 8), b"raw", row)
    (report,) = task.finish()
    assert [file.rows for file in report.letters] == [3, 3, 2, 1]
    assert report.failures["a"].count == 9
    found = [read_table(open_store(tmp_path), file.path)["offset"].to_pylist() for file in report.letters]
    assert [offset for part in found for offset in part] == list(range(9))
