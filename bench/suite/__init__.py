"""The benches, a module each, in the order of docs/performance.md."""

from __future__ import annotations

from bench.bench import Bench
from bench.suite import (
    audit,
    bolt,
    day,
    growth,
    hot,
    housekeeping,
    idle,
    json_lines,
    kafka_count,
    kafka_read,
    large,
    latency,
    model,
    pipeline,
    postgres,
    restart,
    six,
    sketches,
    small,
    time,
    top,
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
    top.BENCH,
    sketches.BENCH,
    housekeeping.BENCH,
    day.BENCH,
    idle.BENCH,
    restart.BENCH,
    bolt.BENCH,
    model.BENCH,
    kafka_read.BENCH,
    kafka_count.BENCH,
    latency.BENCH,
    pipeline.BENCH,
    postgres.BENCH,
    audit.BENCH,
    *time.TIME,
)
