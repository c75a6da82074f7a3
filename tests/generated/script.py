"""A case as Python: what the generator runs, and what a person pastes. Only hailstorm is needed to run it."""

from __future__ import annotations

import textwrap

from tests.generated.cases import Case
from tests.generated.monoids import OWN
from tests.generated.steps_of_ticks import PROCESSES
from tests.generated.ways import WAYS

_IMPORTS = """import datetime
import tempfile
from itertools import cycle
from pathlib import Path

import hailstorm as hs
from hailstorm.engine.ticks.pacing import Pace
from hailstorm.testing import Driver

folder, delivered = Path(tempfile.mkdtemp()), {}
"""


def topologies(case: Case) -> str:
    """A function per version of the topology."""
    parts = []
    for number, steps in enumerate(case.versions):
        body = "\n".join(
            ['storm = hs.Topology("case", error_limit=1)', *(step.code() for step in steps), "return storm"]
        )
        parts.append(f"def version_{number}():\n{textwrap.indent(body, '    ')}\n")
    return "\n\n".join(parts)


def declared(case: Case) -> str:
    """All that comes before the driver."""
    versions = topologies(case)
    own = (OWN if "Longest(" in versions else "") + (PROCESSES if "using=" in versions else "")
    return "\n".join([_IMPORTS, own, versions, f"\n{WAYS[case.way].before}"])


def driving(case: Case) -> str:
    """What happens, as statements on `driver`."""
    return "\n".join([*(event.code(case) for event in case.events), "summary = driver.stop()"])


def script(case: Case, ending: str) -> str:
    """All of it, with something at the end that shows what is wrong."""
    inside = textwrap.indent(f"{driving(case)}\n{ending or 'pass'}", "    ")
    return "\n".join(
        [
            f'"""Seed {case.seed} of the generator, shrunk."""\n',
            declared(case),
            f"with Driver(version_0(), {WAYS[case.way].arguments}, deliver=True) as driver:",
            inside,
            "",
        ]
    )
