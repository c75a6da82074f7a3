"""Trace: what one record became; and all records together account for every row of the state."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.clock.clock import Clock
from hailstorm.errors import HailstormError
from hailstorm.history import looking_back
from hailstorm.history.makers import Makers
from hailstorm.history.moments import moment_of
from hailstorm.history.one_record import Record
from hailstorm.history.picture import mermaid, tree
from hailstorm.history.replay import Replay
from hailstorm.history.state_at import state_at
from hailstorm.history.trace import Tracer
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.spark.time_machine import START, everything, feed


def untapped(driver: Driver) -> hs.Topology:
    """The driver's topology, with its logs and without what captures everything."""
    return driver.topology.only(step.name for step in driver.topology.steps if not step.name.startswith("tap-"))


def test_the_traces_of_all_records_together_are_the_state(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(31), 3)
        tracer = Tracer(spark, untapped(driver), driver.ledger)
        totals: Counter[str] = Counter()
        refused = 0
        for partition, end in driver.ledger.head.position().offsets["clicks"].items():
            for offset in range(end):
                trace = tracer.trace(Record("clicks", partition, offset))
                events = {
                    step: [e for e in trace.events if e.step == step] for step in ("counts", "halves", "sessions")
                }
                letters = [event for event in events["halves"] if event.what == "letter"]
                refused += len(letters)
                for event in events["counts"]:
                    assert event.after is not None
                    totals[event.row["u"]] += event.after["s"] - (event.before or {"s": 0})["s"]
                assert len(events["halves"]) == (1 if letters else 2)
                assert events["sessions"]  # every record is in one
        assert totals == Counter({row["u"]: row["s"] for row in driver.table("counts")})
        assert refused == len(driver.errors())


def words(loud: bool = False) -> hs.Topology:
    storm = hs.Topology("words")
    lines = storm.spout("lines", hs.Log("lines"), schema="text STRING")

    @lines.bolt(returns="word STRING")
    def split(line: hs.Row) -> list[dict[str, str]]:
        return [{"word": word.upper() if loud else word} for word in line.text.split()]

    counts = split.fold("counts", by="word", n=hs.count())
    counts.where("many", "n > 1").sink("board", hs.Console())
    return storm


def test_a_trace_is_a_tree_from_the_state_before_its_tick(spark: SparkSession) -> None:
    with Driver(words(), spark) as driver:
        driver.feed("lines", [{"text": "hail"}])
        driver.advance()
        driver.feed("lines", [{"text": "rain"}, {"text": "hail snow"}, "nonsense"])
        driver.advance()
        driver.feed("lines", [{"text": "hail"}])
        tracer, topology = Tracer(spark, untapped(driver), driver.ledger), untapped(driver)
        trace = tracer.trace(Record.parse("lines/0@2"))
        counts = [event.json() for event in trace.events if event.step == "counts"]
        assert [event.json() for event in trace.events if event.step != "counts"] == [
            {"step": "lines", "tuple": {"text": "hail snow"}},
            {"step": "split", "tuple": {"word": "hail"}},
            {"step": "split", "tuple": {"word": "snow"}},
            {"step": "many", "tuple": {"word": "hail", "n": 2, "_kind": "insert", "_old": None}},
            {"step": "board", "output": {"word": "hail", "n": 2, "_kind": "insert", "_old": None}},
        ]
        assert sorted(counts, key=repr) == [
            {"step": "counts", "key": {"word": "hail"}, "before": {"n": 1}, "after": {"n": 2}},
            {"step": "counts", "key": {"word": "snow"}, "before": None, "after": {"n": 1}},
        ]
        assert "split  {" in tree(trace, topology)
        assert mermaid(trace, topology).startswith('flowchart LR\n    subgraph s0 ["lines"]')
        (letter,) = tracer.trace(Record("lines", 0, 3)).events
        assert (letter.step, letter.what) == ("lines", "letter")
        unread = tracer.trace(Record("lines", 0, 4))
        assert unread.commit is None and unread.note
        assert [event.after for event in unread.events if event.step == "counts"] == [{"n": 3}]
        with pytest.raises(HailstormError, match=r"HS-LED-081.*no record lines/0@9"):
            tracer.trace(Record("lines", 0, 9))
        with pytest.raises(HailstormError, match=r"HS-LED-080.*no spout 'line'"):
            tracer.trace(Record("line", 0, 9))


def test_what_looks_back_shows_times_that_python_has_no_value_for_and_nan(spark: SparkSession) -> None:
    storm = hs.Topology("far")
    rows = storm.spout("rows", hs.Log("rows"), schema="x DOUBLE, at TIMESTAMP", event_time="at")
    far = rows.select("far", x="x", far="at + interval 9000 years")
    far.fold("by_x", by="x", far=hs.max("far")).sink("board", hs.Console())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"x": math.nan, "at": "2026-01-01T00:00:00Z"}, {"x": -0.0, "at": "2026-01-01T00:00:00Z"}])
        driver.advance()
        trace = Tracer(spark, untapped(driver), driver.ledger).trace(Record("rows", 0, 0))
        assert '{"x":"NaN"}: nothing → {"far":"+11026-01-01T00:00:00.000000Z"}' in tree(trace, driver.topology)
        replayed = Replay(spark, driver.topology, driver.ledger).run(driver.ledger.at(1), driver.ledger.head.commit)
        assert replayed.outboxes and not replayed.unlike
        makers = Makers(spark, untapped(driver), driver.ledger, driver.ledger.at(0), driver.ledger.newest())
        assert [makers.of_key("by_x", {"x": key}) for key in ("NaN", 0.0)] == [
            (Record("rows", 0, 0),),
            (Record("rows", 0, 1),),
        ]


def test_a_record_is_traced_in_the_commit_that_read_it_after_rewinds_back_and_forward(spark: SparkSession) -> None:
    with Driver(words(), spark) as driver:
        readers = []
        for text in ("hail", "rain", "hail rain"):
            driver.feed("lines", [{"text": text}])
            driver.advance()
            readers.append(driver.ledger.head.commit)
        last = driver.ledger.head.commit

        def traced(offset: int) -> tuple[int | None, dict[str, Any]]:
            trace = Tracer(spark, untapped(driver), driver.ledger).trace(Record("lines", 0, offset))
            return trace.commit, {e.row["word"]: (e.before or {}).get("n") for e in trace.events if e.what == "key"}

        expected = [traced(offset) for offset in range(3)]
        assert expected == [
            (readers[0], {"hail": None}),
            (readers[1], {"rain": None}),
            (readers[2], {"hail": 1, "rain": 1}),
        ]
        driver.rewind(readers[0])
        driver.rewind(last)
        assert [traced(offset) for offset in range(3)] == expected
        driver.rewind(readers[0])
        driver.advance()
        again = driver.ledger.head.commit
        assert traced(0) == expected[0]
        assert traced(2)[0] == again, "it was read again"
        driver.rewind(last)
        assert [traced(offset) for offset in range(3)] == expected, "that is undone"


def test_windows_that_are_shown_when_they_end_are_in_a_trace_while_they_are_open(spark: SparkSession) -> None:
    storm = hs.Topology("windows")
    clicks = storm.spout("clicks", hs.Log("x"), schema="u STRING, n INT, at TIMESTAMP", event_time="at")
    clicks.window("10 seconds", emit="final").fold("tumbling", by="u", n=hs.count(), s=hs.sum("n"))
    clicks.window("10 seconds", every="5 seconds", emit="final").fold("sliding", by="u", n=hs.count(), s=hs.sum("n"))

    def second(row: dict[str, Any]) -> int:
        return int((row["window_start"] - START).total_seconds())

    with Driver(storm, spark) as driver:
        for number, (u, at) in enumerate([("a", 21), ("b", 23), ("a", 28), ("a", 36)]):
            driver.feed("clicks", [{"u": u, "n": number, "at": (START + timedelta(seconds=at)).isoformat()}])
            driver.advance()
        assert driver.ledger.head.steps["sliding"].panes is not None
        tracer, found = Tracer(spark, untapped(driver), driver.ledger), {}
        for offset in range(4):
            events = tracer.trace(Record("clicks", 0, offset)).events
            keys = [event for event in events if event.what == "key"]
            assert all(event.row["u"] == ("b" if offset == 1 else "a") for event in keys)
            found[offset] = sorted((event.step, second(event.row), event.before, event.after) for event in keys)
    one, two = {"n": 1, "s": 0}, {"n": 2, "s": 2}
    assert found == {
        0: [("sliding", 15, None, one), ("sliding", 20, None, one), ("tumbling", 20, None, one)],
        1: [(*key, None, {"n": 1, "s": 1}) for key in (("sliding", 15), ("sliding", 20), ("tumbling", 20))],
        2: [("sliding", 20, one, two), ("sliding", 25, None, {"n": 1, "s": 2}), ("tumbling", 20, one, two)],
        3: [(*key, None, {"n": 1, "s": 3}) for key in (("sliding", 30), ("sliding", 35), ("tumbling", 30))],
    }


def test_that_the_code_has_changed_since_is_said(spark: SparkSession) -> None:
    with Driver(words(), spark) as driver:
        driver.feed("lines", [{"text": "hail"}, {"text": "hail"}])
        driver.advance()
        old, (_, commit) = untapped(driver), driver.ledger.commits()
        inside = moment_of(driver.ledger, Clock({"lines": {0: 1}}))
        driver.restart(words(loud=True))
        new, remarks = untapped(driver), list[str]()
        for topology, word in ((old, "hail"), (new, "HAIL")):
            trace = Tracer(spark, topology, driver.ledger).trace(Record("lines", 0, 0))
            with state_at(topology, spark, driver.ledger, inside, "counts", remarks=remarks.append) as state:
                assert state.arrow().to_pylist() == [{"word": word, "n": 1}]
        said = f"with the code of now: step split has changed since commit {commit.commit - 1}"
        assert (trace.note, remarks) == (said, [said])
        root = driver.ledger.root
        assert old.state("counts", "lines/0@0", ledger=root).arrow().to_pylist() == [{"word": "hail", "n": 1}]
        (change,) = old.diff("counts", "lines/0@0", ledger=root).arrow().to_pylist()
        assert (change["word"], change["before"], change["after"]) == ("hail", {"n": 1}, {"n": 2})
        assert old.state("counts", ledger=root).arrow().to_pylist() == [{"word": "hail", "n": 2}]
        with pytest.warns(UserWarning, match="step split has changed since"):
            assert "HAIL" in new.state("counts", "lines/0@0", ledger=root)._repr_html_()


@pytest.mark.parametrize("text", ["lines", "lines/0", "lines@3", "lines/x@3", "/0@1"])
def test_what_is_no_record_is_said(text: str) -> None:
    with pytest.raises(HailstormError, match="HS-CLI-085"):
        Record.parse(text)


def test_the_records_behind_a_key_and_behind_an_output_are_found(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(8), 4)
        ledger, topology = driver.ledger, driver.topology
        last = ledger.newest()
        rows = {Record("clicks", row["_partition"], row["_offset"]): row for row in driver_records(driver)}
        makers = Makers(spark, topology, ledger, ledger.at(0), last)
        mine = {record for record, row in rows.items() if row["u"] == "c" and row["n"] != 13}
        assert set(makers.of_key("counts", {"u": "c"})) == set(makers.of_key("best", {"u": "c"})) == mine
        window = next(row for row in driver.table("per") if row["u"] == "c")
        inside = {
            record
            for record, row in rows.items()
            if row["u"] == "c" and window["window_start"] <= datetime.fromisoformat(row["at"]) < window["window_end"]
        }
        assert inside <= set(makers.of_key("per", window_key(window)))
        sizes = {record for row in driver.table("sizes") for record in makers.of_key("sizes", {"n": row["n"]})}
        assert sizes == {record for record, row in rows.items() if row["n"] != 13}, "through the table of counts"
        with pytest.raises(HailstormError, match=r"HS-LED-084.*'clicks' is a spout"):
            makers.of_key("clicks", {})
        with pytest.raises(HailstormError, match=r"HS-CLI-008.*'window_start' is a time, and noon is not"):
            makers.of_key("per", {"u": "c", "window_start": "noon"})
        commit = next(one for one in ledger.commits() if one.outbox.get("tap-halves"))
        one_tick = Makers(spark, topology, ledger, ledger.at(commit.commit - 1), ledger.at(commit.commit))
        (row,) = read_table(ledger.store, commit.outbox["tap-halves"][0].path).slice(0, 1).to_pylist()
        found = one_tick.of_output("tap-halves", 0)
        assert found
        for record in found:
            n = rows[record]["n"]
            assert rows[record]["u"] == row["u"] and row["n"] in (n // 2, n - n // 2)


def test_the_records_behind_a_row_of_a_table_of_a_log_are_found(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the one that removed the key, and through what is left of the table; a key that it cannot have is told."""
    storm = hs.Topology("users")
    schema = "team STRING, id INT, gone BOOLEAN"
    users = storm.table("users", hs.Log("users"), schema=schema, key="id", deletes="gone")
    users.where("named", "team IS NOT NULL").sink("board", hs.Console())
    with Driver(storm, spark) as driver:
        for rows in ([(1, "red"), (2, "blue")], [(1, "green"), (3, "red")], [(2, None)]):
            driver.feed("users", [{"id": id_, "team": team, "gone": team is None} for id_, team in rows])
            driver.advance()
        ledger = driver.ledger
        makers = Makers(spark, untapped(driver), ledger, ledger.at(0), ledger.newest())
        assert [one.offset for one in makers.of_key("users", {"id": "1"})] == [0, 2]
        assert [one.offset for one in makers.of_key("named", {"id": 2})] == [1, 4]
        commit = next(one for one in ledger.commits() if one.end["users"]["0"] == 4)
        one_tick = Makers(spark, untapped(driver), ledger, ledger.at(commit.commit - 1), ledger.at(commit.commit))
        assert {one.offset for row in (0, 1) for one in one_tick.of_output("board", row)} == {2, 3}
        for key in ({"id": "abc"}, {"id": 1.5}, {"id": 2**40}):
            with pytest.raises(HailstormError, match=r"HS-CLI-008.*'id' is int32"):
                makers.of_key("users", key)
        monkeypatch.delattr(looking_back, "start_session")
        with pytest.raises(HailstormError, match="HS-CLI-008"):  # before Spark starts
            looking_back.makers(untapped(driver), "users", {"id": "abc"}, since=0, ledger=ledger.root)


def window_key(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("u", "window_start", "window_end")}


def driver_records(driver: Driver) -> Iterator[dict[str, Any]]:
    log = driver.logs["clicks"]
    for partition, end in log.latest().items():
        for batch in log.read(partition, 0, end):
            for offset, value in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                yield {**json.loads(value), "_partition": partition, "_offset": offset}
