"""A topology that runs for long uses no more memory, disk or files than at the beginning.

These have tiers of seconds. The long forms, which `make soak` runs, have the default settings, and are drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.soak.soak import Soak, read_samples
from hailstorm.ledger.reader import open_ledger
from tests import jvm
from tests.length import only_long

QUICK = (sys.executable, str(Path(__file__).parent / "quick_process.py"))
TIERS = {"retention": "3 seconds, 10 seconds: 1 second, rest: none", "publish": "500 ms"}
SINKS = {"full": "board", "small": "archive"}


@pytest.mark.spark
@pytest.mark.parametrize("form", ["full", only_long("small")])
def test_for_twenty_seconds(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in jvm.quick().items():
        monkeypatch.setenv(name, value)
    soak = Soak(form, tmp_path, 20.0, TIERS | {"latency": "500 ms"}, QUICK)
    passed: list[int] = []  # how far the sink has got
    samples = soak.run(lambda sample: passed.append(open_ledger(tmp_path / "ledger").cursor(SINKS[form]).commit))
    assert len(samples) > 6
    # So little time on a busy machine tells little of trends; that history goes again once the sink has it, it does.
    made, kept = samples[-1].commit, len(list(open_ledger(tmp_path / "ledger").commits()))
    assert passed[len(passed) // 2] < 60 or kept < made
    assert read_samples(soak.file)[-1].commit == samples[-1].commit
    reader = open_ledger(tmp_path / "ledger")
    total = sum(row["n"] for row in reader.state("counts").arrow().to_pylist())
    assert total == sum(reader.live().clock["numbers"].values()), "and it has counted right"
