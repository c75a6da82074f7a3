"""`hailstorm vacuum` and `hailstorm compact`, as people call them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import LedgerInUseError
from hailstorm.ledger import vacuum
from hailstorm.ledger.commit import StateChange, StepShape
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.runs import write_run


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a commit per minute of the last hours; each has added one to the same key."""
    monkeypatch.setattr(vacuum, "KEEP_LOOSE", 5)
    ledger = Ledger(tmp_path / "ledger", create=True)
    shape = StepShape(kind="fold", key=("k",), values=("n",), fingerprint="f")
    ledger.commit(next_commit(ledger.head, "evolve", 1, datetime.now(UTC), steps={"counts": shape}))
    for number in range(40):
        table = pa.table({"_hash": pa.array([7], pa.int64()), "k": ["a"], "n": [number], "_deleted": [False]})
        runs = tuple(run.id for run in ledger.head.runs.get("counts", ())) if number % 8 == 5 else ()
        change = StateChange(added=(write_run(ledger.store, "counts", table, ledger.stamp),), removed=runs)
        then = datetime.now(UTC) - timedelta(minutes=200 - number)
        ledger.commit(next_commit(ledger.head, "tick", 1, then, state={"counts": change}))
    return tmp_path / "ledger"


def call(*words: str) -> dict[str, int]:
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, int] = json.loads(result.output)
    return found


def test_vacuum_forgets_what_the_tiers_do_not_keep(old: Path) -> None:
    def runs() -> int:
        return len(list((old / "state/counts").iterdir()))

    tiers = ("--retention", "10 minutes, rest: 30 minutes")
    planned = call("vacuum", str(old), "--dry-run", *tiers)
    assert runs() == 40, "a dry run changes nothing"
    done = call("vacuum", str(old), *tiers)
    assert done["commits"] == planned["commits"] > 25
    assert runs() == 40 - planned["files"]
    reader = open_ledger(old)
    kept = [commit.commit for commit in reader.commits()]
    assert len(kept) == 41 - done["commits"]
    assert [reader.state("counts", at=n).arrow().to_pylist() for n in kept[1:]] == [
        [{"k": "a", "n": n - 2}] for n in kept[1:]
    ]
    assert call("vacuum", str(old), *tiers)["commits"] == 0, "there is nothing left to do"


def test_words_that_are_no_retention_are_refused(old: Path) -> None:
    result = CliRunner().invoke(app, ["vacuum", str(old), "--retention", "yesterday"])
    assert result.exit_code == 2
    assert "is not a retention" in result.output


def test_compact_makes_one_run_of_many_and_keeps_history(old: Path) -> None:
    before = len(Ledger(old).head.runs["counts"])
    assert before > 1
    assert call("compact", str(old)) == {"counts": [before, 1]}
    reader = open_ledger(old)
    assert reader.state("counts").arrow().to_pylist() == [{"k": "a", "n": 39}]
    assert reader.state("counts", at=20).arrow().to_pylist() == [{"k": "a", "n": 18}]
    assert call("compact", str(old)) == {}


def test_compact_leaves_a_ledger_alone_that_is_running(old: Path) -> None:
    held = Lease(Ledger(old).store)
    held._me.pid, held._me.born = 1, 0
    held.take()
    with pytest.raises(LedgerInUseError):
        CliRunner().invoke(app, ["compact", str(old)], catch_exceptions=False)
