"""Many cases, one after the other, in one Spark session. What fails is shrunk to a script."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tests.generated.cases import draw_case
from tests.generated.check import check
from tests.generated.script import script
from tests.generated.shrink import shrunk
from tests.generated.sink_edits import with_sinks_that_come_and_go

_SCRIPTS_OF_A_KIND = 2  # of many failures alike, two scripts tell enough


@dataclass
class Campaign:
    cases: int = 0
    failures: dict[int, str] = field(default_factory=dict)  # by seed: what is wrong
    kinds: Counter[str] = field(default_factory=Counter)


def campaign(
    spark: SparkSession,
    seeds: Iterable[int],
    scripts: Path,
    seconds: float | None = None,
    kinds: Collection[str] = (),
) -> Campaign:
    """Run the cases of these seeds, until the time is over. Prints as it goes; scripts go to a folder.

    With `kinds`, only the cases that have a step of one of them.
    """
    done, began = Campaign(), time.monotonic()
    for seed in seeds:
        if seconds is not None and time.monotonic() - began > seconds:
            break
        case = with_sinks_that_come_and_go(draw_case(seed))
        if kinds and not any(step.kind in kinds for step in case.steps()):
            continue
        failure = check(case, spark)
        done.cases += 1
        if failure is not None:
            done.failures[seed] = failure.kind
            done.kinds[failure.kind] += 1
            print(f"--- seed {seed}, {case.way}: {failure.kind}\n{failure.text}", flush=True)
            if done.kinds[failure.kind] <= _SCRIPTS_OF_A_KIND:
                case, failure = shrunk(case, failure, spark)
                scripts.mkdir(parents=True, exist_ok=True)
                path = scripts / f"seed_{seed}.py"
                path.write_text(script(case, failure.ending))
                print(f"{path}:\n{path.read_text()}", flush=True)
        if done.cases % 10 == 0:
            print(f"{done.cases} cases, {len(done.failures)} failed, {time.monotonic() - began:.0f} s", flush=True)
    return done
