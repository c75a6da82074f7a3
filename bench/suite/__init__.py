"""The benches, a module each, in the order of docs/performance.md."""

from __future__ import annotations

from bench.bench import Bench
from bench.suite import (
    bolt,
    day,
    growth,
    hot,
    housekeeping,
    json_lines,
    kafka_count,
    kafka_read,
    large,
    latency,
    model,
    postgres,
    restart,
    six,
    sketches,
    small,
    words,
)

BENCHES: tuple[Bench, ...] = (
    small.BENCH,
    large.BENCH,
    growth.BENCH,
    json_lines.BENCH,
    words.BENCH,
    six.BENCH,
    hot.BENCH,
    sketches.BENCH,
    housekeeping.BENCH,
    day.BENCH,
    restart.BENCH,
    bolt.BENCH,
    model.BENCH,
    kafka_read.BENCH,
    kafka_count.BENCH,
    latency.BENCH,
    postgres.BENCH,
)
