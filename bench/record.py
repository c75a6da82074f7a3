"""Results as files: what was measured, on what, from which commit. `results/<date>-<name>.json`, never overwritten."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.bench import Bench, Outcome
from bench.contest import ROOT

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("pyspark", "pyarrow", "numpy")}
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return {"python": platform.python_version(), "java": java.splitlines()[0], **packages}


def commit() -> str:
    """The commit that was measured; with a plus when files in the work tree differ from it."""
    changed = _git("status", "--porcelain", "--", "hailstorm", "bench/peers", "bench/work.py")
    return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def save(bench: Bench, outcome: Outcome, quick: bool, before: dict[str, Any]) -> Path:
    """`before` is the machine at the start: its load tells whether others were using it."""
    now = datetime.now(UTC)
    result = {
        "bench": bench.name,
        "title": bench.title,
        "at": now.isoformat(timespec="seconds"),
        "quick": quick,
        "commit": commit(),
        "machine": before,
        "versions": versions(),
        "checks": [{**asdict(check), "kept": check.kept} for check in outcome.checks],
        "notes": dict(outcome.notes),
        "series": [
            {
                "label": series.label,
                "median_ms": series.median_ms,
                "quartiles_ms": series.quartiles_ms,
                "rows_per_second": series.rows_per_second,
                "parts_ms": series.parts,
                "figures": dict(series.figures),
                "rounds_ms": [[round(tick.ms, 2) for tick in ticks] for ticks in series.rounds],
            }
            for series in outcome.series
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d-%H%M%S}-{bench.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def newest() -> list[dict[str, Any]]:
    """The newest full result of every bench, whichever run it is from."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        if not result["quick"]:
            found[result["bench"]] = result
    return list(found.values())


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
