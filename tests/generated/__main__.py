"""`python -m tests.generated --seed N --minutes M`: draw, run, compare; what fails is shrunk to a script."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hailstorm.engine.spark.session import start_session
from tests.generated.campaign import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10**9, help="how many seeds; without it, until the time is over")
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long at most")
    parser.add_argument("--scripts", type=Path, default=Path("failures"), help="where the scripts of failures go")
    parser.add_argument("--kinds", nargs="+", default=(), help="only cases with a step of these kinds: window join")
    options = parser.parse_args()
    spark = start_session("generated", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    seeds = range(options.seed, options.seed + options.count)
    done = campaign(spark, seeds, options.scripts, 60 * options.minutes, options.kinds)
    print(f"{done.cases} cases from seed {options.seed}, {len(done.failures)} failed: {dict(done.kinds)}")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
