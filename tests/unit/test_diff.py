"""Diff and a key's life: applied to the first moment the changes give the second, whatever lies between."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import HailstormError, LedgerError, UsageError
from hailstorm.history import diff as diff_module
from hailstorm.history import touched
from hailstorm.history.opened import OpenLedger, open_ledger
from hailstorm.ledger import parts, vacuum
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.commit import Run
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import Hashes
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import read_retention
from tests.unit.word_ledger import WordLedger

pytestmark = pytest.mark.slow

WORDS = [f"word{number}" for number in range(40)]


@pytest.fixture
def place(tmp_path: Path) -> WordLedger:
    """Sixty commits: random ticks, some without a change, and every ninth a compaction."""
    dice = random.Random(14)
    place = WordLedger(tmp_path / "words")
    for number in range(1, 60):
        chosen = dice.sample(WORDS, dice.choice([0, 1, 1, 3, 10]))
        place.tick({word: dice.choice([None, dice.randrange(9), dice.randrange(9)]) for word in chosen})
        if number % 9 == 0:
            place.compact()
    return place


def state(reader: OpenLedger, at: Any = None) -> dict[str, int]:
    return {row["word"]: row["n"] for row in reader.state("counts", at=at).arrow().to_pylist()}


def applied(before: dict[str, int], changes: list[dict[str, Any]]) -> dict[str, int]:
    """What the changes make of the counts; each must say what was there."""
    after = dict(before)
    for change in changes:
        word = change["word"]
        assert (change["before"] or {}).get("n") == before.get(word)
        assert change["kind"] == (
            "insert" if change["before"] is None else "delete" if change["after"] is None else "update"
        )
        if change["after"] is None:
            del after[word]
        else:
            after[word] = change["after"]["n"]
    assert len({change["word"] for change in changes}) == len(changes)
    return after


@pytest.mark.parametrize("way", ["runs apart", "what commits say", "in small pieces"])
def test_a_diff_applied_to_one_moment_gives_the_other(
    place: WordLedger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "runs apart":
        monkeypatch.setattr(touched, "_ROWS_OF_A_COMMIT", 0)
    if way == "in small pieces":
        monkeypatch.setattr(diff_module, "_PIECE", 7)
    reader = OpenLedger(place.ledger)
    dice = random.Random(way)
    moments = range(1, place.ledger.head.commit + 1)
    for commit in moments:
        assert state(reader, commit) == place.at[commit]
    for _ in range(20):
        a, b = dice.choices(moments, k=2)
        changes = reader.diff("counts", a, b).arrow().to_pylist()
        assert applied(place.at[a], changes) == place.at[b]
        assert all(change["before"] != change["after"] for change in changes)
        assert [change["word"] for change in changes] == sorted(change["word"] for change in changes)


def test_a_diff_of_neighbours_looks_at_what_the_commit_wrote_and_at_a_shared_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = WordLedger(tmp_path / "words")
    place.tick(dict.fromkeys(WORDS, 1))
    for number in range(12):
        place.tick({WORDS[number]: 2})
    place.compact()
    reader, head = OpenLedger(place.ledger), place.ledger.head.commit
    asked: list[tuple[str, int]] = []
    real = parts.rows_of_hashes

    def counted(cache: RunCache, step: str, run: Run, hashes: Hashes, columns: Sequence[str]) -> pa.Table:
        asked.append((run.id, len(hashes)))
        return real(cache, step, run, hashes, columns)

    monkeypatch.setattr(parts, "rows_of_hashes", counted)
    monkeypatch.setattr(touched, "_ROWS_OF_A_COMMIT", 0)
    assert reader.diff("counts", head - 1, head).arrow().num_rows == 0
    assert asked == [], "a compaction changes nothing"
    assert reader.diff("counts", head - 2, head - 1).arrow().num_rows == 1
    assert len({run for run, _ in asked}) == len(asked) == 2, "each run once, although both moments have it"
    assert {count for _, count in asked} == {1}, "for the one key that the commit wrote"


def test_after_retention_diffs_between_what_is_kept_are_right(
    place: WordLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"KEEP_LOOSE": 5, "PACK": 10}.items():
        monkeypatch.setattr(vacuum, name, value)
    monkeypatch.setattr(touched, "_ROWS_OF_A_COMMIT", 0)
    work = Vacuum(place.ledger, read_retention("1 second, 1 day: 4 seconds, rest: 1 day"), now=lambda: 1769852000.0)
    while work.work(whole=True):
        pass
    reader = open_ledger(place.ledger.root)
    kept = [commit.commit for commit in reader.commits()]
    assert len(kept) < 40
    for a in kept[::4]:
        for b in kept[::5]:
            assert applied(place.at[a], reader.diff("counts", a, b).arrow().to_pylist()) == place.at[b]
    for word in WORDS[::13]:
        lived(reader, place, word, kept)


def lived(reader: OpenLedger, place: WordLedger, word: str, kept: list[int]) -> None:
    """The life of a word is what its counts at the kept commits say."""
    expected, last = [], None
    for commit in kept:
        now = place.at[commit].get(word)
        if now != last:
            expected.append((commit, last, now))
        last = now
    found = reader.life("counts", word=word).arrow().to_pylist()
    assert [(row["commit"], (row["before"] or {}).get("n"), (row["after"] or {}).get("n")) for row in found] == expected


def test_a_keys_life_is_every_change_of_it(place: WordLedger) -> None:
    reader = OpenLedger(place.ledger)
    for word in WORDS[::7]:
        lived(reader, place, word, list(range(1, place.ledger.head.commit + 1)))
    with pytest.raises(UsageError, match="no key column"):
        reader.life("counts", wrod="rain")
    with pytest.raises(UsageError, match=r"whole key of 'counts': word is missing(.|\n)*Name every key column: word"):
        reader.life("counts")


def test_only_what_changed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = WordLedger(tmp_path / "many")
    place.tick({f"w{number}": number for number in range(60_000)})
    place.tick({"w7": 1})
    place.compact()
    place.tick({"w8": 1})
    a, b = (State(place.ledger, place.ledger.at(number), "counts") for number in (2, 4))
    assert [run.rows for _, run in touched.touched_runs(a, b)] == [1]
    assert OpenLedger(place.ledger).diff("counts", 2, 4).arrow().to_pylist() == [
        {"kind": "update", "word": "w8", "before": {"n": 8}, "after": {"n": 1}}
    ]


def test_moments_are_those_of_a_person(place: WordLedger) -> None:
    reader = OpenLedger(place.ledger)
    newest = place.ledger.head.commit
    assert state(reader, "latest-7") == place.at[newest - 7]
    assert state(reader, place.ledger.at(20).at) == place.at[20]
    with pytest.raises(LedgerError, match="no step 'count'"):
        reader.diff("count", 1, 2)
    assert "changes from commit 3 to 9" in reader.diff("counts", 3, 9)._repr_html_()
    assert reader.diff("counts", 3, 9).pandas().shape[1] == 4


# The command line


def said(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, HailstormError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_diff_on_the_command_line(place: WordLedger, tmp_path: Path) -> None:
    root = place.ledger.root
    lines = [json.loads(line) for line in said("diff", root, "counts", 5, 25, "--json").splitlines()]
    assert applied(place.at[5], lines) == place.at[25]
    assert list(lines[0]) == ["kind", "word", "before", "after"]
    word = lines[0]["word"]
    assert json.loads(said("diff", root, "counts", 5, 25, "--key", word, "--json")) == lines[0]
    some = said("diff", root, "counts", 5, 25, "--where", "kind = 'update' and after.n > before.n", "--json")
    grown = [one for one in lines if one["kind"] == "update" and one["after"]["n"] > one["before"]["n"]]
    assert [json.loads(line) for line in some.splitlines()] == grown
    assert "before" in said("diff", root, "counts", "latest-3")
    assert said("diff", root, "counts", 5, 5, "--json") == ""
    said("diff", root, "counts", 5, 25, "--output", tmp_path / "d.parquet")
    assert pq.read_table(tmp_path / "d.parquet").to_pylist() == lines


def test_state_in_every_form_and_with_its_history(place: WordLedger, tmp_path: Path) -> None:
    root, expected = place.ledger.root, place.at[20]
    assert {
        row["word"]: row["n"]
        for row in map(json.loads, said("state", root, "counts", "--at", 20, "--json").splitlines())
    } == expected
    for ending in ("json", "csv", "parquet", "arrow"):
        said("state", root, "counts", "--at", 20, "--output", tmp_path / f"rows.{ending}")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert {row["word"]: row["n"] for row in rows} == expected
    assert pa.ipc.open_file(tmp_path / "rows.arrow").read_all().to_pylist() == rows
    assert (tmp_path / "rows.csv").read_text().splitlines()[0] == '"word","n"'
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == len(rows) + 1
    assert [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()] == rows
    assert said("state", root, "counts", "--at", 20, "--format", "csv").startswith('"word","n"\n')
    life = [
        json.loads(line) for line in said("state", root, "counts", "--key", "word1", "--history", "--json").splitlines()
    ]
    assert life
    assert set(life[0]) == {"commit", "at", "kind", "word", "before", "after"}
    for words, code in (
        (("--format", "parquet"), "HS-CLI-095"),
        (("--json", "--format", "csv"), "HS-CLI-095"),
        (("--history",), "HS-CLI-094"),
        (("--at", "nowhere"), "HS-LED-040"),
        (("--output", tmp_path / "none" / "x.csv"), "HS-CLI-069"),
        (("--output", tmp_path / "rows.xyz"), "HS-CLI-095"),
    ):
        with pytest.raises(HailstormError) as error:
            said("state", root, "counts", *words)
        assert error.value.code == code
