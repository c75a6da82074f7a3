"""Published tables: what a Delta reader sees is the state at a commit, whatever happened on the way there."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm import faults
from hailstorm.ledger import compaction
from hailstorm.ledger.commit import Stamp, StateChange, StepShape
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.delta import publishing
from hailstorm.ledger.delta.publishing import Publisher
from hailstorm.ledger.delta.types import delta_features, delta_schema
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.restoring import restored
from hailstorm.ledger.runs import write_run
from tests.length import examples

KEYS = 40
SHAPE = StepShape(kind="fold", key=("k",), values=("n",), fingerprint="")
Rows = list[dict[str, Any]]


class Place:
    """A ledger with one fold, whose commits come from a generator of chance."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.ledger = Ledger(root, create=True)
        self.publisher = Publisher(self.ledger)
        self.oracle: dict[str, int] = {}
        self._commit(steps={"counts": SHAPE})

    @property
    def folder(self) -> Path:
        return self.root / "delta/counts"

    def tick(self, type_: pa.DataType | None = None) -> None:
        changed = self.chance.sample(range(KEYS), self.chance.randint(1, 12))
        rows = {f"k{key}": (self.chance.randint(0, 99), self.chance.random() < 0.3) for key in changed}
        for key, (n, deleted) in rows.items():
            self.oracle.pop(key, None)
            if not deleted:
                self.oracle[key] = n
        seq, runs = self.ledger.head.commit + 1, []
        for part in (0, 1):  # as two tasks write; three keys share a hash
            mine = sorted((int(key[1:]) // 3, key, *row) for key, row in rows.items() if int(key[1:]) % 2 == part)
            if mine:
                hashes, keys, ns, deleted_ = zip(*mine, strict=True)
                columns = {"_hash": hashes, "k": keys, "n": pa.array(ns, type_ or pa.int64()), "_deleted": deleted_}
                runs.append(write_run(self.ledger.store, "counts", pa.table(columns), Stamp(seq, 1)))
        self._commit(state={"counts": StateChange(added=tuple(runs))})

    def compact(self) -> None:
        change = compact(
            self.ledger.store, self.ledger.cache, "counts", ["k"], self.ledger.head.runs["counts"], Stamp(99, 1)
        )
        if change is not None:
            self._commit(state={"counts": change})

    def rewind(self) -> None:
        """To any moment that has rows."""
        then = self.ledger.at(self.chance.randint(2, self.ledger.head.commit))
        stamp, now = Stamp(self.ledger.head.commit + 1, 1), datetime.now(UTC)
        self._commit(**restored(self.ledger.store, self.ledger.head, then, stamp, now))
        self.oracle = {
            row["k"]: row["n"] for row in open_ledger(self.root).state("counts", then.commit).arrow().to_pylist()
        }

    def restart(self) -> None:
        self.ledger = Ledger(self.root)
        self.publisher = Publisher(self.ledger)

    def publish(self) -> None:
        self.publisher.publish(self.ledger.head)

    def published(self, version: int | None = None) -> Rows:
        return read(self.folder, version)

    def state(self) -> Rows:
        return [{"k": key, "n": n} for key, n in sorted(self.oracle.items())]

    def _commit(self, **parts: Any) -> None:
        self.ledger.commit(next_commit(self.ledger.head, "tick", 1, datetime.now(UTC), **parts))


def read(folder: Path, version: int | None = None) -> Rows:
    table = DeltaTable(str(folder), version=version)
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t ORDER BY k").read_all()).to_pylist()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ledger", seed=1)


@pytest.mark.slow
@settings(max_examples=examples(10, 25), deadline=None)
@given(
    st.lists(
        st.sampled_from(["tick"] * 6 + ["compact", "publish", "publish", "restart", "rewind", "torn"]), max_size=60
    ),
    st.integers(0, 2**32),
    st.sampled_from([4, 1_000_000]),
)
def test_a_table_shows_the_state_of_its_commit_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, history: list[str], seed: int, largest: int
) -> None:
    place = Place(tmp_path_factory.mktemp("ledger") / "ledger", seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "FAN_IN", 3)
        patch.setattr(compaction, "LARGEST_RUN", largest)
        patch.setattr(publishing, "CHECKPOINT_EVERY", 3)
        patch.setattr(publishing, "KEEP_SECONDS", 0.0)
        for event in ["tick", *history]:
            if event == "torn":  # killed before the version was written, and started again
                with faults.inject("during-publishing", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
                    place.tick()
                    place.publish()
                place.restart()
            else:
                getattr(place, event)()
            if event == "publish":
                assert place.published() == place.state()
        place.publish()
    assert place.published() == place.state()
    assert open_ledger(place.root).state("counts").arrow().sort_by("k").to_pylist() == place.state()


def test_nothing_is_copied_and_every_version_names_its_commit(place: Place) -> None:
    for _ in range(3):
        place.tick()
        place.publish()
    runs = place.ledger.head.runs["counts"]
    assert {path.stem for path in place.folder.glob("*.parquet")} == {run.id for run in runs}
    for run in runs:
        assert (place.folder / f"{run.id}.parquet").samefile(place.root / f"state/counts/{run.id}.parquet")
    assert DeltaTable(str(place.folder)).transaction_version("hailstorm") == place.ledger.head.commit
    last = DeltaTable(str(place.folder)).history(1)[0]
    assert last["hailstormCommit"] == place.ledger.head.commit


@pytest.mark.slow
def test_older_versions_can_be_read_until_their_files_go(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for _ in range(30):
        place.tick()
        place.publish()
        seen.append(place.state())
    assert [place.published(version) for version in range(30)] == seen
    kept = len(list(place.folder.rglob("*.*")))
    monkeypatch.setattr(publishing, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(publishing, "CHECKPOINT_EVERY", 3)
    for _ in range(3):
        place.tick()
        place.publish()
    assert len(list(place.folder.rglob("*.*"))) < kept
    assert place.published() == place.state()


def test_nothing_new_is_no_new_version(place: Place) -> None:
    place.tick()
    place.publish()
    place.publish()
    assert DeltaTable(str(place.folder)).version() == 0


def test_a_publisher_goes_on_where_the_last_one_stopped(place: Place) -> None:
    place.tick()
    place.publish()
    place.restart()
    place.tick()
    place.publish()
    assert DeltaTable(str(place.folder)).version() == 1
    assert place.published() == place.state()


def test_a_folder_that_is_deleted_while_we_run_comes_back_whole(place: Place) -> None:
    for _ in range(3):
        place.tick()
        place.publish()
    shutil.rmtree(place.folder)
    place.publish()
    assert place.published() == place.state()


def test_a_driver_that_was_overtaken_leaves_the_table_alone(place: Place) -> None:
    place.tick()
    place.publish()
    old, before = Publisher(place.ledger), place.ledger.head
    old.publish(before)
    for _ in range(2):
        place.tick()
        place.publish()
    for _ in range(2):
        old.publish(before)
        assert place.published() == place.state()
    Publisher(place.ledger).publish(before)  # it wakes up before its first publication, and takes us for a backup
    place.tick()
    place.publish()
    assert place.published() == place.state()


def test_a_value_that_no_run_has_yet_is_waited_for(place: Place) -> None:
    place.tick()
    place.publish()
    live = place.ledger.head
    shape = StepShape(kind="fold", key=("k",), values=("n", "new"), fingerprint="")
    place.publisher.publish(msgspec.structs.replace(live, steps={"counts": shape}, commit=live.commit + 1))
    assert place.published() == place.state()


@pytest.mark.parametrize("damage", ["log", "vectors", "all", "another writer"])
def test_a_table_that_is_not_as_we_left_it_is_made_anew(place: Place, damage: str) -> None:
    for _ in range(3):
        place.tick()
        place.publish()
    match damage:
        case "log":
            (place.folder / "_delta_log/00000000000000000001.json").write_text("torn")
        case "vectors":
            for path in place.folder.glob("*.bin"):
                path.write_bytes(path.read_bytes()[:-1])
        case "all":
            shutil.rmtree(place.folder)
        case "another writer":
            log = place.folder / "_delta_log"
            shutil.copy(log / "00000000000000000002.json", log / "00000000000000000003.json")
    if damage == "another writer":  # found out while we run, and not at the start
        place.tick()
        place.publish()
    else:
        place.restart()
    place.tick()
    place.publish()
    assert place.published() == place.state()


def test_a_ledger_from_a_backup_is_published_as_it_is(place: Place, tmp_path: Path) -> None:
    place.tick()
    backup = tmp_path / "backup"
    shutil.copytree(place.root, backup)
    place.tick()
    place.publish()
    shutil.copytree(place.root / "delta", backup / "delta")
    ledger = Ledger(backup)
    Publisher(ledger).publish(ledger.head)
    expected = open_ledger(backup).state("counts").arrow().sort_by("k").to_pylist()
    assert read(backup / "delta/counts") == expected != place.state()


def test_a_wider_type_makes_copies_of_what_does_not_fit(place: Place) -> None:
    place.tick(pa.int32())
    place.publish()
    place.tick(pa.int64())
    place.publish()
    assert place.published() == place.state()
    assert [str(field.type) for field in DeltaTable(str(place.folder)).schema().fields] == [
        'PrimitiveType("string")',
        'PrimitiveType("long")',
    ]


def test_a_top_shows_its_ranks_and_not_who_waits_below(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    shape = StepShape(kind="top", key=("k",), values=("n", "rank"), waits="rank", order=("rank",))
    rows = {"_hash": [1, 2, 3], "k": ["a", "b", "c"], "n": [9, 5, 1], "rank": pa.array([1, 2, None], pa.int32())}
    run = write_run(ledger.store, "top", pa.table({**rows, "_deleted": [False] * 3}), Stamp(1, 1))
    change = StateChange(added=(run,))
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), steps={"top": shape}, state={"top": change}))
    Publisher(ledger).publish(ledger.head)
    assert read(tmp_path / "ledger/delta/top") == [{"k": "a", "n": 9, "rank": 1}, {"k": "b", "n": 5, "rank": 2}]


def test_types_of_columns_are_deltas() -> None:
    nested = pa.struct({"a": pa.list_(pa.timestamp("us")), "b": pa.map_(pa.string(), pa.decimal128(10, 2))})
    columns = pa.schema({"x": nested, "y": pa.int8(), "z": pa.timestamp("us", tz="UTC")})
    described = json.loads(delta_schema(columns) or "")
    assert [field["type"] for field in described["fields"][1:]] == ["byte", "timestamp"]
    assert [field["type"] for field in described["fields"][0]["type"]["fields"]] == [
        {"type": "array", "elementType": "timestamp_ntz", "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": "decimal(10,2)", "valueContainsNull": True},
    ]
    assert delta_features(columns) == ["timestampNtz"]


@pytest.mark.parametrize(
    "columns", [{"a b": pa.int64()}, {"N": pa.int64(), "n": pa.int64()}, {"x": pa.time64("us")}, {"x": pa.uint8()}]
)
def test_columns_that_delta_cannot_hold_have_no_table(columns: dict[str, pa.DataType]) -> None:
    assert delta_schema(pa.schema(columns)) is None
