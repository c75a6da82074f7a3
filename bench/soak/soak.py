"""A soak: starts a topology as a user would, takes samples, and ends it. Called by `__main__` and by tests/soak."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from bench.contest import ROOT
from bench.soak.sample import Sample, take_sample

APPS = Path(__file__).parent / "apps"
FORMS = ("full", "small", "latency")  # the last needs a broker: around.py
HAILSTORM = (sys.executable, "-m", "hailstorm")
_SAMPLES = 300  # in a long run
_STARTED = 20  # commits
_SETTLED = 1.4  # times: ticks are not all alike


@dataclass(frozen=True)
class Soak:
    """`folder` gets the app, its ledger and `samples.csv`; `hailstorm` is the command to run it with.

    Time counts from its first ticks on: a busy machine takes a while to start.
    """

    form: str
    folder: Path
    seconds: float
    settings: Mapping[str, str]
    hailstorm: Sequence[str] = HAILSTORM

    @property
    def file(self) -> Path:
        return self.folder / "samples.csv"

    def run(self, say: Callable[[Sample], object]) -> list[Sample]:
        """The samples, which are in the file as soon as they are taken. Raises when the topology ends by itself."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(APPS / f"{self.form}.py", self.folder / "app.py")
        options = [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        environment = {
            **os.environ,
            "SOAK_START": datetime.now(UTC).isoformat(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with (self.folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*self.hailstorm, "run", "app.py", *options],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
        try:
            return self._watch(process, say)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)

    def _watch(self, process: subprocess.Popen[bytes], say: Callable[[Sample], object]) -> list[Sample]:
        began, samples = time.monotonic(), list[Sample]()
        with self.file.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
            writer.writeheader()
            while (seconds := time.monotonic() - began) < self.seconds:
                if process.poll() is not None:
                    raise RuntimeError(f"the topology has ended:\n{(self.folder / 'output.txt').read_text()[-2000:]}")
                sample = take_sample(seconds, process.pid, self.folder / "ledger")
                if sample is None or sample.commit < _STARTED:
                    began = time.monotonic()
                else:
                    samples.append(sample)
                    writer.writerow({k: round(v, 1) for k, v in asdict(sample).items()})
                    file.flush()
                    say(sample)
                time.sleep(max(1.0, self.seconds / _SAMPLES))
        return samples


def read_samples(file: Path) -> list[Sample]:
    with file.open(newline="") as lines:
        return [
            Sample(**{f.name: int(row[f.name]) if f.type == "int" else float(row[f.name]) for f in fields(Sample)})
            for row in csv.DictReader(lines)
        ]


def grown(samples: Sequence[Sample]) -> dict[str, float]:
    """What has gone on rising, and how many times it is what it was; nothing of a run that is well."""
    found = {
        "disk": growth(samples, lambda one: one.disk_mb + one.deleted_mb),
        "files": growth(samples, lambda one: one.files),
        "commits": growth(samples, lambda one: one.commits),
        "memory of Python": growth(samples, lambda one: one.python_mb),
    }
    return {what: times for what, times in found.items() if times > _SETTLED}


def growth(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """How many times the median of the last third is that of the middle one. The first third is the filling."""
    third = len(samples) // 3
    before, after = (
        statistics.median(map(of, part)) for part in (samples[third : 2 * third], samples[len(samples) - third :])
    )
    return after / before if before else float(after > 0) + 1
