"""States at earlier commits as Delta tables: version 42 is commit 42, for every kept commit, and for no other."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm import faults
from hailstorm.errors import LedgerError
from hailstorm.history.opened import open_ledger
from hailstorm.ledger import compaction, vacuum
from hailstorm.ledger.commit import Stamp, StateChange, StepShape
from hailstorm.ledger.lease import turn
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.renaming import move_published
from hailstorm.ledger.runs import write_run
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import read_retention
from tests.length import examples
from tests.unit.test_publishing import SHAPE, Place, Rows, read

TIERS = read_retention("1 second, 1 minute: 5 seconds, rest: 1 minute")


def at(root: Path, commit: int) -> Rows:
    """What a Delta reader sees of the commit."""
    found = open_ledger(root).delta("counts", commit)
    assert found.version == commit
    return read(Path(found.address), found.version)


def there(root: Path) -> set[int]:
    return {int(path.name[:20]) for path in (root / "moments/counts/_delta_log").glob("*.json")}


def unlike(root: Path) -> list[int]:
    """The kept commits, from the first with rows on, whose version is another state than the ledger's own."""
    ledger = open_ledger(root)
    wrong = []
    for commit in ledger.commits():
        state = ledger.state("counts", commit.commit)
        if state.live.runs.get("counts"):
            rows = state.arrow()
            wanted = rows.sort_by("k").to_pylist() if rows.num_rows else []
            if at(root, commit.commit) != wanted:
                wrong.append(commit.commit)
    return wrong


def cleaned(place: Place, later: float = 0.0) -> None:
    """All that vacuum has to do, so many seconds from now."""
    work = Vacuum(place.ledger, TIERS, now=lambda: time.time() + later)
    while work.work(whole=True):
        pass


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ledger", seed=1)


@pytest.mark.slow
@settings(max_examples=examples(6, 40), deadline=None)
@given(
    st.lists(
        st.sampled_from(["tick"] * 8 + ["compact", "publish", "restart", "rewind", "snapshot", "ask", "clean", "torn"]),
        min_size=10,
        max_size=50,
    ),
    st.integers(0, 2**32),
)
def test_the_version_of_every_kept_commit_is_its_state_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, history: list[str], seed: int
) -> None:
    place, chance, later = Place(tmp_path_factory.mktemp("ledger") / "ledger", seed), random.Random(seed), 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "FAN_IN", 3)
        patch.setattr(vacuum, "KEEP_LOOSE", 2)
        for event in ["tick", *history]:
            kept = [commit.commit for commit in place.ledger.commits() if commit.commit > 1]
            match event:
                case "snapshot":
                    open_ledger(place.root).snapshot(
                        f"s{place.ledger.head.commit}-{chance.random()}", chance.choice(kept or [1])
                    )
                case "ask":
                    for commit in chance.sample(kept, min(3, len(kept))):
                        at(place.root, commit)
                case "torn":
                    with faults.inject("during-publishing", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
                        place.tick()
                        at(place.root, place.ledger.head.commit)
                case "clean":
                    later += chance.choice([0, 3, 90])
                    cleaned(place, later)
                case "rewind":
                    _rewound(place, chance.choice([commit for commit in kept if commit > 1] or [2]))
                case _:
                    getattr(place, event)()
    assert unlike(place.root) == []
    cleaned(place, later)
    kept = [commit.commit for commit in place.ledger.commits()]
    assert there(place.root) <= set(kept)
    assert unlike(place.root) == []


def _rewound(place: Place, to: int) -> None:
    place.chance = _Chosen(place.chance, to)
    place.rewind()
    place.chance = place.chance.other


class _Chosen(random.Random):
    """Chance that gives one number."""

    def __init__(self, other: random.Random, number: int) -> None:
        self.other, self.number = other, number
        super().__init__(0)

    def randint(self, a: int, b: int) -> int:
        return self.number


def test_a_commit_that_nobody_asked_for_has_no_version_and_is_not_another(place: Place) -> None:
    for _ in range(5):
        place.tick()
    at(place.root, 3)
    at(place.root, 5)
    for number in (1, 2, 4, 6, 7):
        with pytest.raises(Exception, match=r"version|log segment"):
            DeltaTable(str(place.root / "moments/counts"), version=number)


def test_versions_share_the_files_of_their_runs_and_nothing_is_copied(place: Place) -> None:
    for _ in range(4):
        place.tick()
    for number in (3, 4, 5):
        at(place.root, number)
    runs = place.ledger.head.runs["counts"]
    folder = place.root / "moments/counts"
    assert {path.stem for path in folder.glob("*.parquet")} == {run.id for run in runs}
    assert all((folder / f"{run.id}.parquet").samefile(place.root / f"state/counts/{run.id}.parquet") for run in runs)
    assert len(list(folder.glob("*.bin"))) <= 3


def test_a_version_goes_with_its_commit_and_its_files_with_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "KEEP_LOOSE", 1)
    for _ in range(6):
        place.tick()
    for number in range(2, 8):
        at(place.root, number)
    open_ledger(place.root).snapshot("monday", 3)
    wanted = at(place.root, 3)
    cleaned(place, later=100.0)
    kept = {commit.commit for commit in place.ledger.commits()}
    assert 3 in kept
    assert 4 not in kept
    assert there(place.root) == {number for number in range(2, 8) if number in kept}
    assert read(place.root / "moments/counts", 3) == wanted
    with pytest.raises(LedgerError, match="HS-LED"):
        open_ledger(place.root).delta("counts", 4)
    open_ledger(place.root).release("monday")
    place.tick()
    place.compact()
    place.tick()
    place.tick()
    cleaned(place, later=10_000.0)
    assert 3 not in there(place.root)
    needed = {run.id for number in there(place.root) for run in place.ledger.at(number).runs["counts"]}
    assert {path.stem for path in (place.root / "moments/counts").glob("*.parquet")} == needed


@pytest.mark.parametrize("damage", ["a run", "vectors", "the entry", "the checkpoint", "torn", "all"])
def test_a_version_that_is_not_whole_any_more_is_an_error_and_is_made_again(place: Place, damage: str) -> None:
    for _ in range(5):
        place.tick()
    wanted, folder = at(place.root, 4), place.root / "moments/counts"
    checkpoint = folder / "_delta_log/00000000000000000004.checkpoint.parquet"
    match damage:
        case "a run":
            sorted(folder.glob("*.parquet"))[0].unlink()
        case "vectors":
            next(folder.glob("*.bin")).unlink()
        case "the entry":
            (folder / "_delta_log/00000000000000000004.json").unlink()
        case "the checkpoint":
            checkpoint.unlink()
        case "torn":
            checkpoint.write_bytes(checkpoint.read_bytes()[:100])
        case "all":
            shutil.rmtree(folder)
    if damage in ("the entry", "the checkpoint"):  # either one alone says all of it
        assert read(folder, 4) == wanted
    else:
        with pytest.raises(Exception):  # noqa: B017 - whatever a reader says: it is no rows, and not fewer of them
            read(folder, 4)
    assert at(place.root, 4) == wanted


def test_a_version_from_before_a_backup_was_brought_back_is_not_believed(place: Place, tmp_path: Path) -> None:
    place.tick()
    place.tick()
    backup = tmp_path / "backup"
    shutil.copytree(place.root, backup)
    place.tick()
    before = at(place.root, 4)
    shutil.copytree(place.root / "moments", backup / "moments")
    other = Place.__new__(Place)
    other.root, other.chance, other.oracle = backup, random.Random(77), dict(place.oracle)
    other.restart()
    other.tick()
    other.tick()
    cleaned(other)
    with pytest.raises(Exception, match=r"version|log segment"):
        read(backup / "moments/counts", 4)
    assert unlike(backup) == []
    assert at(backup, 4) != before


def test_an_asker_waits_for_who_cleans_up_also_in_its_own_process(place: Place) -> None:
    place.tick()
    found: list[Rows] = []
    asker = threading.Thread(target=lambda: found.append(at(place.root, 2)))
    with turn(place.ledger.store) as ours:
        assert ours
        with turn(place.ledger.store) as mine:
            assert not mine
        asker.start()
        asker.join(0.3)
        assert found == []
    asker.join()
    assert found == [place.state()]


def test_a_state_without_rows_has_the_types_of_now_and_without_any_it_is_refused(place: Place) -> None:
    with pytest.raises(LedgerError, match="HS-LED-056"):
        at(place.root, 1)
    place.tick()
    assert at(place.root, 1) == []


def test_a_wider_type_since_is_none_of_an_earlier_commit(place: Place) -> None:
    place.tick(pa.int32())
    place.tick(pa.int64())
    place.tick(pa.int64())
    assert unlike(place.root) == []
    types = [
        [str(field.type) for field in DeltaTable(str(place.root / "moments/counts"), version=n).schema().fields]
        for n in (2, 4)
    ]
    assert types == [
        ['PrimitiveType("string")', 'PrimitiveType("integer")'],
        ['PrimitiveType("string")', 'PrimitiveType("long")'],
    ]


def test_columns_that_delta_cannot_hold_are_refused(place: Place) -> None:
    shape = StepShape(kind="fold", key=("k",), values=("a b",), fingerprint="")
    table = pa.table({"_hash": [1], "k": ["a"], "a b": [1], "_deleted": [False]})
    run = write_run(place.ledger.store, "odd", table, Stamp(2, 1))
    place._commit(steps={"counts": SHAPE, "odd": shape}, state={"odd": StateChange(added=(run,))})
    with pytest.raises(LedgerError, match="HS-LED-057"):
        open_ledger(place.root).delta("odd")


def test_a_value_that_no_run_has_is_refused_while_nobody_knows_its_type(place: Place) -> None:
    place.tick()
    place._commit(steps={"counts": StepShape(kind="fold", key=("k",), values=("n", "new"), fingerprint="")})
    with pytest.raises(LedgerError, match="HS-LED-056"):
        at(place.root, 3)


def test_history_shows_the_times_of_the_commits(place: Place) -> None:
    for _ in range(3):
        place.tick()
    for number in (4, 2):
        at(place.root, number)
    told_of = DeltaTable(str(place.root / "moments/counts")).history()
    history = {one["hailstormCommit"]: one for one in told_of}  # deltalake numbers them as if there were no gaps
    assert history.keys() == {2, 4}
    for number, told in history.items():
        made = datetime.fromisoformat(place.ledger.at(number).at)
        assert abs(told["timestamp"] - made.timestamp() * 1000) <= 1
        assert made <= datetime.now(UTC)


def test_a_rename_lets_them_go_because_a_name_may_be_another_steps_by_now(place: Place) -> None:
    place.tick()
    at(place.root, 2)
    move_published(place.ledger.store, {"totals": "counts"})
    assert there(place.root) == set()


def test_a_ledger_that_was_open_while_a_key_was_erased_counts_rows_as_they_are_now(place: Place) -> None:
    for _ in range(6):
        place.tick()
    number = place.ledger.head.commit
    reader = open_ledger(place.root)
    reader.delta("counts", number)
    key = place.state()[0]["k"]
    # In another process: that of the reader keeps open what it has opened.
    code = f"import hailstorm as hs; hs.open_ledger({str(place.root)!r}).erase('counts', k={key!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not (place.root / "moments").exists()
    found = reader.delta("counts", number)
    assert read(Path(found.address), number) == [row for row in place.state() if row["k"] != key]


def names(value: Any) -> list[str]:
    return sorted(str(one) for one in value)


def test_a_ledger_that_only_was_asked_is_as_it_was(place: Place) -> None:
    for _ in range(3):
        place.tick()
    before = names(path for path in place.root.rglob("*") if ".cache" not in path.parts)
    at(place.root, 3)
    after = names(path for path in place.root.rglob("*") if not {".cache", "moments"}.intersection(path.parts))
    assert after == before
    assert Ledger(place.root).head == place.ledger.head
