"""Releasing the state of a step that was removed: kept until somebody says so, and then in no new commit."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import HailstormError, LedgerError, LedgerInUseError, UsageError
from hailstorm.history.verify import verify
from hailstorm.ledger.lease import NAME, Lease
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.releasing import kept_states
from tests.unit.word_ledger import BEGIN, WordLedger


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three commits; in the last one the step `counts` is removed."""
    words = WordLedger(tmp_path / "ledger")
    words.tick({"hail": 1})
    words.tick({"rain": 2})
    gone = next_commit(words.ledger.head, "evolve", words.ledger.epoch, BEGIN, fingerprints={})
    words.ledger.commit(gone)
    return tmp_path / "ledger"


def said(*words: object, answer: str | None = None) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], input=answer)
    if isinstance(result.exception, HailstormError):
        raise result.exception
    assert result.exit_code == 0 or answer == "n\n", result.output
    return result.stdout


def test_what_is_kept_is_shown_with_its_size(root: Path) -> None:
    (kept,) = kept_states(Ledger(root).head)
    assert (kept.step, kept.kind, kept.rows, kept.runs) == ("counts", "fold", 2, 2)
    assert json.loads(said("status", root, "--json"))["kept"][0]["bytes"] == kept.bytes > 0
    assert said("release", root, "--step", "counts", "--dry-run").startswith("would release the state of 'counts'")
    said("release", root, "--step", "counts", answer="n\n")
    assert Ledger(root).head.commit == 3, "nothing has changed"


def test_a_released_state_is_in_no_new_commit_and_in_the_old_ones(root: Path) -> None:
    (root / "delta/counts/_delta_log").mkdir(parents=True)
    assert json.loads(said("release", root, "--step", "counts", "--yes", "--json"))["commit"] == 4
    ledger = Ledger(root)
    assert not kept_states(ledger.head)
    assert "counts" not in ledger.head.steps
    assert "kept" not in json.loads(said("status", root, "--json"))
    assert open_ledger(root).state("counts", 2).arrow().num_rows == 2
    assert not (root / "delta/counts").exists()
    assert not verify(ledger).problems
    with pytest.raises(LedgerError) as caught:
        said("release", root, "--step", "counts", "--yes")
    assert caught.value.code == "HS-LED-055"


def test_what_is_in_use_is_not_released(root: Path, tmp_path: Path) -> None:
    words = WordLedger(tmp_path / "other")
    words.tick({"hail": 1})
    with pytest.raises(LedgerError) as caught:
        said("release", tmp_path / "other", "--step", "counts", "--yes")
    assert caught.value.code == "HS-LED-054"
    store = Ledger(root).store
    Lease(store).take()
    store.put(NAME, msgspec.json.encode({**msgspec.json.decode(store.get(NAME) or b""), "host": "elsewhere"}))
    with pytest.raises(LedgerInUseError):
        said("release", root, "--step", "counts", "--yes")
    for wrong in ((), ("monday", "--step", "counts")):
        with pytest.raises(UsageError):
            said("release", root, *wrong)
