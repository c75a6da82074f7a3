"""`hs.open_ledger`: what the commands do to a ledger, from Python."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import hailstorm as hs
from hailstorm.errors import HailstormError, LedgerInUseError
from hailstorm.history.opened import OpenLedger
from hailstorm.ledger.commit import Discarded
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.letters import letters_table
from hailstorm.ledger.runs import write_rows
from tests.unit.word_ledger import WordLedger


@pytest.fixture
def place(tmp_path: Path) -> WordLedger:
    """Two ticks, and a dead letter in a third commit."""
    place = WordLedger(tmp_path / "words")
    place.tick({"rain": 1, "<snow>": 1})
    place.tick({"rain": 2})
    ledger = place.ledger
    letters = letters_table([("lines", 0, 3, "lines", "not JSON", b"x")])
    file = write_rows(ledger.store, "errors", letters, ledger.stamp)
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC), dead_letters=(file,), errors=1))
    return place


def opened(place: WordLedger) -> OpenLedger:
    return hs.open_ledger(place.ledger.address)


def test_a_snapshot_is_made_exported_imported_and_released(place: WordLedger, tmp_path: Path) -> None:
    ledger = opened(place)
    assert ledger.snapshot("monday", at=1).commit == 1
    assert ledger.export("monday", str(tmp_path / "monday.tar")).commit == 1
    assert hs.import_snapshot(str(tmp_path / "monday.tar"), str(tmp_path / "elsewhere")).snapshot == "monday"
    there = hs.open_ledger(tmp_path / "elsewhere").state("counts").arrow().to_pylist()
    assert {row["word"]: row["n"] for row in there} == place.at[1]
    assert ledger.release("monday").commit == 1
    assert ledger.snapshots() == []


def test_an_export_goes_to_no_object_store(place: WordLedger) -> None:
    ledger = opened(place)
    ledger.snapshot("monday")
    for code in (lambda: ledger.export("monday", "s3://bucket/x"), lambda: hs.import_snapshot("x", "s3://bucket/x")):
        with pytest.raises(HailstormError) as refused:
            code()
        assert refused.value.code == "HS-CLI-096"


def test_a_ledger_is_verified_and_shows_what_is_wrong(place: WordLedger) -> None:
    ledger = opened(place)
    assert "<caption>all is well: 3 commits, " in ledger.verify()._repr_html_()
    root = Path(place.ledger.address)
    victim = next((root / "errors").rglob("*.parquet"))
    victim.write_bytes(b"x")
    found = ledger.verify()
    assert [problem.file for problem in found.problems] == [str(victim.relative_to(root))]
    assert f"<td>{victim.relative_to(root)}</td>" in found._repr_html_()


def test_letters_are_discarded_by_a_ledger_that_was_opened_before_the_last_commit(place: WordLedger) -> None:
    ledger = opened(place)
    place.tick({"hail": 1})
    assert ledger.discard("lines", "a test") == {"lines": 1}
    assert ledger.errors().num_rows == 0
    commit = Ledger(place.ledger.address).read_commit(5)
    assert commit is not None
    assert commit.discarded == {"lines": Discarded(1, "a test")}


def test_the_state_of_a_removed_step_is_released(place: WordLedger) -> None:
    ledger = opened(place)
    assert ledger.kept_states() == ()
    head = place.ledger.head
    place.ledger.commit(next_commit(head, "tick", place.ledger.epoch, datetime.now(UTC), fingerprints={}))
    assert [kept.step for kept in ledger.kept_states()] == ["counts"]
    assert ledger.release_state("counts").reason == "release"
    assert ledger.kept_states() == ()


def test_a_key_is_erased_and_the_report_shows_itself(place: WordLedger) -> None:
    ledger = opened(place)
    assert ledger.erase("counts", dry_run=True, word="rain").places() == [("counts", 2)]
    assert ledger.life("counts", word="rain").arrow().num_rows == 2
    report = ledger.erase("counts", word="rain")
    assert "<td>counts</td><td>2</td>" in report._repr_html_()
    assert "<p>spout lines: its log has the records, " in report._repr_html_()
    assert ledger.life("counts", word="rain").arrow().num_rows == 0


def test_with_its_topology_a_key_is_erased_from_logs(place: WordLedger, tmp_path: Path) -> None:
    log = hs.Log(tmp_path / "lines").create(1)
    log.append([{"word": "rain"}, {"word": "hail"}])
    storm = hs.Topology("words")
    storm.spout("lines", log, schema="word STRING").fold("counts", by="word", n=hs.count())
    assert opened(place).erase("counts", logs_of=storm, word="rain").logs == {"lines": 1}


@pytest.mark.parametrize(
    ("step", "key", "code"),
    [
        ("counts", {}, "HS-CLI-007"),
        ("counts", {"wrod": "rain"}, "HS-CLI-007"),
        ("counts", {"word": 5}, "HS-CLI-008"),
        ("cuonts", {"word": "rain"}, "HS-LED-010"),
    ],
)
def test_what_cannot_be_erased_is_refused_and_nothing_changes(
    place: WordLedger, step: str, key: dict[str, object], code: str
) -> None:
    ledger = opened(place)
    with pytest.raises(HailstormError) as refused:
        ledger.erase(step, **key)
    assert refused.value.code == code
    assert ledger.state("counts").arrow().num_rows == 2


def test_nothing_is_written_while_a_run_has_the_ledger(place: WordLedger) -> None:
    ledger, lease = opened(place), Lease(place.ledger.store)
    lease._me.host = "elsewhere"
    lease.beat()
    for write in (
        lambda: ledger.discard("lines", "a test"),
        lambda: ledger.release_state("counts"),
        lambda: ledger.erase("counts", word="rain"),
    ):
        with pytest.raises(LedgerInUseError):
            write()
    assert ledger.live().commit == 3
    assert ledger.errors().num_rows == 1


def test_the_life_of_a_key_shows_itself(place: WordLedger) -> None:
    html = opened(place).life("counts", word="<snow>")._repr_html_()
    assert "<caption>counts word=&lt;snow&gt;: 1 changes</caption>" in html
    assert "<td>insert</td><td>&lt;snow&gt;</td>" in html
