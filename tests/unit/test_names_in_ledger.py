"""Renaming in a ledger: the same is live under other names, and nothing is written again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.delivery.renamed import hand_over
from hailstorm.engine.ticks.renaming import renames
from hailstorm.errors import LedgerError, RunError
from hailstorm.history.erase import erase
from hailstorm.history.erasures import erased_hashes
from hailstorm.history.opened import open_ledger
from hailstorm.history.touched import touched_runs
from hailstorm.history.verify import verify
from hailstorm.ledger.commit import Former, SinkShape
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.renaming import moved, renamed_fields, under_names_of_now, with_former
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.squashing import squashed
from hailstorm.topology.ends import Sink
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.settings import Settings
from hailstorm.topology.table import Table
from hailstorm.topology.topology import Topology
from tests.unit.word_ledger import BEGIN, WordLedger


def rename(ledger: Ledger, new: str, old: str) -> None:
    head = ledger.head
    after = moved(ledger.store, head, {new: old}, ledger.stamp)
    steps = {name: with_former(shape, old if name == new else None, head.commit) for name, shape in after.steps.items()}
    fields = renamed_fields(head, msgspec.structs.replace(after, steps=steps))
    ledger.commit(next_commit(head, "evolve", ledger.epoch, BEGIN, **fields))


@pytest.fixture
def words(tmp_path: Path) -> WordLedger:
    made = WordLedger(tmp_path / "ledger")
    made.tick({"hail": 1, "rain": 2})
    made.tick({"hail": 2, "ada": 1})
    return made


def test_runs_get_a_second_name_and_are_not_written_again(words: WordLedger) -> None:
    ledger = words.ledger
    before = ledger.head
    files = {ledger.root.joinpath(run_name("counts", run.id)).stat().st_ino for run in before.runs["counts"]}
    rename(ledger, "totals", "counts")
    runs = ledger.head.runs
    assert {ledger.root.joinpath(run_name("totals", run.id)).stat().st_ino for run in runs["totals"]} == files
    assert not runs["counts"]
    reader = open_ledger(ledger.root)
    assert {row["word"]: row["n"] for row in reader.state("totals").arrow().to_pylist()} == words.at[2]
    assert {row["word"]: row["n"] for row in reader.state("counts", 1).arrow().to_pylist()} == words.at[1]
    assert not verify(ledger).problems
    assert ledger.head.called_then(2) == {"totals": "counts"}
    assert ledger.head.called_then(3) == {}


def counts(state: State) -> dict[str, int]:
    return {row["word"]: row["n"] for row in state.arrow().to_pylist()}


def test_what_was_before_a_renaming_is_read_under_the_new_name_too(words: WordLedger) -> None:
    rename(words.ledger, "totals", "counts")
    reader = open_ledger(words.ledger.root)
    for at in (1, 2):
        assert counts(reader.state("totals", at)) == counts(reader.state("counts", at)) == words.at[at]
    runner = CliRunner()
    said = runner.invoke(app, ["state", str(words.ledger.root), "totals", "--at", "1", "--json"])
    assert [json.loads(line) for line in said.stdout.splitlines()] == [
        {"word": "hail", "n": 1},
        {"word": "rain", "n": 2},
    ]
    with pytest.raises(LedgerError) as caught:
        reader.state("counts")
    assert "It is called 'totals' since commit 3." in caught.value.render()


def test_a_diff_across_a_renaming_reads_what_changed(words: WordLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    words.tick({f"word{number}": 1 for number in range(1_000)})
    rename(words.ledger, "totals", "counts")
    reader = open_ledger(words.ledger.root)
    assert reader.diff("totals", 3, 4).arrow().num_rows == 0
    words.step = "totals"
    words.tick({"hail": 7})
    change = {"kind": "update", "word": "hail", "before": {"n": 2}, "after": {"n": 7}}
    one, other = reader.state("totals", 3), reader.state("totals", 5)
    assert [run.rows for _, run in touched_runs(one, other)] == [1], "the files that both have are the same"
    assert reader.diff("totals", 3, 5).arrow().to_pylist() == [change]
    assert reader.diff("totals", 5, 3).arrow().to_pylist() == [{**change, "before": {"n": 7}, "after": {"n": 2}}]
    assert reader.diff("totals", 1, 5).arrow().num_rows == 1_002
    runner = CliRunner()
    said = runner.invoke(app, ["diff", str(words.ledger.root), "totals", "3", "5", "--json"])
    assert json.loads(said.stdout) == change
    with pytest.raises(LedgerError) as caught:
        reader.diff("counts", 1, 5)
    assert "It is called 'totals' since commit 4." in caught.value.render()


def test_the_life_of_a_key_goes_on_under_a_new_name(words: WordLedger) -> None:
    rename(words.ledger, "totals", "counts")
    words.step = "totals"
    words.tick({"hail": 7})
    reader = open_ledger(words.ledger.root)

    def lived(step: str, **until: int) -> list[tuple[int, int]]:
        rows = reader.life(step, word="hail", **until).arrow().to_pylist()
        return [(row["commit"], row["after"]["n"]) for row in rows]

    assert lived("totals") == [(1, 1), (2, 2), (4, 7)]
    assert lived("totals", until=2) == lived("counts", until=2) == [(1, 1), (2, 2)]
    said = CliRunner().invoke(
        app, ["state", str(words.ledger.root), "totals", "--key", "hail", "--history", "--at", "2", "--json"]
    )
    assert [json.loads(line)["commit"] for line in said.stdout.splitlines()] == [1, 2]


def test_a_new_step_with_an_old_name_is_not_taken_for_the_old_one(words: WordLedger) -> None:
    rename(words.ledger, "totals", "counts")
    head = words.ledger.head
    shape = msgspec.structs.replace(head.steps["totals"], formerly=())
    steps = {**head.steps, "counts": shape}
    words.ledger.commit(next_commit(head, "evolve", words.ledger.epoch, BEGIN, steps=steps))
    words.tick({"hail": 40})
    reader = open_ledger(words.ledger.root)
    assert [row["commit"] for row in reader.life("counts", word="hail").arrow().to_pylist()] == [5]
    assert counts(reader.state("counts", 1)) == words.at[1], "the step that had the name then"
    with pytest.raises(LedgerError, match="one step at commit 1 and another at commit 5") as caught:
        reader.diff("counts", 1, 5)
    assert "'totals' and 'counts' now" in caught.value.render()


def test_squashed_commits_do_the_same(words: WordLedger) -> None:
    rename(words.ledger, "totals", "counts")
    rename(words.ledger, "sums", "totals")
    commits = list(words.ledger.commits())
    assert Live().after(squashed(commits).commit).runs["sums"] == words.ledger.head.runs["sums"]
    assert words.ledger.head.called_then(1) == {"sums": "counts"}
    assert words.ledger.head.called_then(3) == {"sums": "totals"}


def test_a_key_is_erased_under_all_names(words: WordLedger) -> None:
    rename(words.ledger, "totals", "counts")
    report = erase(words.ledger, "totals", {"word": pa.array(["ada"])})
    assert report.state == {"counts": 1, "totals": 1}
    assert erased_hashes(words.ledger.store, {"totals", "counts"})
    assert b"ada" not in b"".join(
        file.read_bytes() for file in words.ledger.root.rglob("*.parquet") if ".cache" not in str(file)
    )
    assert not verify(Ledger(words.ledger.root)).problems


def topology(name: str, old: str | None, kind: str = "fold") -> Topology:
    storm = hs.Topology("words")
    lines = storm.spout("lines", hs.Log("x"), schema="word STRING, n BIGINT")
    if kind == "fold":
        lines.fold(name, by="word", n=hs.count(), renamed_from=old)
    else:
        lines.table(name, key="word", renamed_from=old)
    return storm


def known(*steps: str) -> Live:
    return Live(
        commit=4,
        fingerprints=dict.fromkeys(("lines", *steps), ""),
        declared={step: {"kind": "fold"} for step in steps},
    )


def test_what_is_renamed() -> None:
    assert renames(topology("totals", "counts"), known("counts")) == {"totals": "counts"}
    assert renames(topology("totals", "counts"), Live()) == {}, "a new ledger"
    assert renames(topology("totals", "counts"), known("totals")) == {}, "it was called so from the beginning"
    assert renames(topology("counts", None), known("counts")) == {}


@pytest.mark.parametrize(
    ("name", "old", "kind", "live", "code"),
    [
        ("totals", "count", "fold", known("counts"), "HS-RUN-060"),
        ("totals", "counts", "fold", known("counts", "totals"), "HS-RUN-061"),
        ("totals", "counts", "table", known("counts"), "HS-RUN-062"),
    ],
)
def test_a_wrong_name_is_refused(name: str, old: str, kind: str, live: Live, code: str) -> None:
    with pytest.raises(RunError) as caught:
        renames(topology(name, old, kind), live)
    assert caught.value.code == code


def test_what_is_below_a_renamed_step_has_the_fingerprint_that_it_had() -> None:
    def with_name(name: str) -> Topology:
        storm = topology(name, None)
        table = Table(storm, name)
        table.where("big", "n > 1")
        table.sql("changes", f"SELECT {name}.word, n FROM {name}")
        return storm

    old, new = fingerprint(with_name("counts")), fingerprint(with_name("totals"))
    undone = fingerprint(with_name("totals"), {"totals": "counts"})
    assert old["big"] == undone["big"] != new["big"]
    assert old["changes"] == undone["changes"] != new["changes"]


def test_what_has_the_name_of_now_already_stays() -> None:
    live = Live(commit=4, coverage={"totals": {}}, reached={"counts.agenda": 1, "totals.agenda": 2})
    seen = under_names_of_now(live, {"totals": "counts"})
    assert seen.coverage == {"totals": {}}
    assert seen.reached == {"totals.agenda": 1}, "where both are there, the old one goes on"


def test_no_sink_can_have_the_first_name_of_another_one() -> None:
    storm = topology("counts", None)
    Table(storm, "counts").sink("board", hs.Console())
    wall = SinkShape(since=0, is_table=True, fingerprint="", formerly=(Former("board", 3),))
    with pytest.raises(RunError) as caught:
        renames(storm, msgspec.structs.replace(known("counts"), sinks={"wall": wall}))
    assert caught.value.code == "HS-RUN-063"


def test_a_sink_with_rejected_rows_keeps_its_name_until_they_are_dealt_with(words: WordLedger) -> None:
    ledger = words.ledger
    board = SinkShape(since=0, is_table=True, fingerprint="")
    ledger.commit(next_commit(ledger.head, "evolve", ledger.epoch, BEGIN, sinks={"board": board}))
    storm = topology("counts", None)
    Table(storm, "counts").sink("wall", hs.Console(), renamed_from="board")
    sinks = [step for step in storm.steps if isinstance(step, Sink)]
    hand = partial(hand_over, "words", sinks, {"wall": "board"}, ledger, LedgerOutbox(ledger), Settings())
    ledger.cursors.store("board", SinkRecord(commit=3))
    hand()
    assert ledger.cursors.load("wall").commit == 3
    ledger.store_rejected("board", 2, [("too long", b"{}")], pa.table({"word": ["hail"]}))
    with pytest.raises(RunError) as caught:
        hand()
    assert caught.value.code == "HS-RUN-065"
