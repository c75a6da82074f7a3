"""The time machine on a topology, from Python: what the commands do, with answers that show themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.progress import Retried, ignore_progress
from hailstorm.errors import HailstormError
from hailstorm.history.one_record import Record


def weather(folder: Path, fixed: bool = False) -> hs.Topology:
    storm = hs.Topology("weather", ledger=folder / "ledger")
    lines = storm.spout("lines", hs.Log(folder / "lines"), schema="text STRING")

    def split(line: hs.Row) -> Iterator[dict[str, str]]:
        if line.text == "broken" and not fixed:
            raise ValueError("no such weather")
        yield from ({"word": word} for word in line.text.split())

    counts = lines.bolt(split, name="words", returns="word STRING").fold("counts", by="word", n=hs.count())
    counts.sink("board", hs.Sqlite(folder / "board.db", table="counts"))
    lines.sink("raw", hs.Parquet(folder / "raw"))
    return storm


def test_a_topology_looks_back_and_tries_again(spark: SparkSession, tmp_path: Path) -> None:
    log = hs.Log(tmp_path / "lines").create(1)
    storm = weather(tmp_path)
    with pytest.raises(HailstormError) as refused:
        storm.plan()
    assert refused.value.code == "HS-CLI-112"
    for text in ("hail rain", "broken", "rain"):
        log.append([{"text": text}])
        storm.run(until="caught-up", on_progress=ignore_progress)
    ledger = hs.open_ledger(tmp_path / "ledger")
    first = next(commit.commit for commit in ledger.commits() if commit.outbox.get("board"))

    (audited,) = storm.audit(keys="a..q")
    assert (audited.step, audited.comparison.rows, audited.comparison.different) == ("counts", 1, 0)
    html = storm.audit("counts")._repr_html_()
    assert "<td>counts</td><td>2</td><td>2</td><td>0</td><td>batch</td>" in html
    assert audited._repr_html_() == html.replace("<td>2</td>", "<td>1</td>")

    replayed = storm.replay(0)
    assert not replayed.unlike
    assert f"<caption>{replayed.commits} commits were run again, and gave the same</caption>" in replayed._repr_html_()

    trace = storm.trace("lines/0@2")
    assert [event.after for event in trace.events if event.what == "key"] == [{"n": 2}]
    html = trace._repr_html_()
    assert "<caption>lines/0@2</caption>" in html
    assert "<td>counts</td><td>key</td><td>{&#x27;word&#x27;: &#x27;rain&#x27;}</td>" in html
    assert storm.trace_key("counts", word="rain") == (Record("lines", 0, 0), Record("lines", 0, 2))
    assert storm.trace_key("counts", since=first, word="rain") == (Record("lines", 0, 2),)
    assert storm.trace_output("board", first, 0) == (Record("lines", 0, 0),)

    fixed = weather(tmp_path, fixed=True)
    planned = fixed.plan()
    assert planned.waits == ()
    assert {one.step: one.change for one in planned.steps}["words"] == "changed"
    assert "<caption>run goes on by itself</caption>" in planned._repr_html_()
    assert fixed.retry() == Retried(letters=1, failed=0)
    assert ledger.errors().num_rows == 0

    assert not fixed.resend("board").undelivered
    for sink, code in (("bored", "HS-CLI-050"), ("raw", "HS-CLI-051")):
        with pytest.raises(HailstormError) as refused:
            fixed.resend(sink)
        assert refused.value.code == code

    html = fixed.rewind(first, dry_run=True)._repr_html_()
    assert f"back to commit {first}</caption>" in html
    assert "<td>sink &#x27;board&#x27; gets the difference of its table</td>" in html
    with pytest.raises(HailstormError) as refused:
        storm.audit(keys="everything")
    assert refused.value.code == "HS-CLI-084"
