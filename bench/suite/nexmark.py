"""Nexmark: events per second of every query, beside Structured Streaming where it can express it.

The table of docs/nexmark.md is made here.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from bench.bench import Bench, Outcome, Say
from bench.contest import ROOT, Effort, Entrant, run_contest
from bench.work import Work
from hailstorm.examples.nexmark.queries import QUERIES

PAGE = ROOT / "docs" / "nexmark.md"
_BEGIN, _END = "<!-- nexmark: begin -->", "<!-- nexmark: end -->"
THEIRS = "Structured Streaming, "
_EVENTS = 50_000  # a tick
_QUICK = ("q0", "q5", "q17")

_CHANGES = "an aggregate of rows that change; it takes only those that are final"
_JOINED = "a join with a count that goes on changing"
# Why Structured Streaming cannot give what the query asks for, while it goes on.
WHY_NOT = {
    "q4": _CHANGES,
    "q5": "the best of counts that change; only of windows that have ended",
    "q6": _CHANGES,
    "q7": "a join with a maximum that changes; only of windows that have ended",
    "q8": "joined windows; only of those that have ended",
    "q9": "an aggregate over a join without a bound in time",
    "q19": "ranks within groups",
    "q101": _JOINED,
    "q102": _JOINED,
    "q103": _JOINED,
    "q104": _JOINED,
    "q105": _JOINED,
    "q106": _CHANGES,
}


def nexmark(quick: bool, say: Say) -> Outcome:
    """One query after the other: two Sparks at a time are enough for a small machine."""
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=3, warm_up=10)
    work = Work("nexmark", 5_000 if quick else _EVENTS, _EVENTS)
    series = []
    for query in _QUICK if quick else QUERIES:
        entrants = [Entrant(query, "nexmark", work, {"query": query})]
        if query not in WHY_NOT:
            entrants.append(Entrant(THEIRS + query, "nexmark-streaming", work, {"query": query}))
        series += run_contest(entrants, effort, lambda text, query=query: say(f"{query}: {text}")).values()
    return Outcome(tuple(series), ())


def lines_of_code(query: str) -> int:
    """Of its function, and of no comment, docstring or empty line."""
    tree = ast.parse(inspect.getsource(QUERIES[query]))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    function.body = function.body[1:]  # the docstring
    return len({line for node in ast.walk(function) if isinstance(node, ast.stmt | ast.expr) for line in _lines(node)})


def _lines(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def table(measured: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """The table. `measured` are the series of a run, by label; without one nothing is said of speed."""
    rows = ["| query | what it asks | lines | events/s | Structured Streaming, events/s |", "|---|---|---:|---:|---|"]
    known = measured or {}

    def rate(label: str) -> str:
        # Of all events, as there: a topology is told only of the kinds that it reads.
        return f"{1000 * _EVENTS / known[label]['median_ms']:,.0f}" if label in known else ""

    for query, function in QUERIES.items():
        asks = (inspect.getdoc(function) or "").split("\n")[0].rstrip(".")
        theirs = f"no: {WHY_NOT[query]}" if query in WHY_NOT else rate(THEIRS + query) or "can"
        rows.append(f"| {query} | {asks} | {lines_of_code(query)} | {rate(query) or 'not measured'} | {theirs} |")
    return "\n".join(rows)


def write_page(result: Mapping[str, Any] | None) -> None:
    """With the figures of a full run, or without any."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    measured = None if result is None else {series["label"]: series for series in result["series"]}
    PAGE.write_text(f"{before}{_BEGIN}\n{table(measured)}\n{_END}{after}")


BENCH = Bench("nexmark", "every query of Nexmark, 50,000 events a tick", nexmark)
