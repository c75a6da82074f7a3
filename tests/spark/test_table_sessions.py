"""Sessions of tables against plain Python that replays the ticks: rows come, move and go."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.ledger.cache import RunCache, cache_of_this_machine
from hailstorm.ledger.runs import merge_runs
from hailstorm.testing import Driver
from tests.length import only_long, seeds
from tests.spark.longest import Longest

START = datetime(2026, 1, 1, tzinfo=UTC)
GAP, LATENESS = 30, 20

Session = tuple[str, int, int]
Total = tuple[int, int, int]


class Record(NamedTuple):
    """What a user was last seen doing: where, how much, when. Without a place the user is gone."""

    user: str
    place: str | None
    n: int
    at: int


def visits(by: str | None = "place", own: bool = False, **options: Any) -> hs.Topology:
    storm = hs.Topology("visits")
    users = storm.table(
        "users",
        hs.Log("x"),
        schema="user STRING, place STRING, n INT, at TIMESTAMP",
        key="user",
        deletes="place IS NULL",
        event_time="at",
        lateness=f"{LATENESS} seconds",
    )
    more: dict[str, Any] = {"longest": Longest("n")} if own else {}
    sessions = users.session(f"{GAP} seconds", **options)
    table = sessions.fold("visits", by=by, n=hs.count(), s=hs.sum("n"), least=hs.min("n"), **more)
    table.fold("below", n=hs.sum("n"), sessions=hs.count())
    assert table.late.name == "visits.late"
    return storm


def as_json(records: Iterable[Record]) -> list[dict[str, object]]:
    return [{**r._asdict(), "at": (START + timedelta(seconds=r.at)).isoformat()} for r in records]


def seconds(time: datetime) -> int:
    return round((time - START).total_seconds())


def drawn(chance: random.Random, count: int) -> list[Record]:
    """Few users, who are seen again and again: mostly later than before, sometimes as late as records can be."""
    records = []
    for number in range(count):
        at = max(0, 7 * number + chance.choice([0, 0, 5, -10, -25, -40, -90]))
        place = chance.choice(["x", "x", "y", None]) if chance.random() < 0.9 else None
        records.append(Record(chance.choice("abcdefgh"), place, chance.randint(1, 5), at))
    return records


@dataclass
class Replayed:
    """The sessions after some ticks. A session that can change no more is frozen."""

    accepts: int
    newest: dict[str, Record] = field(default_factory=dict)
    members: dict[tuple[str, str], Record] = field(default_factory=dict)  # by place and user
    frozen: dict[Session, Total] = field(default_factory=dict)
    late: list[Record] = field(default_factory=list)
    watermark: int | None = None

    def tick(self, records: Iterable[Record]) -> None:
        before = dict(self.newest)
        for record in records:
            if record.user not in self.newest or record.at >= self.newest[record.user].at:
                self.newest[record.user] = record
        self.close()
        for user, record in self.newest.items():
            if record == before.get(user):
                continue
            if user in before and before[user].place is not None:
                self.members.pop((before[user].place or "", user), None)
            if record.place is None:
                continue
            if self.watermark is not None and record.at + GAP + self.accepts <= self.watermark:
                self.late.append(record)
            else:
                self.members[record.place, user] = record
        highest = max((record.at for record in records), default=0) - LATENESS
        self.watermark = highest if self.watermark is None else max(self.watermark, highest)

    def close(self) -> None:
        for session, members in self.open().items():
            if self.watermark is not None and session[2] + self.accepts <= self.watermark:
                self.frozen[session] = total(members)
                for record in members:
                    del self.members[session[0], record.user]

    def open(self) -> dict[Session, list[Record]]:
        found: dict[Session, list[Record]] = {}
        for place in {place for place, _ in self.members}:
            mine = sorted((r for (here, _), r in self.members.items() if here == place), key=lambda r: r.at)
            session = [mine[0]]
            for record in mine[1:]:
                if record.at - session[-1].at >= GAP:
                    found[place, session[0].at, session[-1].at + GAP] = session
                    session = []
                session.append(record)
            found[place, session[0].at, session[-1].at + GAP] = session
        return found

    def sessions(self) -> dict[Session, Total]:
        return {**self.frozen, **{session: total(members) for session, members in self.open().items()}}


def total(members: list[Record]) -> Total:
    values = [record.n for record in members]
    return len(values), sum(values), min(values)


def of_rows(rows: Iterable[dict[str, Any]]) -> dict[Session, Total]:
    return {
        (row.get("place", ""), seconds(row["window_start"]), seconds(row["window_end"])): (
            row["n"],
            row["s"],
            row["least"],
        )
        for row in rows
    }


def after_changes(driver: Driver) -> list[dict[str, Any]]:
    """What whoever applies the changes has got, each of which must fit what was before."""
    rows: dict[Session, dict[str, Any]] = {}
    for change in driver.rows("visits"):
        (session,) = of_rows([change])
        assert (session in rows) == (change["_kind"] != "insert"), change
        if change["_kind"] != "insert":
            old = rows.pop(session)
            assert change["_old"] == {name: old[name] for name in change["_old"]}
        if change["_kind"] != "delete":
            rows[session] = change
    return list(rows.values())


def played(driver: Driver, chance: random.Random, records: list[Record], oracle: Replayed) -> None:
    while records:
        cut = chance.randint(1, 9)
        driver.feed("users", as_json(records[:cut]))
        if chance.random() < 0.2:
            driver.crash(at=chance.choice(["before-commit", "after-write"]))
        driver.advance()
        oracle.tick(records[:cut])
        records = records[cut:]


WAYS = pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])


def ways_and(name: str, usual: object, other: object) -> pytest.MarkDecorator:
    """Each way to run with one of these, and in the long form with both."""
    short = [(0, usual), (1, other), (2, usual)]
    return pytest.mark.parametrize(
        ("tasks", name), [*short, *(only_long(*one) for one in ((0, other), (1, usual), (2, other)))]
    )


@ways_and("own", True, False)
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_sessions_are_those_of_the_rows_that_the_table_has(
    spark: SparkSession, tasks: int, own: bool, seed: int
) -> None:
    chance = random.Random(seed)
    oracle = Replayed(accepts=24 * 3600)
    with Driver(visits(own=own), spark, tasks=(tasks,)) as driver:
        played(driver, chance, drawn(chance, 60), oracle)
        rows = [record for record in oracle.newest.values() if record.place is not None]
        assert not oracle.late
        assert sorted(oracle.members.values()) == sorted(rows), "nothing is closed: it is a batch over the table"
        assert of_rows(driver.table("visits")) == oracle.sessions()
        assert of_rows(after_changes(driver)) == oracle.sessions()
        (below,) = driver.table("below")
        assert below == {"n": len(rows), "sessions": len(oracle.sessions())}
        for row in driver.table("visits") if own else ():
            assert len(row["longest"]) == max(
                r.n
                for r in rows
                if r.place == row["place"] and seconds(row["window_start"]) <= r.at < seconds(row["window_end"])
            )


@ways_and("emit", "final", "updates")
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_an_ended_session_keeps_the_rows_that_it_had(spark: SparkSession, tasks: int, emit: str, seed: int) -> None:
    chance = random.Random(f"ended {seed}")
    oracle = Replayed(accepts=0)
    with Driver(visits(emit=emit, late="side"), spark, tasks=(tasks,)) as driver:
        played(driver, chance, drawn(chance, 60), oracle)
        late = [(row["user"], row["n"], seconds(row["at"])) for row in driver.rows("visits.late")]
        assert sorted(late) == sorted((record.user, record.n, record.at) for record in oracle.late)
        assert late, "some came too late"
        wanted = oracle.sessions()
        if emit == "final":
            assert oracle.watermark is not None
            wanted = {session: values for session, values in wanted.items() if session[2] <= oracle.watermark}
        assert of_rows(driver.table("visits")) == wanted
        assert of_rows(after_changes(driver)) == wanted
        assert {*oracle.frozen} - {*oracle.open()}, "some have ended"


@ways_and("emit", "updates", "final")
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_sessions_that_are_kept_for_a_short_time_leave_with_their_rows(
    spark: SparkSession, tasks: int, emit: str, seed: int
) -> None:
    chance = random.Random(f"short {seed}")
    oracle = Replayed(accepts=40)
    with Driver(visits(emit=emit, keep="40 seconds"), spark, tasks=(tasks,)) as driver:
        played(driver, chance, drawn(chance, 60), oracle)
        assert oracle.watermark is not None
        oracle.close()
        shown = {s: total(m) for s, m in oracle.open().items() if emit == "updates" or s[2] <= oracle.watermark}
        assert of_rows(driver.table("visits")) == shown
        ended = {s: v for s, v in oracle.sessions().items() if emit == "updates" or s[2] <= oracle.watermark}
        assert of_rows(after_changes(driver)) == ended, "what leaves after its time tells nobody"
        driver.feed("users", as_json([Record("z", "z", 1, 100_000)]))
        driver.advance()
        assert _live_members(driver) == {"z"}, "all others have left with their sessions"


def _live_members(driver: Driver) -> set[str]:
    newest = driver.ledger.newest()
    cache = RunCache(driver.ledger.store, cache_of_this_machine(driver.ledger.root, "test"))
    runs = [cache.open("visits.members", run).table for run in reversed(newest.runs["visits.members"])]
    rows = merge_runs(runs, ("place", "user", "window_start"), drop_deleted=True)
    return set(rows.column("user").to_pylist())


@WAYS
def test_a_row_that_goes_cuts_its_session_in_two(spark: SparkSession, tasks: int) -> None:
    with Driver(visits(by=None), spark, tasks=(tasks,)) as driver:
        driver.feed("users", as_json([Record("a", "x", 1, 0), Record("b", "x", 2, 25), Record("c", "y", 4, 50)]))
        driver.advance()
        driver.feed("users", as_json([Record("b", None, 0, 60)]))
        driver.advance()
        driver.feed("users", as_json([Record("c", None, 0, 61)]))
        driver.advance()
        kinds = [(c["_kind"], seconds(c["window_start"]), seconds(c["window_end"])) for c in driver.rows("visits")]
        assert kinds[0] == ("insert", 0, 80)
        assert sorted(kinds[1:4]) == [("delete", 0, 80), ("insert", 0, 30), ("insert", 50, 80)]
        assert kinds[4:] == [("delete", 50, 80)]


def test_a_row_that_changes_within_its_session_is_one_update(spark: SparkSession) -> None:
    with Driver(visits(), spark) as driver:
        driver.feed("users", as_json([Record("a", "x", 1, 0), Record("b", "x", 2, 10), Record("c", "x", 1, 20)]))
        driver.advance()
        driver.feed("users", as_json([Record("b", "x", 5, 11), Record("d", "x", 9, 500)]))
        driver.advance()
        changes = [(c["_kind"], seconds(c["window_end"]), c["s"]) for c in driver.rows("visits")]
        assert changes[0] == ("insert", 50, 4)
        assert sorted(changes[1:]) == [("insert", 530, 9), ("update", 50, 7)]


def test_sessions_of_windows_and_of_folds(spark: SparkSession) -> None:
    """A table whose rows have windows of their own, and one whose rows get older values but later times."""
    storm = hs.Topology("both")
    clicks = storm.spout("clicks", hs.Log("x"), schema="u STRING, at TIMESTAMP", event_time="at")
    minutes = clicks.window("1 minute").fold("minutes", by="u", n=hs.count())
    minutes.session("2 minutes").fold("busy", by="u", minutes=hs.count(), n=hs.sum("n"))
    clicks.fold("users", by="u", n=hs.count()).session("1 minute").fold("together", users=hs.count(), n=hs.sum("n"))
    with Driver(storm, spark) as driver:
        for rows in ([("a", 10), ("b", 20)], [("a", 70), ("a", 400)], [("a", 401), ("b", 410), ("b", 25)]):
            driver.feed("clicks", [{"u": u, "at": (START + timedelta(seconds=at)).isoformat()} for u, at in rows])
            driver.advance()
        busy = {(r["u"], seconds(r["window_start"]), r["minutes"], r["n"]) for r in driver.table("busy")}
        assert busy == {("a", 60, 2, 2), ("a", 420, 1, 2), ("b", 60, 1, 2), ("b", 420, 1, 1)}
        (together,) = driver.table("together")
        assert (seconds(together["window_start"]), seconds(together["window_end"])) == (401, 470)
        assert (together["users"], together["n"]) == (2, 7)
