"""What people from other tools type: the error says what it is called here."""

from __future__ import annotations

import copy
import pickle

import pytest

import hailstorm as hs
from hailstorm.errors import HailstormError, UnknownNameError
from hailstorm.topology import other_words


@pytest.fixture
def lines() -> hs.Stream:
    return hs.Topology("t").spout("lines", hs.Log("x"), schema="text STRING, n INT")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("map", ".bolt("),
        ("filter", ".where("),
        ("flat_map", "yield"),
        ("group_by", ".fold("),
        ("key_by", ".fold("),
        ("aggregate", ".fold("),
        ("foreach", ".sink("),
        ("writeStream", ".sink("),
        ("slect", "Did you mean .select?"),
    ],
)
def test_a_stream_says_what_it_is_called_here(lines: hs.Stream, word: str, says: str) -> None:
    for stream in (lines, lines.fold("counts", by="text", n=hs.count())):
        with pytest.raises(UnknownNameError) as caught:
            getattr(stream, word)
        assert says in str(caught.value)
        assert isinstance(caught.value, AttributeError)
        assert caught.value.at is not None
        assert caught.value.at.short.startswith("test_other_words.py")
        assert not hasattr(stream, word)


@pytest.mark.parametrize(
    ("word", "says"),
    [("avg", "hs.mean"), ("cuont", "Did you mean hs.count?"), ("stream", "hs.Topology("), ("median", "hs.quantiles")],
)
def test_the_package_says_what_it_is_called_here(word: str, says: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        getattr(hs, word)
    assert says in str(caught.value)


@pytest.mark.parametrize("word", ["sink", "top", "count", "aggregate", "process"])
def test_a_window_says_that_it_is_folded_first(lines: hs.Stream, word: str) -> None:
    for windowed in (lines.window("1 hour"), lines.session("1 hour")):
        with pytest.raises(UnknownNameError, match=r"\.fold\(") as caught:
            getattr(windowed, word)
        assert caught.value.at is not None
        assert caught.value.at.short.startswith("test_other_words.py")
        assert copy.copy(windowed).windows == copy.deepcopy(windowed).windows == windowed.windows


def test_the_largest_rows_are_those_of_a_table(lines: hs.Stream) -> None:
    with pytest.raises(UnknownNameError, match=r"\.fold\(\.\.\.\)\.top\("):
        lines.top  # type: ignore[attr-defined]  # noqa: B018


def test_a_topology_says_what_it_is_called_here() -> None:
    with pytest.raises(HailstormError, match=r"\.spout\("):
        hs.Topology("t").stream  # type: ignore[attr-defined]  # noqa: B018


def test_no_word_of_another_tool_is_one_of_ours(lines: hs.Stream) -> None:
    assert not set(other_words.OF_STREAMS) & set(dir(hs.Stream))
    assert set(other_words.OF_STREAMS) & set(dir(hs.Table)) == {"top"}  # which a stream has not
    assert not set(other_words.OF_TOPOLOGIES) & set(dir(hs.Topology))
    assert not set(other_words.OF_THE_PACKAGE) & set(hs.__all__)


def test_handles_are_copied_and_tools_may_ask_for_what_is_not_there(lines: hs.Stream) -> None:
    assert copy.copy(lines).name == copy.deepcopy(lines).name == "lines"
    assert copy.copy(lines.topology).steps == lines.topology.steps
    assert not hasattr(lines, "_repr_jpeg_")
    with pytest.raises(AttributeError) as caught:
        lines.__array_interface__  # type: ignore[attr-defined]  # noqa: B018
    assert not isinstance(caught.value, HailstormError)
    with pytest.raises(Exception):  # noqa: B017 - a log's file handle or not: it must end, and not go round in circles
        pickle.loads(pickle.dumps(lines)).nothing_of_this_name  # noqa: B018


def test_columns_may_have_the_names_of_arguments(lines: hs.Stream) -> None:
    made = lines.select("made", name="text", by="n", ttl="n", columns={"columns": "n"})
    assert made.schema.names == ("columns", "name", "by", "ttl")
    table = made.fold("table", by="name", columns={"by": hs.count(), "ttl": hs.count(), "columns": hs.count()})
    assert table.schema.names == ("name", "by", "ttl", "columns")
    again = table.select("again", name="name", by="by", columns={"two words": "ttl"})
    assert again.schema.names == ("name", "two words", "by")


def test_columns_takes_a_dict() -> None:
    with pytest.raises(HailstormError, match="has columns="):
        hs.Topology("t").spout("l", hs.Log("x"), schema="n INT").select("s", columns=["n"])  # type: ignore[arg-type]
