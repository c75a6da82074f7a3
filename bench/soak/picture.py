"""The picture of the soaks: a row per form, a small plot per figure, from the first minute to the last.

Written as SVG by hand, like bench/picture.py. Colours work on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.contest import ROOT
from bench.picture import svg, text_at
from bench.soak.sample import Sample
from bench.soak.soak import read_samples

PICTURE = ROOT / "docs" / "images" / "soak.svg"
TITLES = {
    "soak-full": "Full load: a fold of 1M keys and its top 10",
    "soak-small": "As many ticks as possible: 20,000 records a second",
}
_PLOTS: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("ms per tick", lambda one: one.tick_ms),
    ("memory, MB", lambda one: one.python_mb + one.jvm_mb),
    ("disk, MB", lambda one: one.disk_mb + one.deleted_mb),
    ("files", lambda one: one.files),
)
_WIDTH, _ROW, _PLOT_WIDTH, _PLOT_HEIGHT, _GAP = 880, 170, 190, 90, 40
_LINE, _AXIS = "#2f81f7", "#7d8590"
_POINTS = 95  # of a line: more than two per pixel show nothing


def draw(files: Sequence[Path]) -> None:
    """From the samples of those that are there."""
    PICTURE.write_text(picture({file.stem: read_samples(file) for file in files if file.exists()}))


def picture(soaks: dict[str, list[Sample]]) -> str:
    rows = [part for place, (name, samples) in enumerate(soaks.items()) for part in _row(name, samples, place * _ROW)]
    return svg(_WIDTH, len(soaks) * _ROW, rows)


def _row(name: str, samples: Sequence[Sample], top: float) -> Iterator[str]:
    minutes = samples[-1].seconds / 60
    yield text_at(0, top + 18, f"{TITLES[name]}, {minutes:.0f} minutes", weight="bold")
    for place, (title, value) in enumerate(_PLOTS):
        left = place * (_PLOT_WIDTH + _GAP)
        yield text_at(left, top + 40, title, size=12)
        yield _plot([(one.seconds, value(one)) for one in samples], left, top + 50)
        yield text_at(left + _PLOT_WIDTH, top + 40, f"at most {max(map(value, samples)):,.0f}", size=12, anchor="end")


def _plot(points: Sequence[tuple[float, float]], left: float, top: float) -> str:
    points = points[:: max(1, len(points) // _POINTS)]
    widest, highest = points[-1][0] or 1.0, max(y for _, y in points) or 1.0
    bottom = top + _PLOT_HEIGHT
    steps = " ".join(
        f"{left + x / widest * _PLOT_WIDTH:.1f},{bottom - y / highest * _PLOT_HEIGHT:.1f}" for x, y in points
    )
    axis = f'<path d="M{left:g} {top:g}V{bottom:g}H{left + _PLOT_WIDTH:g}" fill="none" stroke="{_AXIS}"/>'
    return f'{axis}\n<polyline points="{steps}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>'
