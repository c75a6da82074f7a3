"""What goes by event time: windows, sessions, joins, processes and timers, beside Structured Streaming where it can.

A tick of the windowed works is five minutes of event time. So every tick begins a window of each key and ends one, and
no tick is cheaper than the others because nothing ends in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.bench import Bench, Check, Outcome, Say, at_least, at_most, inverse
from bench.contest import Effort, Entrant, Series, fastest, ratio, run_contest
from bench.work import Kind, Work

_FIVE_MINUTES = 300_000_000
_ROWS, _KEYS = 500_000, 100_000
_OURS, _PLAIN, _THEIRS = "Hailstorm", "plain fold", "Structured Streaming"


def _of_time(kind: Kind, rows: int = _ROWS, keys: int = _KEYS, filled: int | None = None) -> Work:
    return Work(kind, rows, keys, apart=_FIVE_MINUTES // rows, filled=filled or rows)


def _measured(entrants: Sequence[Entrant], quick: bool, say: Say, burst: int = 2) -> dict[str, Series]:
    effort = Effort(rounds=3, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=burst, warm_up=14)
    return run_contest(entrants, effort, say)


def _times_faster(series: dict[str, Series], limit: float) -> Check:
    faster = inverse(ratio(series[_OURS], fastest(series, _THEIRS)))
    return at_least("times Structured Streaming's rows/s", faster, limit)


def tumbling(quick: bool, say: Say) -> Outcome:
    work = _of_time("tumbling")
    plain = Work("count", _ROWS, _KEYS)
    entrants = [
        Entrant(_OURS, "hailstorm", work),
        Entrant(_PLAIN, "hailstorm", plain),
        Entrant(_THEIRS, "streaming", work),
    ]
    series = _measured(entrants, quick, say)
    beside = at_most("times our plain fold", ratio(series[_OURS], series[_PLAIN]), 1.3)
    return Outcome(tuple(series.values()), (_times_faster(series, 4), beside))


def sliding(quick: bool, say: Say) -> Outcome:
    work, other = _of_time("sliding"), _of_time("tumbling")
    entrants = [
        Entrant(_OURS, "hailstorm", work),
        Entrant("tumbling", "hailstorm", other),
        Entrant(_THEIRS, "streaming", work),
    ]
    series = _measured(entrants, quick, say)
    beside = at_most("times the tumbling one", ratio(series[_OURS], series["tumbling"]), 1.6)
    return Outcome(tuple(series.values()), (_times_faster(series, 6), beside))


def sessions(quick: bool, say: Say) -> Outcome:
    work = _of_time("sessions")
    series = _measured([Entrant(_OURS, "hailstorm", work), Entrant(_THEIRS, "streaming", work)], quick, say)
    return Outcome(tuple(series.values()), (_times_faster(series, 3),))


def join(quick: bool, say: Say) -> Outcome:
    work = _of_time("views-and-clicks", rows=200_000, keys=200_000)
    series = _measured([Entrant(_OURS, "hailstorm", work), Entrant(_THEIRS, "streaming", work)], quick, say)
    return Outcome(tuple(series.values()), (_times_faster(series, 3),))


def tables(quick: bool, say: Say) -> Outcome:
    keys = 100_000 if quick else 1_000_000
    work, fold = Work("tables", 10_000, keys, filled=2 * keys), Work("count", 10_000, keys)
    entrants = [Entrant(_OURS, "hailstorm", work), Entrant(_PLAIN, "hailstorm", fold)]
    series = _measured(entrants, quick, say, burst=5)
    beside = at_most("times a fold with as many changes", ratio(series[_OURS], series[_PLAIN]), 3)
    return Outcome(tuple(series.values()), (beside,))


def process(quick: bool, say: Say) -> Outcome:
    work = Work("process", 50_000, 20_000) if quick else Work("process", _ROWS, 200_000)
    entrants = [
        Entrant(_OURS, "hailstorm", work),
        Entrant(f"{_THEIRS}, pandas", "streaming", work, {"way": "pandas"}),
        Entrant(f"{_THEIRS}, rows", "streaming", work, {"way": "rows"}),
    ]
    # A tick of theirs takes as long as a whole bench of others: few have to do.
    effort = Effort(rounds=3, burst=1, warm_up=2)
    series = run_contest(entrants[:2] if quick else entrants, effort, say)
    return Outcome(tuple(series.values()), (_times_faster(series, 8),))


def pending(quick: bool, say: Say) -> Outcome:
    """A thousand rows a tick, beside a million timers, or a million closed windows that are kept; and without."""
    many = 100_000 if quick else 1_000_000
    entrants = [
        Entrant("many timers", "hailstorm", Work("timers", 1_000, many)),
        Entrant("no timers", "hailstorm", Work("process", 1_000, many)),
        # A key has one row in each of its windows, so there are as many windows as rows, and a million are within the
        # day for which they are kept.
        Entrant("many windows", "hailstorm", Work("tumbling", 1_000, 4_000, apart=75_000, filled=many)),
        Entrant("few windows", "hailstorm", Work("tumbling", 1_000, 4_000, apart=75_000, filled=1_000)),
    ]
    series = _measured(entrants, quick, say, burst=15)
    return Outcome(
        tuple(series.values()),
        (
            at_most("times without timers", ratio(series["many timers"], series["no timers"]), 1.2),
            at_most("times without closed windows", ratio(series["many windows"], series["few windows"]), 1.2),
        ),
    )


def small(quick: bool, say: Say) -> Outcome:
    """Ticks of 1,000 rows, which are two seconds of event time: few of them begin a window."""
    plain, work = Work("count", 1_000, _KEYS), Work("tumbling", 1_000, _KEYS, apart=2_000)
    ways = {"resident": [0], "prepared": [1], "planned": [2]}
    entrants = [
        Entrant(f"{who}, {name}", "hailstorm", what, {"ways": way})
        for name, way in ways.items()
        for who, what in ((_OURS, work), (_PLAIN, plain))
    ]
    series = _measured(entrants, quick, say, burst=15)
    return Outcome(
        tuple(series.values()),
        tuple(
            at_most(
                f"times the plain fold's, {name}", ratio(series[f"{_OURS}, {name}"], series[f"{_PLAIN}, {name}"]), 1.5
            )
            for name in ways
        ),
    )


TIME: tuple[Bench, ...] = (
    Bench("process", "a process, 500,000 events a tick, 200k keys", process),
    Bench("tumbling", "count by window, 500,000 rows a tick, 100k keys", tumbling),
    Bench("sliding", "final count by window, 12 windows to a row, 500,000 rows a tick, 100k keys", sliding),
    Bench("sessions", "count by session, 500,000 rows a tick, 100k users", sessions),
    Bench("join", "views and their clicks within 10 minutes, 200,000 rows a tick", join),
    Bench("tables", "table-table join, 1M rows on each side, 10,000 changes a tick", tables),
    Bench("pending", "1,000 rows a tick beside a million timers, or closed windows", pending),
    Bench("windowed", "small windowed ticks, 1,000 rows a tick, 100k keys", small),
)
