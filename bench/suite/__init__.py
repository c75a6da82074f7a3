"""The benches, a module each, in the order of docs/performance.md."""

from __future__ import annotations

from bench.bench import Bench
from bench.suite import large, small

BENCHES: tuple[Bench, ...] = (small.BENCH, large.BENCH)
