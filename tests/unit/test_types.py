"""What type checkers see: a typed app has no errors, typical mistakes are found, and everything public is explained."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hailstorm as hs
from hailstorm.engine.progress import Summary
from hailstorm.history.comparing import Comparison
from hailstorm.history.diff import Diff
from hailstorm.history.life import Life
from hailstorm.history.looking_back import Looked
from hailstorm.history.opened import OpenLedger
from hailstorm.history.trace import Event
from hailstorm.ledger.reader import LedgerReader, State
from hailstorm.sinks.sink import Joining, Sink
from hailstorm.spouts.source import LivingSource
from hailstorm.testing import Driver
from hailstorm.topology.graph import Graph

HERE = Path(__file__).parent / "typed"
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_mypy_finds_nothing_in_a_typed_app_and_every_typical_mistake() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, sorted(HERE.glob("*.py")))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = {
        (Path(file).name, int(line)) for file, line in re.findall(r"^(\S+?):(\d+): error", done.stdout, re.MULTILINE)
    }
    marked = enumerate((HERE / "wrong.py").read_text().splitlines(), start=1)
    assert found == {("wrong.py", number) for number, line in marked if "# wrong" in line}, done.stdout + done.stderr


def test_everything_public_says_what_it_is() -> None:
    """Also of what users hold and do not import."""
    # What a log and a sink can do is said once, where they are protocols.
    said = {name for protocol in (LivingSource, Sink, Joining) for name in dir(protocol)}
    silent = []
    held = (Graph, OpenLedger, LedgerReader, State, Diff, Life, Looked, Driver, Summary, Comparison, Event)
    for name, value in [*((name, getattr(hs, name)) for name in hs.__all__), *((one.__name__, one) for one in held)]:
        if not inspect.getdoc(value):
            silent.append(name)
        for member, function in vars(value).items() if inspect.isclass(value) else ():
            method = function.fget if isinstance(function, property) else getattr(function, "__func__", function)
            public = not member.startswith("_") and member not in said and inspect.isfunction(method)
            if public and not inspect.getdoc(method):
                silent.append(f"{name}.{member}")
    assert not silent, "\n".join(silent)
