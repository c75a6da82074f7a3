"""Vacuum: what is kept is whole, what is not goes, and the number of files follows the tiers and not the ticks."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hailstorm.columns import KIND
from hailstorm.engine.delivery.second_chance import second_chance
from hailstorm.errors import FencedError, LedgerError
from hailstorm.faults import inject
from hailstorm.ledger import vacuum as module
from hailstorm.ledger.commit import DataFile, SinkShape, Stamp, commit_name
from hailstorm.ledger.history_limit import FILE_COSTS, HistoryLimit
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.packs import list_commits
from hailstorm.ledger.pins import Snapshot, pinned
from hailstorm.ledger.runs import run_name, write_rows
from hailstorm.ledger.stores.store import read_table
from hailstorm.ledger.vacuum import Vacuum, would_go
from hailstorm.topology.retention import DEFAULT, read_retention
from tests.unit.simulated import Simulation

pytestmark = pytest.mark.slow

SHORT = read_retention("10 seconds, 1 minute: 5 seconds, rest: 1 minute")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Packs of ten commits, so that few ticks make many of them."""
    for name, value in {"KEEP_LOOSE": 5, "PACK": 10, "MERGE": 3, "SWEEP_SECONDS": 1.0}.items():
        monkeypatch.setattr(module, name, value)
    return Simulation(monkeypatch, SHORT)


def test_a_month_leaves_a_bounded_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Simulation(monkeypatch)
    files = []
    for count, seconds in ((1_000, 2_000.0), (1_000, 57.0), (2_000, 1.0), (3_000, 0.05)):
        for number in range(count):
            place.tick(seconds)
            if number % 200 == 0:
                place.clean()
        place.clean()
        files.append(len(place.store.content))
    assert place.missing() == []
    # Every commit of the last minutes has its run; the other 4,000 of the month have left a few hundred.
    assert place.count("commits") < 40 + module.KEEP_LOOSE + module.PACK
    assert place.count("manifests") <= 13
    assert place.count("outbox") == 0
    place.store.reads = 0
    again = Ledger(place.ledger.root)
    assert again.head == place.ledger.head
    assert place.store.reads < 210, "start-up reads what is new, and not the history"
    place.store.reads = 0
    oldest = next(iter(place.ledger.commits())).commit
    place.store.reads = 0
    assert again.at(oldest) == place.lives[oldest]
    assert place.store.reads < 10
    # A month later, with hardly any ticks, almost everything of it is gone.
    for _ in range(30 * 24):
        place.tick(3_600.0)
    place.clean(whole=True)
    assert len(place.store.content) < 2_500
    assert place.missing() == []


def test_ticks_of_the_last_day_keep_their_clocks(small: Simulation) -> None:
    for _ in range(200):
        small.tick(1.0)
    small.clean(whole=True)
    listing = list_commits(small.store)
    tables = [pq.read_table(small.store.open(f"commits/{a:020d}-{b:020d}.ticks")) for a, b in sorted(listing.ticks)]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["commit"] for row in rows] == list(range(1, listing.packed + 1))
    assert [row["t/0"] for row in rows[1:]] == [small.lives[row["commit"]].clock["t"]["0"] for row in rows[1:]]
    assert len(listing.ticks) < 10
    for _ in range(100):
        small.tick(3_600.0)
    small.clean(whole=True)
    listing = list_commits(small.store)
    first = min(a for a, _ in listing.ticks)
    assert first > 200, "what is older than a day is gone"


def test_a_moment_that_is_gone_names_the_nearest(small: Simulation) -> None:
    for _ in range(300):
        small.tick(1.0)
    small.clean(whole=True)
    kept = [commit.commit for commit in small.ledger.commits()]
    gone = next(number for number in range(100, 200) if number not in kept)
    before, after = max(n for n in kept if n < gone), min(n for n in kept if n > gone)
    with pytest.raises(LedgerError, match=f"commit {gone} is not kept any more") as error:
        small.ledger.at(gone)
    assert f"{before} (2026-01-01" in error.value.hint
    assert f" and {after} (2026-01-01" in error.value.hint
    history = msgspec.json.decode(small.store.get("history.json") or b"")
    assert (history["packed"], history["first"]) == (list_commits(small.store).packed, kept[0])
    assert set(history["sums"]) >= {pack.name for pack in list_commits(small.store).packs}
    with pytest.raises(LedgerError, match="there is no commit 900"):
        small.ledger.at(900)


def test_commits_are_listed_with_the_sums_of_what_they_stand_for(small: Simulation) -> None:
    for _ in range(200):
        small.tick(1.0)
    small.clean(whole=True)
    commits = list(small.ledger.commits())
    assert len(commits) < 60
    assert sum(commit.rows for commit in commits) == 2_000
    for before, commit in itertools.pairwise(commits):
        assert (commit.covers_from, commit.start) == (before.commit + 1, before.end)
    assert list(small.ledger.commits(after=150)) == [commit for commit in commits if commit.commit > 150]
    kept = {commit.commit: commit for commit in commits}
    assert all(small.ledger.read_commit(number) == kept.get(number) for number in range(1, 210))


def test_an_old_snapshot_and_a_reader_hold_their_commits(small: Simulation) -> None:
    for _ in range(20):
        small.tick(1.0)
    small.store.put("snapshots/before.json", msgspec.json.encode(Snapshot(7)))
    with pinned(small.store, 12):
        for _ in range(300):
            small.tick(1.0)
        small.clean(whole=True)
        for number in (7, 12):
            live = small.ledger.at(number)
            assert live == small.lives[number]
            assert all(small.store.exists(run_name("counts", run.id)) for run in live.runs["counts"])
    small.tick(1.0)
    for _ in range(20):
        small.tick(1.0)
    small.clean(whole=True)
    assert small.ledger.at(7) == small.lives[7]
    with pytest.raises(LedgerError, match="not kept"):
        small.ledger.at(12)


def test_a_reader_that_pins_while_we_write_keeps_what_it_found(
    small: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(150):
        small.tick(1.0)
    real, held = module.write_pack, []

    def pin_meanwhile(*arguments: object) -> bool:
        if not held:
            held.append(pinned(small.store, 42))
            held[0].__enter__()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_pack", pin_meanwhile)
    small.clean(whole=True)
    live = small.ledger.at(42)
    assert live == small.lives[42]
    assert all(small.store.exists(run_name("counts", run.id)) for run in live.runs["counts"])


def test_sinks_that_are_behind_keep_their_outboxes_and_commits(small: Simulation) -> None:
    small.sinks = ("board", "slow", "slower")
    for _ in range(200):
        small.tick(1.0, delivered=False)
    small.deliver("board")
    small.deliver("slow", 150)
    small.deliver("slower", 60)
    small.clean(whole=True)
    assert small.count("outbox/board") == 0
    assert small.count("outbox/slow") == 51
    assert small.count("outbox/slower") == 141
    for number in range(61, 202):
        commit = small.ledger.read_commit(number)
        assert commit is not None, number
        assert set(commit.outbox) == ({"slow", "slower"} if number > 150 else {"slower"}) or number > 190
    small.deliver("slow")
    small.deliver("slower")
    small.clean(whole=True)
    for _ in range(10):
        small.tick(60.0)
    small.clean(whole=True)
    assert small.count("outbox") == 0
    assert small.ledger.head.outboxes == dict.fromkeys(small.sinks, small.ledger.head.commit)
    assert small.missing() == []


def test_a_commit_that_waits_keeps_its_outbox_also_when_those_before_it_go(small: Simulation) -> None:
    """A compaction, or a tick without rows for this sink, has nothing that waits, and is squashed into the next."""
    for number in range(120):
        small.sinks = ("board",) if number % 3 == 0 else ()
        small.tick(1.0, delivered=False)
    given = [file for live in small.lives if (one := small.ledger.read_commit(live)) for file in one.outbox.values()]
    assert len(given) == 40
    small.clean(whole=True)
    kept = [file for commit in small.ledger.commits() for file in commit.outbox.values()]
    assert kept == given
    assert len(list(small.ledger.commits())) < 100, "others are gone"
    assert small.missing() == []


def test_an_outbox_stays_from_the_first_open_dead_letter_of_its_sink_on(small: Simulation) -> None:
    for _ in range(20):
        small.tick(1.0)
    small.store.put(f"rejected/board/{10:020d}.parquet", b"")
    small.clean(whole=True)
    assert small.count("outbox/board") == 11
    small.commit(retried_rejects={"board": 10})
    small.clean(whole=True)
    assert small.count("outbox/board") == 0
    for _ in range(3):
        small.tick(1.0)
        small.clean(whole=True)
    assert small.count("rejected") == 0


def test_a_letter_of_a_stream_or_from_before_the_whole_table_keeps_no_outboxes(small: Simulation) -> None:
    for _ in range(10):
        small.tick(1.0)
    small.store.put(f"rejected/board/{5:020d}.parquet", b"")
    small.clean(whole=True)
    assert small.count("outbox/board") == 6
    small.commit(sinks={"board": SinkShape(since=0, is_table=False, fingerprint="f")})
    small.clean(whole=True)
    assert small.count("outbox/board") == 0, "its row is in the letter"
    small.commit(sinks={"board": SinkShape(since=0, is_table=True, fingerprint="f")})
    for _ in range(10):
        small.tick(1.0)
    small.clean(whole=True)
    assert small.count("outbox/board") == 10
    small.commit(whole={"board": "joined"})
    small.clean(whole=True)
    assert small.count("outbox/board") == 0, "it is out of date"
    assert small.count("rejected/board") == 1, "and stays, until somebody has seen it"


@pytest.mark.parametrize("ticks", [0, 40], ids=["single commits", "packs"])
def test_a_retry_after_cleaning_up_knows_which_keys_have_changed_since(small: Simulation, ticks: int) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])

    def tick_with(key: str, n: int) -> pa.Table:
        rows = pa.table({KIND: ["insert"], "k": [key], "n": pa.array([n], pa.int64())})
        file = write_rows(small.store, "outbox/board", rows, small.ledger.stamp)
        small.tick(1.0, outbox={"board": (file,)})
        return rows

    for key, n in [("a", 1), ("b", 2)]:
        rows = tick_with(key, n)
        small.ledger.store_rejected("board", small.ledger.head.commit, [("too small", b"{}")], rows)
    tick_with("a", 3)
    for number in range(ticks):
        tick_with("c", number)
    small.clean(whole=True)
    assert (list_commits(small.store).packed > 5) == bool(ticks)
    found = second_chance(small.ledger, {"board": (schema, ("k",))})
    assert (found.rows, found.outdated) == (1, 1), "the target has a newer row of a"
    (file,) = found.outbox["board"]
    assert read_table(small.store, file.path).column("k").to_pylist() == ["b"]


def test_files_that_no_commit_names_go_and_files_in_flight_stay(small: Simulation) -> None:
    small.tick(1.0)
    epoch, head = small.ledger.epoch, small.ledger.head.commit
    names = {
        "failed": run_name("counts", Stamp(head, epoch).new_name()),
        "killed": run_name("counts", Stamp(head + 1, epoch - 1).new_name()),
        "letters": f"errors/{Stamp(head, epoch).new_name()}.parquet",
        "foreign": "state/counts/notes.txt",
    }
    for name in names.values():
        small.store.put(name, b"")
    small.time += module.GRACE_SECONDS + 1
    in_flight = [
        run_name("counts", Stamp(head + 1, epoch).new_name()),
        run_name("counts", Stamp(head, epoch).new_name()),  # merged, and to be committed soon
    ]
    for name in in_flight:
        small.store.put(name, b"")
    small.clean(whole=True)
    assert {what for what, name in names.items() if small.store.exists(name)} == {"foreign"}
    assert all(small.store.exists(name) for name in in_flight)
    assert small.missing() == []


def test_dead_letters_that_were_not_retried_stay(small: Simulation) -> None:
    letters = [DataFile(path=f"errors/{Stamp(n, 1).new_name()}.parquet", rows=1, bytes=1) for n in (3, 4)]
    for file in letters:
        small.store.put(file.path, b"")
    small.tick(1.0, dead_letters=(letters[0],))
    small.tick(1.0, dead_letters=(letters[1],))
    for _ in range(20):
        small.tick(1.0)
    small.commit(retried=(letters[0].path,))
    for _ in range(300):
        small.tick(10.0)
    small.clean(whole=True)
    assert small.store.exists(letters[1].path)
    kept = [small.ledger.at(commit.commit) for commit in small.ledger.commits()]
    assert small.store.exists(letters[0].path) == any(letters[0] in live.dead_letters for live in kept)


def test_a_zombie_is_fenced_although_its_commit_is_packed(small: Simulation) -> None:
    for _ in range(10):
        small.tick(1.0)
    zombie = Ledger(small.ledger.root)
    for _ in range(100):
        small.tick(1.0)
    small.clean(whole=True)
    assert not small.store.exists(commit_name(zombie.head.commit + 1))
    with pytest.raises(FencedError, match="another driver"):
        zombie.commit(next_commit(zombie.head, "tick", zombie.epoch, datetime(2026, 1, 1, tzinfo=UTC)))
    assert not small.store.exists(commit_name(zombie.head.commit + 1)), "it leaves nothing behind"
    assert Ledger(small.ledger.root).head == small.ledger.head


def test_a_commit_that_is_missing_is_an_error_and_not_the_end(small: Simulation) -> None:
    for _ in range(8):
        small.tick(1.0)
    small.store.delete(commit_name(4))
    with pytest.raises(LedgerError, match=r"0004\.json is missing"):
        Ledger(small.ledger.root)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("point", ["during-packing", "during-vacuum"])
def test_a_crash_at_any_point_leaves_a_ledger_that_is_right(small: Simulation, point: str, seed: int) -> None:
    chance = random.Random(seed)
    small.sinks = ("board", "slow")
    small.store.put("snapshots/old.json", msgspec.json.encode(Snapshot(9)))
    for _ in range(15):
        for _ in range(chance.randrange(1, 25)):
            small.tick(chance.choice([0.1, 1.0, 20.0]), delivered=chance.random() < 0.5)
        if chance.random() < 0.6:
            try:
                with inject(point, RuntimeError("killed")):
                    small.clean(whole=chance.random() < 0.5)
            except RuntimeError:
                small.vacuum = Vacuum(small.ledger, SHORT, now=lambda: small.time)
        else:
            small.clean()
        assert Ledger(small.ledger.root).head == small.ledger.head
        assert small.missing() == []
        assert small.ledger.at(9) == small.lives[9] if small.ledger.head.commit > 9 else True
    small.clean(whole=True)
    listing = list_commits(small.store)
    assert listing.replaced == ()


def test_a_dry_run_says_what_a_vacuum_does(small: Simulation) -> None:
    for _ in range(100):
        small.tick(1.0)
    before = set(small.store.content)
    names, commits = would_go(small.ledger, SHORT, small.time)
    assert set(small.store.content) == before
    small.clean(whole=True)
    gone = {name for name in before - set(small.store.content) if name.startswith(("state/", "outbox/"))}
    assert gone == names
    assert small.vacuum.cleared.commits == commits


def test_history_stays_below_its_limit_and_reaches_as_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full load, one tick per second for two hours: tiers alone would keep thousands of runs."""
    place = Simulation(monkeypatch, limit=400 * FILE_COSTS)
    most = 0
    for number in range(2 * 3_600):
        place.tick(1.0)
        if number % 20 == 0:
            place.clean()
        if number % 60 == 0 and number > 1_800:
            most = max(most, place.count("state"))
    assert 200 < most < 600
    assert place.missing() == []
    kept = list(place.ledger.commits())
    assert kept[0].now < kept[-1].now - 3_600 * 1_000_000, "there is still something from an hour ago"
    # With less to do there is room again, and everything young is kept.
    for _ in range(100):
        place.tick(600.0)
        place.clean()
    young = [place.tick(1.0) or place.ledger.head.commit for _ in range(50)]
    place.clean(whole=True)
    assert [commit.commit for commit in place.ledger.commits(after=young[0] - 1)] == young


def test_a_state_that_is_larger_than_the_limit_may_have_a_history_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Simulation(monkeypatch)
    limit = HistoryLimit(DEFAULT, 10)
    for _ in range(20):
        place.tick(1.0)
    runs = tuple(msgspec.structs.replace(run, bytes=20 * FILE_COSTS) for run in place.ledger.head.runs["counts"])
    limit.look(place.store, msgspec.structs.replace(place.ledger.head, runs={"counts": runs}), 0.0)
    assert limit.halvings == 0
    limit.look(place.store, place.ledger.head, 1.0)
    assert limit.halvings == 0, "it looks once per minute"
    limit.look(place.store, place.ledger.head, 61.0)
    assert limit.halvings == 1


def test_all_keeps_everything_and_packs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACK", 10)
    monkeypatch.setattr(module, "KEEP_LOOSE", 5)
    place = Simulation(monkeypatch, read_retention("all"))
    for _ in range(100):
        place.tick(3_600.0)
    place.clean(whole=True)
    assert len(list(place.ledger.commits())) == 101
    assert place.missing() == []
    assert place.count("outbox") == 100
    assert place.count("commits") < 40
