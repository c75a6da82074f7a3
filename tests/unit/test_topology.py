"""Declaring a topology: what the steps are, and that nothing runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import hailstorm as hs
from hailstorm.errors import HailstormError, TopologyError
from hailstorm.topology.ends import Sink, Spout
from hailstorm.topology.schema import Column
from hailstorm.topology.stateful import Fold, Top
from hailstorm.topology.stateless import ArrowBolt, Bolt, Select, Sql, Union, Where


@pytest.fixture
def storm() -> hs.Topology:
    return hs.Topology("trending")


@pytest.fixture
def tweets(storm: hs.Topology) -> hs.Stream:
    schema = "user STRING, text STRING, likes INT, at TIMESTAMP"
    return storm.spout(
        "tweets", hs.Log("data/tweets"), schema=schema, event_time="at", lateness="10 minutes", idle="1m"
    )


def split(tweet: Any) -> Iterator[dict[str, Any]]:
    for word in tweet.text.split():
        yield {"word": word}


def step(stream: hs.Stream) -> Any:
    return stream.step


def test_a_spout_knows_its_columns_and_its_time(tweets: hs.Stream) -> None:
    spout = step(tweets)
    assert isinstance(spout, Spout)
    assert spout.schema.names == ("user", "text", "likes", "at")
    assert (spout.event_time, spout.lateness_ms, spout.idle_ms) == ("at", 600_000, 60_000)
    assert spout.max_ahead_ms == 86_400_000
    assert (spout.inputs, spout.decode, spout.on_error, spout.is_table) == ((), "json", "dead-letter", False)


def test_a_source_that_knows_its_columns_needs_no_schema(storm: hs.Topology) -> None:
    class Numbers:
        columns = "n BIGINT, at TIMESTAMP"

        def earliest(self) -> dict[int, int]:
            return {0: 0}

        latest = earliest

        def read(self, *range_: int) -> Iterator[Any]:
            return iter(())

    assert str(storm.spout("numbers", Numbers()).schema) == "n BIGINT, at TIMESTAMP"
    storm.spout("same", Numbers(), schema="n BIGINT, at TIMESTAMP")
    with pytest.raises(TopologyError, match="HS-TOP-021"):
        storm.spout("other", Numbers(), schema="n INT")


def test_a_decorated_function_becomes_a_stream_with_its_name(tweets: hs.Stream) -> None:
    @tweets.bolt(returns="word STRING", grouping=hs.fields("user"), on_error="skip")
    def words(tweet: Any) -> Iterator[dict[str, Any]]:
        yield {"word": tweet.text}

    assert type(words) is hs.Stream
    bolt = step(words)
    assert isinstance(bolt, Bolt)
    assert (bolt.name, bolt.inputs, str(bolt.schema)) == ("words", ("tweets",), "word STRING")
    assert (str(bolt.grouping), bolt.on_error) == ("fields(user)", "skip")
    assert list(bolt.function(type("Row", (), {"text": "rain"}))) == [{"word": "rain"}]


def test_a_bolt_can_be_called_with_a_function_and_a_name(tweets: hs.Stream) -> None:
    assert tweets.bolt(split, returns="word STRING").name == "split"
    assert tweets.bolt(split, name="words", returns="word STRING").name == "words"
    assert tweets.bolt(lambda row: None, name="nothing", returns="word STRING").name == "nothing"
    assert isinstance(step(tweets.arrow("batches", lambda batch: batch, returns="a INT")), ArrowBolt)


def test_sql_where_and_select_keep_the_users_text(tweets: hs.Stream) -> None:
    loud = tweets.sql("loud", "SELECT upper(text) AS text, likes FROM tweets")
    assert isinstance(step(loud), Sql)
    assert step(loud).query == "SELECT upper(text) AS text, likes FROM tweets"
    assert loud.schema.columns == (Column("text", "string"), Column("likes", "int"))
    popular = tweets.where("popular", "likes > 3")
    assert isinstance(step(popular), Where)
    assert (step(popular).predicate, popular.schema) == ("likes > 3", tweets.schema)
    less = tweets.select("less", who="user", more="likes * 2")
    assert isinstance(step(less), Select)
    assert less.schema.columns == (Column("who", "string"), Column("more", None))


def test_a_union_has_all_its_inputs(storm: hs.Topology, tweets: hs.Stream) -> None:
    best = tweets.where("best", "likes > 10")
    both = tweets.union("both", best)
    assert isinstance(step(both), Union)
    assert (step(both).inputs, both.schema) == (("tweets", "best"), tweets.schema)


def test_a_fold_has_its_key_and_one_column_per_monoid(tweets: hs.Stream) -> None:
    likes = tweets.fold("likes", by=["user", "at"], n=hs.count(), most=hs.max("likes"), odd=hs.max("-likes"))
    fold = step(likes)
    assert type(likes) is hs.Table
    assert isinstance(fold, Fold)
    assert (fold.key, likes.key, fold.is_table) == (("user", "at"), ("user", "at"), True)
    assert str(likes.schema) == "user STRING, at TIMESTAMP, n BIGINT, most INT, odd ?"


def test_a_fold_without_by_is_one_state_for_all(tweets: hs.Stream) -> None:
    total = tweets.fold("total", n=hs.count())
    assert (total.key, str(total.schema), step(total).is_table) == ((), "n BIGINT", True)
    board = total.where("many", "n > 100")
    assert (board.key, step(board).is_table) == ((), True)


def test_ones_own_monoid_has_the_type_that_it_declares(tweets: hs.Stream) -> None:
    class Longest(hs.Monoid):
        state = "STRUCT<text: STRING, n: INTEGER>"
        value = "VARCHAR(10)"

        def zero(self) -> Any:
            return None

        def lift(self, *values: Any) -> Any:
            return values

        def merge(self, a: Any, b: Any) -> Any:
            return a

    assert str(tweets.fold("longest", by="user", text=Longest("text")).schema) == "user STRING, text STRING"
    Longest.value = None
    assert tweets.fold("states", by="user", text=Longest("text")).schema.type_of("text") == "struct<text:string,n:int>"


def test_top_where_and_select_of_a_table_are_tables_with_its_key(tweets: hs.Stream) -> None:
    likes = tweets.fold("likes", by="user", n=hs.count(), most=hs.max("likes"))
    top = likes.top("top", 10, by="n + most")
    assert isinstance(step(top), Top)
    assert (step(top).n, step(top).by, top.key) == (10, "n + most", ("user",))
    assert str(top.schema) == "user STRING, n BIGINT, most INT, rank INT"
    shown = likes.select("shown", n="n", user="user", half="n / 2").where("some", "half > 1")
    assert type(shown) is hs.Table
    assert (shown.key, str(shown.schema)) == (("user",), "user STRING, n BIGINT, half ?")
    assert type(likes.fold("by_n", by="n", users=hs.count())) is hs.Table


def test_bolts_and_sql_on_a_table_read_changes_and_give_plain_streams(tweets: hs.Stream) -> None:
    likes = tweets.fold("likes", by="user", n=hs.count())
    changes = likes.sql("changes", "SELECT user, n, _old.n AS before, _kind AS kind FROM likes")
    assert type(changes) is hs.Stream
    assert (changes.schema.names, step(changes).is_table) == (("user", "n", "before", "kind"), False)
    assert type(likes.bolt(split, name="told", returns="word STRING")) is hs.Stream


def test_the_rows_of_a_table_have_no_hidden_columns(tweets: hs.Stream) -> None:
    likes = tweets.fold("likes", by="user", n=hs.count())
    tweets.where("first", "_offset < 10")
    with pytest.raises(TopologyError, match="HS-TOP-003"):
        likes.where("odd", "_kind = 'insert'")


def test_a_sink_has_the_columns_and_the_key_of_what_it_delivers(storm: hs.Topology, tweets: hs.Stream) -> None:
    likes = tweets.fold("likes", by="user", n=hs.count())
    likes.sink("board", hs.Console(), delivery="at-least-once")
    tweets.sink("raw", hs.Console())
    board, raw = storm.step("board"), storm.step("raw")
    assert isinstance(board, Sink)
    assert (board.key, board.is_table, board.schema, board.delivery) == (("user",), True, likes.schema, "at-least-once")
    assert (raw.key, raw.is_table) == ((), False)


def test_every_step_remembers_the_users_line(storm: hs.Topology, tweets: hs.Stream) -> None:
    counts = tweets.fold("counts", by="user", n=hs.count())
    assert step(counts).at.file == __file__
    assert 'tweets.fold("counts"' in step(counts).at.code


def test_relative_paths_belong_to_the_folder_of_the_app(storm: hs.Topology) -> None:
    assert storm.folder == Path(__file__).resolve().parent


def test_steps_come_after_what_they_read_and_know_their_readers(storm: hs.Topology, tweets: hs.Stream) -> None:
    best = tweets.where("best", "likes > 10")
    tweets.union("both", best).fold("counts", n=hs.count()).sink("board", hs.Console())
    assert [s.name for s in storm.steps] == ["tweets", "best", "both", "counts", "board"]
    assert [s.name for s in storm.consumers("tweets")] == ["best", "both"]


def test_folds_tops_and_sinks_may_end_a_path_and_nothing_else(storm: hs.Topology, tweets: hs.Stream) -> None:
    tweets.fold("counts", by="user", n=hs.count()).top("top", 3, by="n")
    storm.validate()
    tweets.where("lost", "likes > 10")
    with pytest.raises(TopologyError, match="nothing reads where 'lost'"):
        storm.validate()


@pytest.mark.parametrize("name", ["a", "a-b_9", "x" * 64])
def test_good_names_are_taken(name: str) -> None:
    assert hs.Topology(name).name == name


@pytest.mark.parametrize("name", ["", "_a", "9a", "A", "a b", "a/b", "..", "é", "x" * 65, "-a", "a.b", None, 3])
def test_names_that_cannot_be_folders_are_refused(name: Any) -> None:
    with pytest.raises(TopologyError, match="HS-TOP-001"):
        hs.Topology(name)


def test_a_step_that_is_refused_leaves_the_topology_as_it_was(storm: hs.Topology, tweets: hs.Stream) -> None:
    with pytest.raises(HailstormError):
        tweets.fold("counts", by="nobody", n=hs.count())
    assert [s.name for s in storm.steps] == ["tweets"]
    tweets.fold("counts", by="user", n=hs.count())


def test_run_hands_over_to_what_the_command_runs(storm: hs.Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    class Command:
        @staticmethod
        def run_in_script(topology: hs.Topology, **options: Any) -> Any:
            return topology, options

    monkeypatch.setitem(sys.modules, "hailstorm.cli.run", Command)
    topology, options = cast(Any, storm.run(until="caught-up", accept=["counts"]))
    assert topology is storm
    assert (options["until"], options["accept"], options["every"]) == ("caught-up", ("counts",), None)


@pytest.mark.slow
def test_building_a_topology_does_not_import_spark() -> None:
    code = """
import sys
import hailstorm as hs
storm = hs.Topology("t")
rows = storm.spout("rows", hs.Log("data/rows"), schema="a INT")
table = rows.where("some", "a > 1").sql("q", "SELECT a FROM some").fold("counts", by="a", n=hs.count())
table.top("top", 3, by="n").sink("board", hs.Console())
storm.validate()
storm.graph().text()
from hailstorm.topology.fingerprint import fingerprint
fingerprint(storm)
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")]
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


@pytest.mark.parametrize("grouping", [hs.shuffle(0), hs.everyone(-1), hs.fields(), hs.fields("nobody"), "shuffle"])
def test_groupings_are_checked(tweets: hs.Stream, grouping: Any) -> None:
    with pytest.raises(TopologyError):
        tweets.bolt(split, returns="word STRING", grouping=grouping)
    assert str(step(tweets.bolt(split, returns="word STRING", grouping=hs.everyone(3))).grouping) == "everyone(3)"


def test_a_look_up_of_what_is_now_asks_nothing_of_the_tables_time(tweets: hs.Stream, storm: hs.Topology) -> None:
    countries = storm.table("countries", hs.Files("c.csv"), schema="text STRING, n INT", key="text", decode="csv")
    named = tweets.lookup("named", countries, on="text")
    assert storm.unclocked("named") == storm.timeless("named") == ()
    assert storm.unclocked("countries") == ("countries",)
    named.window("1 hour").fold("hourly", n=hs.count())
    named.join("self", tweets, on="text", within="1 hour")


def test_windows_that_share_panes_may_be_many_and_others_may_not(storm: hs.Topology, tweets: hs.Stream) -> None:
    many = tweets.window("1 day", every="1 minute", emit="final")
    with pytest.warns(UserWarning, match="every row of 'tweets' is in 1,440 windows") as told:
        daily = many.fold("daily", by="user", n=hs.count())
    assert told[0].filename == __file__
    refused = [
        tweets.window("1 day", every="1 minute"),
        tweets.window("1 day", every="1 minute", emit="final", zone="Europe/Berlin"),
        daily.window("1 day", every="1 minute", emit="final"),
    ]
    for windows in refused:
        with pytest.raises(TopologyError, match="1,440 windows"):
            windows.fold("refused", n=hs.count())
