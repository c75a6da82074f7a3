"""Six folds by different keys on one stream, 100,000 rows: every record is read once. Structured Streaming needs six
queries; they run side by side, and what is told is how long each takes for its micro-batch."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, ratio, run_contest
from bench.work import Work

ONE = Work("one-of-six", rows=100_000, keys=100_000)
SIX = Work("six", rows=100_000, keys=100_000)
SELECTED = Work("six-selected", rows=100_000, keys=100_000)  # a select before each fold computes its key


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=2, warm_up=10)
    entrants = [
        Entrant("Hailstorm, one fold", "hailstorm", ONE),
        Entrant("Hailstorm, six folds", "hailstorm", SIX),
        Entrant("Hailstorm, six selects and folds", "hailstorm", SELECTED),
        Entrant("Structured Streaming, six queries", "streaming", SIX),
    ]
    series = run_contest(entrants, effort, say)
    one, six, selected, theirs = series.values()
    return Outcome(
        tuple(series.values()),
        (at_most("times one fold", ratio(six, one), 3),),
        {
            "times one fold, with a select before each": ratio(selected, one).value,
            "of Structured Streaming's six queries": ratio(six, theirs).value,
        },
    )


BENCH = Bench("six", "six folds by different keys on one stream, 100,000 rows", measure)
