"""The pictures of a topology, in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hailstorm as hs

FOLDER = Path(__file__).parent / "graphs"


def two_paths() -> hs.Topology:
    """A bolt with a grouping, a union that comes together again, a fold of a fold, a top and two sinks."""
    storm = hs.Topology("two-paths")
    tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, text STRING, at TIMESTAMP")
    posts = storm.spout("posts", hs.Log("data/posts"), schema="user STRING, text STRING, at TIMESTAMP")
    both = tweets.union("both", posts.where("real", "user <> 'bot'"))

    @both.bolt(returns="word STRING, at TIMESTAMP", grouping=hs.fields("user"))
    def words(row: Any) -> None: ...

    counts = words.fold("counts", by="word", n=hs.count(), seen=hs.max("at"))
    counts.top("end", 10, by="n").sink("board", hs.Console())
    counts.fold("total", words=hs.count(), most=hs.max("n")).sink("summary", hs.Console())
    return storm


@pytest.mark.parametrize("form", ["text", "mermaid", "dot", "json"])
def test_a_topology_is_drawn(form: str, golden: Callable[[Path, str], None]) -> None:
    drawn = getattr(two_paths().graph(), form)()
    golden(FOLDER / f"two-paths.{form}", drawn if isinstance(drawn, str) else json.dumps(drawn, indent=1))


def test_an_empty_topology_is_drawn_as_its_name() -> None:
    assert hs.Topology("empty").graph().text() == "empty"
