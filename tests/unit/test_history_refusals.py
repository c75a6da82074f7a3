"""What the commands of the time machine refuse, or cannot do: a sentence that says why, and no change to the ledger."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.cli.target import load_app
from hailstorm.engine.run import resolved, retry_errors, run_topology
from hailstorm.errors import LedgerInUseError, RunError, UsageError, WordError
from hailstorm.faults import inject
from hailstorm.history.backfill import backfill_topology, made_first
from hailstorm.history.exporting import export_snapshot
from hailstorm.history.past import past_of, refuse_without_state
from hailstorm.history.rewind import rewind_topology
from hailstorm.history.rewind_steps import rewind_steps
from hailstorm.history.snapshots import make_snapshot
from hailstorm.ledger.commit import DataFile, SinkShape
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.spouts import Log
from hailstorm.topology.topology import Topology
from tests.unit.word_ledger import BEGIN, SHAPE, WordLedger

APP = """
import hailstorm as hs

storm = hs.Topology("words", ledger="words")
lines = storm.spout("lines", hs.Log("log"), schema="word STRING")
lines.fold("counts", by="word", n=hs.count())
"""
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app, its log of six records, and its ledger: two ticks have read four of them. The second is a snapshot."""
    (tmp_path / "app.py").write_text(APP)
    Log(tmp_path / "log").create(1).append([{"word": word} for word in ("hail", "rain", "hail", "snow", "fog", "fog")])
    made = WordLedger(tmp_path / "words")
    made.tick({"hail": 1, "rain": 1})
    made.tick({"hail": 2, "snow": 1})
    make_snapshot(made.ledger, "monday")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # an app puts its folder there
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    """The ledger, without this machine's copies and without pins and leases."""
    store = Ledger(folder / "words").store
    files = (file.name for file in store.files(""))
    return {name: store.get(name) or b"" for name in files if not name.startswith(("pins/", "lease"))}


def typed(*words: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, list(words), input=answer)


def test_a_rewind_that_nobody_can_answer_or_that_is_answered_no_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(folder)
    asked = typed("rewind", "app.py", "--to", "1", answer="y\n")
    assert isinstance(asked.exception, UsageError) and asked.exception.code == "HS-CLI-110"
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("hailstorm.cli.rewind.sys", terminal)
    for answer in ("n\n", "\n"):
        said = typed("rewind", "app.py", "--to", "1", answer=answer)
        assert said.exit_code == 1
        assert "From commit 2 back to commit 1" in said.stdout
        assert "Nothing was changed." in said.stderr
    assert content(folder) == before


def test_a_rewind_that_sinks_of_streams_forbid_says_so_before_it_asks_and_before_spark(folder: Path) -> None:
    with (folder / "app.py").open("a") as file:
        file.write('lines.sink("archive", hs.Parquet("out"))\n')
    made = Ledger(folder / "words")
    sinks = {"archive": SinkShape(since=0, is_table=False, fingerprint="f")}
    outbox = {"archive": (DataFile(path="outbox/archive/x.parquet", rows=1, bytes=1),)}
    made.commit(next_commit(made.head, "tick", made.epoch, BEGIN, sinks=sinks, outbox=outbox))
    before = content(folder)
    looked = typed("rewind", "app.py", "--to", "1", "--dry-run")
    assert looked.exit_code == 0
    assert "would be refused" in looked.stderr and "--append keep" in looked.stderr
    assert not typed("rewind", "app.py", "--to", "1", "--dry-run", "--append", "keep").stderr
    for words in ((), ("--yes",)):
        refused = typed("rewind", "app.py", "--to", "1", *words)
        assert isinstance(refused.exception, RunError) and refused.exception.code == "HS-RUN-041"
    assert content(folder) == before


@pytest.mark.parametrize(
    "words",
    [
        ("errors", "app.py", "--retry", "--discard", "all", "--reason", "x"),
        ("errors", "app.py", "--discard", "all"),
        ("errors", "app.py", "--accept", "counts"),
        ("errors", "words", "--retry"),
        ("state", "app.py", "counts", "--json", "--format", "csv"),
        ("state", "app.py", "counts", "--delta", "--key", "rain"),
        ("state", "app.py", "counts", "--history"),
        ("state", "words", "counts", "--ledger", "words"),
        ("rewind", "app.py", "--to", "1", "--steps", "counts", "--append", "keep"),
        ("resend", "app.py", "nope"),
    ],
)
def test_words_that_do_not_go_together_are_found_before_anything_starts(folder: Path, words: tuple[str, ...]) -> None:
    assert isinstance(typed(*words).exception, WordError), "which is exit code 2"


COMMANDS: dict[str, Callable[[Topology], object]] = {
    "backfill": lambda storm: backfill_topology(storm, "counts"),
    "rewind": lambda storm: rewind_topology(storm, 1),
    "rewind --steps": lambda storm: rewind_steps(storm, 1, ("counts",)),
    "errors --retry": lambda storm: retry_errors(storm),
    "run --recompute": lambda storm: run_topology(storm, first=made_first(("counts",), lose=True)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_beside_a_run_or_a_backfill_no_second_one_begins(folder: Path, name: str) -> None:
    """A backfill holds the ledger as a run does: so there are never two at once."""
    other = Lease(Ledger(folder / "words").store)
    other._me.pid, other._me.born, other._me.host = 1, 0, "elsewhere"
    other.beat()
    before = content(folder)
    with pytest.raises(LedgerInUseError, match="HS-LED-009  this ledger is running on elsewhere"):
        COMMANDS[name](load_app("app.py").topology)
    assert content(folder) == before


def test_a_backfill_from_before_the_begin_of_the_log_is_refused(folder: Path) -> None:
    storm, ledger = resolved(load_app("app.py").topology), Ledger(folder / "words")
    assert past_of(storm, ledger, {"counts": SHAPE}, ("counts",), since=1).records == 2
    Log(folder / "log").retain(records=3)
    with pytest.raises(
        RunError, match=r"HS-RUN-067  the log of 'lines' no longer has lines/0@2 up to offset 2.*after 1"
    ):
        past_of(storm, ledger, {"counts": SHAPE}, ("counts",), since=1)
    assert past_of(storm, ledger, {"counts": SHAPE}, ("counts",)).records == 1, "all that the log has"
    assert past_of(storm, ledger, {"counts": SHAPE}, ("counts",), since=2).records == 0


@pytest.mark.parametrize("form", ["monday.tar", "there"])
def test_a_disk_that_fills_up_while_a_snapshot_is_exported_leaves_nothing_there(folder: Path, form: str) -> None:
    before, there = content(folder), sorted(folder.iterdir())
    with inject("during-export", FULL):
        said = typed("snapshot", "export", "app.py", "monday", form)
    assert isinstance(said.exception, UsageError) and "No space left on device" in str(said.exception)
    assert (content(folder), sorted(folder.iterdir())) == (before, there)
    assert typed("snapshot", "export", "app.py", "monday", form).exit_code == 0


def test_a_disk_that_fills_up_while_a_snapshot_is_imported_leaves_no_ledger(folder: Path) -> None:
    export_snapshot(Ledger(folder / "words"), "monday", folder / "monday.tar")
    there = sorted(folder.iterdir())
    with inject("during-import", FULL):
        said = typed("snapshot", "import", "monday.tar", "new")
    assert isinstance(said.exception, UsageError) and "No space left on device" in str(said.exception)
    assert sorted(folder.iterdir()) == there
    assert typed("snapshot", "import", "monday.tar", "new").exit_code == 0


def test_a_disk_that_is_full_takes_no_snapshot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: LocalStore, *rest: object) -> bool:
        raise FULL

    before = content(folder)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", full)
        said = typed("snapshot", "app.py", "tuesday")
    assert isinstance(said.exception, UsageError) and "No space left on device" in str(said.exception)
    assert content(folder) == before


class Seen(hs.Process):
    """Remembers whether it has seen a key."""

    @dataclass
    class state:
        n: int = 0

    returns = "word STRING"

    def on_event(self, key: Any, event: Any, state: Any, timers: Any) -> None:
        state.n += 1


def test_the_state_of_a_process_can_be_made_again_although_nothing_reads_it() -> None:
    storm = hs.Topology("words")
    lines = storm.spout("lines", Log("log"), schema="word STRING")
    lines.process("seen", by="word", using=Seen)
    lines.where("long", "length(word) > 9").sink("out", hs.Console())
    refuse_without_state(storm, ("seen", "lines"))
    with pytest.raises(WordError, match=r"(?s)neither 'long' nor .* keeps state.*Steps with state: seen"):
        refuse_without_state(storm, ("long",))
