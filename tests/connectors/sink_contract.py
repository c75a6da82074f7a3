"""The contract that every sink passes. To add a sink: write a harness, and subclass `SinkContract`.

A harness makes sinks for named targets in one place (a database, a folder) and reads back what a consumer of a target
would see, with values as JSON has them (`as_json`). Sinks that keep their cursor are also killed with kill -9.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pytest

from hailstorm import faults
from hailstorm.columns import KIND, OLD
from hailstorm.errors import SinkError
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Sink
from tests.forks import Forks

Change = tuple[str, str | None, int | None]  # kind, word, n
Json = dict[str, Any]

COUNTS = pa.schema([("word", pa.string()), ("n", pa.int64())])
EVERYTHING = pa.schema(
    [
        ("id", pa.int32()),
        ("text", pa.string()),
        ("yes", pa.bool_()),
        ("ratio", pa.float64()),
        ("price", pa.decimal128(38, 12)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("street name", pa.string()), ("number", pa.int32())])),
        ("scores", pa.map_(pa.string(), pa.int64())),
    ]
)


class Harness(Protocol):
    forgets: bool
    """Whether a sink that is made again shows a commit again that it was given before (a screen does)."""

    def make(self, target: str, mode: Any = None) -> Sink: ...

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        """The rows of a stream (key is None) in any order, or what a table holds after all its changes."""


def as_json(value: Any) -> Any:
    match value:
        case datetime():
            utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {name: as_json(inner) for name, inner in value.items()}
        case list():
            return [as_json(inner) for inner in value]
    return value


def after_changes(changes: Iterable[tuple[str, Json]], key: tuple[str, ...] | None) -> list[Json]:
    """What a changelog amounts to, for the harnesses of sinks that keep one."""
    changes = list(changes)
    if key is None:
        return [row for _, row in changes]
    table: dict[str, Json] = {}
    for kind, row in changes:
        identity = json.dumps([row[name] for name in key])
        table.pop(identity, None)
        if kind != "delete":
            table[identity] = row
    return list(table.values())


def stream(*rows: tuple[str | None, int | None]) -> pa.Table:
    return pa.Table.from_pylist([{"word": word, "n": n} for word, n in rows], schema=COUNTS)


def changes(*rows: Change) -> pa.Table:
    schema = pa.schema([*COUNTS, (KIND, pa.string()), (OLD, pa.struct(list(COUNTS)))])
    values = [{"word": word, "n": n, KIND: kind, OLD: None} for kind, word, n in rows]
    return pa.Table.from_pylist(values, schema=schema)


def counts_delivery(
    sink: str = "board", topology: str = "trending", key: tuple[str, ...] = ("word",), ledger: str = "ledger"
) -> Delivery:
    return Delivery(topology, sink, ledger, COUNTS, key, is_table=True)


def stream_delivery(sink: str = "log", ledger: str = "ledger") -> Delivery:
    return Delivery("trending", sink, ledger, COUNTS, (), is_table=False)


def got(sink: Sink) -> int | None:
    """The number of the last commit that the sink has got, as it knows itself."""
    cursor = sink.cursor()
    return None if cursor is None else cursor.commit


def ordered(rows: Iterable[Json]) -> list[Json]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def words(*rows: tuple[str | None, int | None]) -> list[Json]:
    return ordered({"word": word, "n": n} for word, n in rows)


def random_commits(seed: int, count: int = 12, keys: int = 6) -> tuple[list[pa.Table], list[Json]]:
    """Changes of a table, commit by commit, and what the table holds in the end."""
    chance, table, commits = random.Random(seed), dict[str, int](), []
    for _ in range(count):
        made: list[Change] = []
        for word in chance.sample([f"word {number}" for number in range(keys)], chance.randint(0, keys)):
            if word in table and chance.random() < 0.3:
                del table[word]
                made.append(("delete", word, None))
            else:
                made.append(("update" if word in table else "insert", word, chance.randint(0, 99)))
                table[word] = made[-1][2] or 0
        commits.append(changes(*made))
    return commits, words(*table.items())


KILLED = """
import pickle, sys
from hailstorm.sinks.sink import Parcel
sink, delivery, commits = pickle.load(sys.stdin.buffer)
sink.open(delivery)
for number, rows in enumerate(commits, 1):
    sink.deliver(Parcel.of(number, rows))
"""


class SinkContract:
    holds_nul: ClassVar[bool] = True  # some targets take no NUL letter in a text
    is_a_log: ClassVar[bool] = False  # whether it has all changes, and not a table
    has_generations: ClassVar[bool] = False  # whether a log begins again with a whole table
    has_owner: ClassVar[bool] = True  # whether a target belongs to one sink

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        raise NotImplementedError("each sink gives its own")

    def counts(self, harness: Harness, target: str = "board") -> list[Json]:
        return ordered(harness.read_back(target, COUNTS, ("word",)))

    def test_rows_of_a_stream_arrive(self, harness: Harness) -> None:
        sink = harness.make("log")
        sink.open(stream_delivery("log"))
        sink.deliver(Parcel.of(1, stream(("rain", 1), ("rain", 1))))
        sink.deliver(Parcel.of(2, stream(("hail", 2))))
        sink.close()
        assert ordered(harness.read_back("log", COUNTS, None)) == words(("rain", 1), ("rain", 1), ("hail", 2))

    def test_inserts_updates_and_deletes_are_applied_by_key(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "hail", 1), ("insert", "snow", 1))))
        sink.deliver(Parcel.of(2, changes(("update", "rain", 2), ("delete", "hail", None))))
        sink.deliver(Parcel.of(5, changes(("insert", "hail", 7), ("delete", "snow", None))))
        sink.close()
        assert self.counts(harness) == words(("rain", 2), ("hail", 7))

    def test_a_key_may_be_null(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", None, 1), ("insert", "", 5))))
        sink.deliver(Parcel.of(2, changes(("update", None, 2))))
        sink.close()
        assert self.counts(harness) == words((None, 2), ("", 5))

    def test_a_table_without_key_columns_is_one_row(self, harness: Harness) -> None:
        sink = harness.make("total")
        sink.open(counts_delivery("total", key=()))
        sink.deliver(Parcel.of(1, changes(("insert", "all", 10))))
        sink.deliver(Parcel.of(2, changes(("update", "all", 11))))
        sink.close()
        assert harness.read_back("total", COUNTS, ()) == words(("all", 11))

    def test_a_commit_that_comes_again_changes_nothing(self, harness: Harness) -> None:
        sink = harness.make("log")
        sink.open(stream_delivery("log"))
        for commit, row in ((3, "rain"), (3, "rain"), (4, "hail"), (3, "rain"), (4, "hail")):
            sink.deliver(Parcel.of(commit, stream((row, 1))))
        sink.close()
        assert ordered(harness.read_back("log", COUNTS, None)) == words(("rain", 1), ("hail", 1))

    def test_a_commit_that_comes_again_after_a_new_start_changes_nothing(self, harness: Harness) -> None:
        if harness.forgets:
            pytest.skip("shows it again, and says so")
        for _ in range(2):
            sink = harness.make("log")
            sink.open(stream_delivery("log"))
            sink.deliver(Parcel.of(1, stream(("rain", 1))))
            sink.deliver(Parcel.of(2, stream(("hail", 1))))
            sink.close()
        assert ordered(harness.read_back("log", COUNTS, None)) == words(("rain", 1), ("hail", 1))

    def test_the_cursor_survives_a_new_start(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        assert got(sink) is None
        sink.deliver(Parcel.of(7, changes(("insert", "rain", 1))))
        sink.close()
        again = harness.make("board")
        again.open(counts_delivery())
        assert got(again) == (7 if again.keeps_cursor else None)
        again.close()

    def test_a_commit_without_rows_moves_the_cursor(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        sink.deliver(Parcel.of(2, changes()))
        assert got(sink) == (2 if sink.keeps_cursor else None)
        sink.close()
        assert self.counts(harness) == words(("rain", 1))

    def test_two_sinks_and_two_topologies_in_one_place_do_not_disturb_each_other(self, harness: Harness) -> None:
        opened = []
        for number, (topology, name) in enumerate([("a", "x"), ("a", "y"), ("b", "z")], 1):
            sink = harness.make(name)
            sink.open(counts_delivery(name, topology))
            opened.append((sink, number, name))
        for sink, number, _ in opened:
            sink.deliver(Parcel.of(number, changes(("insert", f"of {number}", number))))
        for sink, number, name in opened:
            assert got(sink) == (number if sink.keeps_cursor else None)
            sink.close()
            assert self.counts(harness, name) == words((f"of {number}", number))

    def test_every_type_arrives_as_it_was(self, harness: Harness) -> None:
        rows = [
            {
                "id": 1,
                "text": 'Grüße, "you"; DROP TABLE x; -- 雹 🌧 \u0000 [bold]',
                "yes": True,
                "ratio": 0.1,
                "price": Decimal("12345678901234567890123456.000000000001"),
                "at": datetime(2024, 2, 29, 23, 59, 59, 1, UTC),
                "local": datetime(1969, 7, 20, 20, 17, 40),
                "day": date(2024, 2, 29),
                "raw": b"\x00\xff",
                "tags": ["a", None, "ü"],
                "place": {"street name": 'Main "St"', "number": None},
                "scores": [("x", 1), ("y", None)],
            },
            dict.fromkeys(EVERYTHING.names) | {"id": 2},
            dict.fromkeys(EVERYTHING.names) | {"id": 3, "price": Decimal(0), "tags": [], "text": ""},
        ]
        if not self.holds_nul:
            rows[0]["text"] = str(rows[0]["text"]).replace("\0", "")
        sink = harness.make("every")
        sink.open(Delivery("trending", "every", "ledger", EVERYTHING, (), False))
        sink.deliver(Parcel.of(1, pa.Table.from_pylist(rows, schema=EVERYTHING)))
        sink.close()
        found = harness.read_back("every", EVERYTHING, None)
        expected = as_json(rows)
        expected[0]["scores"] = {"x": 1, "y": None}
        expected[2]["price"] = as_json(Decimal(0).quantize(Decimal("1e-12")))
        assert sorted(found, key=lambda row: row["id"]) == expected

    def test_names_that_sql_would_trip_over_are_taken_as_they_are(self, harness: Harness) -> None:
        schema = pa.schema([('we"ird; --', pa.string()), ("select", pa.int64())])
        sink = harness.make('ta"ble; drop')
        sink.open(Delivery("to'po", "si'nk", "ledger", schema, ('we"ird; --',), True))
        rows = {'we"ird; --': ["a"], "select": [1], KIND: ["insert"]}
        sink.deliver(Parcel.of(1, pa.table(rows)))
        sink.close()
        assert harness.read_back('ta"ble; drop', schema, ('we"ird; --',)) == [{'we"ird; --': "a", "select": 1}]

    def test_an_error_in_the_middle_leaves_nothing(self, harness: Harness) -> None:
        sink = harness.make("board")
        if not sink.keeps_cursor:
            pytest.skip("has no transaction")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        with faults.inject("during-delivery", ZeroDivisionError()), pytest.raises(ZeroDivisionError):
            sink.deliver(Parcel.of(2, changes(("update", "rain", 2), ("insert", "hail", 1))))
        assert got(sink) == 1
        assert self.counts(harness) == words(("rain", 1))
        sink.deliver(Parcel.of(2, changes(("update", "rain", 2), ("insert", "hail", 1))))
        sink.close()
        assert self.counts(harness) == words(("rain", 2), ("hail", 1))

    def test_an_error_in_the_first_delivery_leaves_nothing_either(self, harness: Harness) -> None:
        sink = harness.make("log")
        if not sink.keeps_cursor:
            pytest.skip("has no transaction")
        sink.open(stream_delivery("log"))
        with faults.inject("during-delivery", ZeroDivisionError()), pytest.raises(ZeroDivisionError):
            sink.deliver(Parcel.of(1, stream(("rain", 1))))
        assert got(sink) is None
        sink.deliver(Parcel.of(1, stream(("rain", 1))))
        sink.close()
        assert harness.read_back("log", COUNTS, None) == words(("rain", 1))

    @pytest.mark.parametrize("seed", range(3))
    def test_random_changes_with_repeats_equal_the_oracle(self, harness: Harness, seed: int) -> None:
        commits, oracle = random_commits(seed)
        chance, sink, number = random.Random(seed), harness.make("board"), 0
        sink.open(counts_delivery())
        while number < len(commits):
            if not harness.forgets and chance.random() < 0.3:
                sink.close()
                sink = harness.make("board")
                sink.open(counts_delivery())
            number = max(0, number - chance.choice([0, 0, 1, 3]))
            sink.deliver(Parcel.of(number + 1, commits[number]))
            number += 1
        sink.close()
        assert self.counts(harness) == oracle

    @pytest.mark.chaos
    @pytest.mark.parametrize("kill_at", [1, 3])
    def test_kill_9_in_the_middle_of_a_delivery_doubles_and_loses_nothing(
        self, harness: Harness, kill_at: int, forks: Forks
    ) -> None:
        sink = harness.make("board")
        if not sink.keeps_cursor:
            pytest.skip("has no transaction")
        commits, oracle = random_commits(seed=kill_at, count=5)
        killed = subprocess.run(
            [forks.python, "-c", KILLED],
            input=pickle.dumps((sink, counts_delivery(), commits)),
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "HAILSTORM_FAULT": f"during-delivery:{kill_at}",
            },
            timeout=240,  # the first one waits until all is loaded that others are forked with
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        sink.open(counts_delivery())
        assert (got(sink) or 0) == kill_at - 1
        for number, rows in enumerate(commits, 1):
            sink.deliver(Parcel.of(number, rows))
        assert got(sink) == 5
        sink.close()
        assert self.counts(harness) == oracle

    def test_a_commit_comes_in_pieces(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        rows = [("insert", f"word {number}", number) for number in range(10)]
        pieces = [changes(*rows[start : start + 4]) for start in range(0, 10, 4)]
        sink.deliver(Parcel(1, 10, lambda: iter(pieces)))
        sink.deliver(Parcel.of(2, changes(("update", "word 9", 90), ("delete", "word 0", None))))
        sink.close()
        assert self.counts(harness) == words(*((f"word {n}", n) for n in range(1, 9)), ("word 9", 90))

    def test_a_whole_table_replaces_what_was_there(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", "gone", 1), ("insert", "rain", 1))))
        pieces = [changes(("insert", "rain", 5)), changes(("insert", "hail", 7))]
        for _ in range(2):  # also when it comes again
            sink.deliver(Parcel(4, 2, lambda: iter(pieces), whole=True))
        sink.deliver(Parcel.of(5, changes(("update", "hail", 8))))
        sink.close()
        # Nobody tells a log of changes what went meanwhile.
        left = [("gone", 1)] if self.is_a_log and not self.has_generations else []
        assert self.counts(harness) == words(("rain", 5), ("hail", 8), *left)

    def test_a_whole_table_may_be_empty(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        sink.deliver(Parcel(2, 0, lambda: iter(()), whole=True))
        assert got(sink) == (2 if sink.keeps_cursor else None)
        sink.close()
        kept = self.is_a_log and not self.has_generations
        assert self.counts(harness) == (words(("rain", 1)) if kept else [])

    def test_an_error_within_a_whole_table_leaves_what_was_there(self, harness: Harness) -> None:
        sink = harness.make("board")
        if not sink.keeps_cursor:
            pytest.skip("has no transaction")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        whole = Parcel.of(2, changes(("insert", "hail", 1)), whole=True)
        with faults.inject("during-delivery", ZeroDivisionError()), pytest.raises(ZeroDivisionError):
            sink.deliver(whole)
        assert got(sink) == 1
        assert self.counts(harness) == words(("rain", 1))
        sink.deliver(whole)
        sink.close()
        kept = self.is_a_log and not self.has_generations
        assert self.counts(harness) == words(("hail", 1), *([("rain", 1)] if kept else []))

    def test_the_cursor_of_another_ledger_is_refused_whatever_its_number(self, harness: Harness) -> None:
        sink = harness.make("board")
        if not sink.keeps_cursor:
            pytest.skip("the ledger keeps its cursor")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(3, changes(("insert", "rain", 1))))
        sink.close()
        for commit in (2, 3, 4):
            other = harness.make("board")
            with pytest.raises(SinkError, match="HS-SNK-060") as caught:
                delivery = counts_delivery(ledger="another")
                other.open(delivery)
                delivery.refuse_other_ledger(other.cursor() or Cursor("another", 0))
                other.deliver(Parcel.of(commit, changes(("insert", "hail", 1))))
            assert "hailstorm resend APP board" in caught.value.hint
            other.close()
        assert self.counts(harness) == words(("rain", 1))

    def test_a_table_that_is_sent_again_takes_over_from_another_ledger(self, harness: Harness) -> None:
        sink = harness.make("board")
        if not sink.keeps_cursor:
            pytest.skip("the ledger keeps its cursor")
        sink.open(counts_delivery())
        sink.deliver(Parcel.of(9, changes(("insert", "gone", 1), ("insert", "rain", 1))))
        sink.close()
        heir = harness.make("board")
        heir.open(replace(counts_delivery(ledger="another"), takes_over=True))
        heir.deliver(Parcel.of(2, changes(("insert", "rain", 2)), whole=True))
        heir.deliver(Parcel.of(3, changes(("insert", "hail", 3))))
        assert heir.cursor() == Cursor("another", 3)
        heir.close()
        left = [("gone", 1)] if self.is_a_log and not self.has_generations else []
        assert self.counts(harness) == words(("rain", 2), ("hail", 3), *left)

    def test_two_sinks_cannot_have_one_table(self, harness: Harness) -> None:
        first, second = harness.make("board"), harness.make("board")
        if not self.has_owner:
            pytest.skip("several may write there")
        first.open(counts_delivery())
        first.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        first.close()
        with pytest.raises(SinkError, match="HS-SNK-062") as caught:
            second.open(counts_delivery("other"))
        assert "it belongs to sink trending/board" in caught.value.what
        second.close()
        assert self.counts(harness) == words(("rain", 1))

    def test_a_sink_is_a_value_also_while_it_is_open(self, harness: Harness) -> None:
        sink = harness.make("board")
        sink.open(counts_delivery())
        copy = pickle.loads(pickle.dumps(sink))
        assert copy == sink
        with pytest.raises(RuntimeError, match="not open"):
            copy.deliver(Parcel.of(1, changes()))
        sink.close()
        sink.close()

    def test_it_describes_itself_as_json(self, harness: Harness) -> None:
        sink = harness.make("board")
        assert isinstance(sink, Sink)
        assert json.loads(json.dumps(sink.describe())) == sink.describe()
        assert type(sink.resolve(Path("elsewhere"))) is type(sink)
