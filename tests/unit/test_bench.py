"""What the benches compute: statistics, the oracle of the counts, and the picture."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from bench.bench import Check
from bench.broker import counts_in, records, totals
from bench.contest import Ratio, Series, fastest, ratio
from bench.object_store import Counted, Traffic, folder_of, kind_of
from bench.peers.nexmark import EXPRESSIBLE
from bench.peers.peer import Tick
from bench.picture import comparisons, doublings, picture
from bench.suite import BENCHES, nexmark
from bench.suite.cluster_requests import bill
from bench.turn import latencies_ms, percentiles
from bench.work import Work
from hailstorm.examples.nexmark.queries import QUERIES

WORK = Work("count", rows=10, keys=10)


def series(label: str, *rounds: float) -> Series:
    return Series(label, tuple((Tick(ms, 100),) for ms in rounds))


def check(value: float, limit: float, at_most: bool = True) -> dict[str, Any]:
    kept = Check("of a tick", Ratio(value, value, value), limit, at_most).kept
    measured = {"value": value, "low": value, "high": value}
    return {"text": "of a tick", "measured": measured, "limit": limit, "at_most": at_most, "kept": kept}


def test_a_ratio_is_taken_within_rounds() -> None:
    assert ratio(series("a", 1, 20, 3), series("b", 2, 40, 3)) == Ratio(0.5, 0.5, 0.75)


def test_a_peer_is_compared_at_its_best() -> None:
    entrants = {one.label: one for one in (series("us", 1), series("them", 9), series("them, tuned", 5))}
    assert fastest(entrants, "them").label == "them, tuned"


def test_one_tick_is_its_own_quartiles() -> None:
    assert series("a", 7).quartiles_ms == (7, 7)


def test_ticks_without_rows_have_no_rate() -> None:
    assert Series("a", ((Tick(5, 0),),)).rows_per_second == 0


def test_latencies_are_of_what_was_written_in_the_time_that_counts() -> None:
    arrivals = [(1_000, 2_000), (5_000, 9_000), (6_000, 13_500), (9_000, 10_000)]
    assert latencies_ms(arrivals, 5_000, 9_000) == [4.0, 7.5]


def test_percentiles_are_the_median_and_the_99th() -> None:
    assert percentiles(range(101)) == (50, 99)


def test_records_of_a_round_have_every_key_once_and_the_oracle_counts_them() -> None:
    found = [record.as_py() for record in records(WORK, 0, 10)]
    assert found[1] == b'{"k": 1, "v": 1}'
    assert len(set(found)) == 10
    assert totals(WORK, 10).tolist() == [1] * 10
    assert totals(WORK, 11).tolist() == [2, *[1] * 9]


def test_the_last_count_of_a_key_is_what_counts() -> None:
    written = [b'{"k":1,"n":1}', b'{"k":2,"n":5}', b'{"k":1,"n":2}']
    assert counts_in(written, 4).tolist() == [0, 2, 5, 0]
    assert not np.array_equal(counts_in(written[:2], 4), counts_in(written, 4))


@pytest.mark.parametrize(("times", "expected"), [(1, 0), (2, 1), (0.5, -1), (100, 4), (0.01, -3)])
def test_a_bar_is_as_long_as_hailstorm_is_faster(times: float, expected: float) -> None:
    assert doublings(times) == expected


def test_the_picture_compares_with_what_people_would_use_instead() -> None:
    checks = [
        {**check(0.25, 0.8), "text": "of Structured Streaming's p50"},
        {**check(8, 5, at_most=False), "text": "times Structured Streaming's rows/s"},
        {**check(0.5, 0.8), "text": "times the tick with 100k keys"},  # our own limits are not in it
    ]
    ours = {"label": "Hailstorm", "median_ms": 35.0, "quartiles_ms": [35.0, 35.0]}
    result = {"bench": "latency", "title": "ticks", "checks": checks, "machine": {"cores": 2, "cpu": "A & B"}}
    results = [{**result, "series": [ours], "at": "2026-11-16T07:01:23+00:00"}]
    found = {(row.other, row.times) for row in comparisons(results)}
    flink = "Flink and Bytewax, which deliver at least once"
    assert found == {("Structured Streaming", 4.0), ("Structured Streaming", 8.0), (flink, 0.5)}
    drawn = picture(results)
    for text in ("ticks, p50", "against Structured Streaming", "8.0 times", "0.5 times", "A &amp; B", "2026-11-16"):
        assert text in drawn


def test_the_table_of_nexmark_has_every_query_as_it_is() -> None:
    page = nexmark.PAGE.read_text()
    for row in nexmark.table().splitlines():
        query, asks, lines = row.split(" | ")[:3] if row.startswith("| q") else ("", "", "")
        assert f"{query} | {asks} | {lines} |" in page or not query, "bench.suite.nexmark.write_page(None) writes it"
    measured = {"q0": {"median_ms": 40.0}, f"{nexmark.THEIRS}q0": {"median_ms": 500.0}}
    assert "| 2 | 1,250,000 | 100,000 |" in nexmark.table(measured), "all 50,000 events of a tick count"
    assert set(nexmark.WHY_NOT).isdisjoint(EXPRESSIBLE)
    assert set(nexmark.WHY_NOT) | set(EXPRESSIBLE) == set(QUERIES)


def test_benches_have_names_of_their_own_and_those_of_clusters_are_among_them() -> None:
    names = [bench.name for bench in BENCHES]
    assert len(names) == len(set(names))
    assert [name.removeprefix("cluster-") for name in names if name.startswith("cluster-")] == [
        "two", "store", "bytes", "cache", "death", "requests",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "kind", "folder"),
    [
        ("GET", "/storms/far/state/counts/x.parquet", "GET", "state"),
        ("GET", "/storms?list-type=2&prefix=far%2Fcommits%2F", "LIST", ""),
        ("PUT", "/storms/far/lease.json", "PUT", "lease.json"),
        ("POST", "/storms/far/state/counts/x.parquet?uploads", "POST", "state"),
        ("POST", "/storms?delete", "DELETE", ""),
        ("HEAD", "/storms/far/commits/1.json", "HEAD", "commits"),
    ],
)
def test_a_request_is_counted_as_the_store_would_bill_it(method: str, path: str, kind: str, folder: str) -> None:
    assert (kind_of(method, path), folder_of(path)) == (kind, folder)


def test_a_bill_is_per_tick_and_per_day() -> None:
    counted = Counted(Counter(PUT=40, GET=100, DELETE=10), Counter())
    found = bill(counted, ticks=10, seconds=864.0)  # a hundredth of a day
    assert found["ticks per day"] == "1,000"
    assert found["requests per tick"] == "DELETE 1.0, GET 10.0, PUT 4.0"
    assert found["requests per day"] == "DELETE 1,000, GET 10,000, PUT 4,000"
    assert [value for name, value in found.items() if name.startswith("dollars per day")] == ["0.02"]


class Echo(BaseHTTPRequestHandler):
    """A store that holds everything: of a GET the path, of anything else nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self) -> None:
        body = self.path.encode() if self.command == "GET" else b""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "7" if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = answer


def test_what_goes_through_the_proxy_is_passed_on_and_counted() -> None:
    store = HTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    with Traffic.to(int(store.server_address[1])) as traffic:
        before = traffic.counted()
        connection = http.client.HTTPConnection("127.0.0.1", traffic.port)
        for method, body in (("PUT", b"rows"), ("GET", None), ("HEAD", None)):
            connection.request(method, "/storms/far/state/x", body)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"/storms/far/state/x" if method == "GET" else b"")
        assert answer.getheader("Content-Length") == "7", "of a file that is only looked for"
        connection.close()
        counted = traffic.counted() - before
    store.shutdown()
    store.server_close()
    assert counted == Counted(Counter(PUT=1, GET=1, HEAD=1), Counter(state=19))
