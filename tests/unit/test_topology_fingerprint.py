"""Fingerprints change when, and only when, what a step does changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hailstorm as hs
from hailstorm.algebra.function_identity import function_identity
from hailstorm.topology.fingerprint import fingerprint, step_identity

APP = """
import hailstorm as hs

STOP = {"the", "a", "of", "and", "or", "not", "but", "to", "in", "on"}
LIMIT = 3


def clean(word):
    return word.lower()


storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="text STRING, at TIMESTAMP")


@tweets.bolt(returns="word STRING")
def words(tweet):
    for word in tweet.text.split():
        if word not in STOP and len(word) > LIMIT:
            yield {"word": clean(word)}


counts = words.fold("counts", by="word", n=hs.count())
counts.where("many", "n > 10").sink("board", hs.Console())
"""


def fingerprints(tmp_path: Path, source: str) -> dict[str, str]:
    """Of an app in a file of its own, because the source is read from there."""
    app = tmp_path / f"app_{len(list(tmp_path.iterdir()))}.py"
    app.write_text(source)
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(source, str(app), "exec"), names)
    return fingerprint(names["storm"])


def changed(tmp_path: Path, old: str, new: str) -> list[str]:
    assert old in APP
    before, after = fingerprints(tmp_path, APP), fingerprints(tmp_path, APP.replace(old, new))
    return [name for name in before if before[name] != after.get(name)]


def test_comments_layout_and_position_change_nothing(tmp_path: Path) -> None:
    source = APP.replace("def words(tweet):", 'def words(tweet: object) -> object:\n    """Splits."""\n    # why\n')
    source = "# a file of mine\n\n\n" + source.replace(
        'storm = hs.Topology("trending")', 'storm = hs.Topology(\n    "trending",\n)'
    )
    assert fingerprints(tmp_path, source) == fingerprints(tmp_path, APP)


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    [
        ("tweet.text.split()", "tweet.text.split(',')", ["words"]),
        ("LIMIT = 3", "LIMIT = 4", ["words"]),
        ('"the", "a", "of"', '"the", "a"', ["words"]),
        ("word.lower()", "word.upper()", ["words"]),
        ('returns="word STRING"', 'returns="word STRING NOT NULL"', ["words"]),
        ('"n > 10"', '"n > 11"', ["many"]),
        ("n=hs.count()", 'n=hs.max("word")', ["counts", "many"]),
        ('"data/tweets"', '"data/posts"', ["tweets"]),
        ("at TIMESTAMP", "at DATE", ["tweets"]),
        ('at TIMESTAMP"', 'at TIMESTAMP", max_ahead="2 days"', ["tweets"]),
    ],
)
def test_a_change_of_meaning_changes_the_step_and_what_takes_its_columns(
    tmp_path: Path, old: str, new: str, steps: list[str]
) -> None:
    assert changed(tmp_path, old, new) == steps


def test_a_project_may_be_moved_and_its_paths_be_resolved() -> None:
    storm = hs.Topology("t")
    storm.spout("rows", hs.Log("data/rows"), schema="a INT").sink("out", hs.Sqlite("out.db", table="rows"))
    before = fingerprint(storm)

    def place(step: Any) -> Any:
        name = "source" if step.kind == "spout" else "sink"
        return replace(step, **{name: getattr(step, name).resolve(storm.folder)})

    resolved = storm.with_steps(place)
    assert resolved.steps != storm.steps
    assert fingerprint(resolved) == before


def test_the_topologys_name_and_settings_are_no_part_of_it(tmp_path: Path) -> None:
    assert changed(tmp_path, '"trending"', '"other", latency="5 seconds"') == []


@pytest.mark.slow
def test_another_process_with_another_seed_for_hashes_comes_to_the_same(tmp_path: Path) -> None:
    app = tmp_path / "elsewhere.py"
    ask = "from hailstorm.topology.fingerprint import fingerprint\nprint(json.dumps(fingerprint(storm)))\n"
    app.write_text("import json\n" + APP + ask)
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(app)], check=True, capture_output=True, timeout=60, env=environment)
    assert json.loads(done.stdout) == fingerprints(tmp_path, APP)


def test_functions_without_source_are_known_by_their_code() -> None:
    def made(source: str) -> Any:
        return function_identity(eval(source))

    assert made("lambda row: row.a + 1") == made("lambda row:  row.a + 1")
    assert made("lambda row: row.a + 1") != made("lambda row: row.a + 2")
    assert made("lambda row: row.a in {1, 2}") != made("lambda row: row.a in {1, 3}")
    assert made("lambda row: row.a") != made("lambda row: row.b")


def test_what_a_function_encloses_is_part_of_it() -> None:
    def above(limit: int) -> Any:
        return lambda row: row.a > limit

    assert function_identity(above(1)) == function_identity(above(1))
    assert function_identity(above(1)) != function_identity(above(2))


def test_objects_partials_and_methods_are_known_by_their_state() -> None:
    import functools

    class Above:
        def __init__(self, limit: int) -> None:
            self.limit = limit

        def __call__(self, row: Any) -> Any:
            return row.a > self.limit

    def above(limit: int, row: Any) -> Any:
        return row.a > limit

    for make in (Above, lambda n: functools.partial(above, n), lambda n: Above(n).__call__):
        assert function_identity(make(1)) == function_identity(make(1))
        assert function_identity(make(1)) != function_identity(make(2))


def test_functions_that_call_each_other_come_to_an_end() -> None:
    assert function_identity(even) != function_identity(odd)


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def test_every_step_has_one_and_it_is_readable_json_before_the_hash() -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("rows"), schema="a INT")
    rows.fold("counts", by="a", n=hs.count()).sink("board", hs.Console())
    found = fingerprint(storm)
    assert list(found) == ["rows", "counts", "board"]
    assert {len(value) for value in found.values()} == {64}
    identity = step_identity(storm.step("counts"), storm.folder)
    assert (identity["kind"], identity["inputs"], identity["key"]) == ("fold", ["rows"], ["a"])
    assert "at" not in identity
