"""The pictures of the soaks: a row per form with a small plot per figure, from the first minute to the last; and for
`latency` how many records were how old when they arrived.

Written as SVG by hand, like bench/picture.py. Colours work on a light and on a dark page.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.contest import ROOT
from bench.picture import svg, text_at
from bench.soak.sample import Sample
from bench.soak.soak import read_samples

PICTURE = ROOT / "docs" / "images" / "soak.svg"
HISTOGRAM = ROOT / "docs" / "images" / "latency.svg"
TITLES = {
    "soak-full": "Full load: a fold of 1M keys and its top 10",
    "soak-small": "As many ticks as possible: 20,000 records a second",
    "soak-latency": "Kafka to Kafka, 1,000 records a second",
}
_PLOTS: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("ms per tick", lambda one: one.tick_ms),
    ("memory, MB", lambda one: one.python_mb + one.jvm_mb),
    ("disk, MB", lambda one: one.disk_mb + one.deleted_mb),
    ("files", lambda one: one.files),
)
_WIDTH, _ROW, _PLOT_WIDTH, _PLOT_HEIGHT, _GAP = 880, 170, 190, 90, 40
_LINE, _AXIS = "#2f81f7", "#7d8590"
_AGES_HEIGHT, _LABELS = 160, 8  # pixels; bars to a label
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


def draw_ages(file: Path) -> None:
    """From the counts that `Ages.save` has written, if they are there."""
    if file.exists():
        with file.open(newline="") as lines:
            steps = [(float(row["below_ms"]), int(row["records"])) for row in csv.DictReader(lines)]
        HISTOGRAM.write_text(histogram(steps))


def histogram(steps: Sequence[tuple[float, int]]) -> str:
    """Bars over a scale on which every tenfold is as wide; the last step has no end and is drawn as the one before."""
    total, most = sum(count for _, count in steps), max(count for _, count in steps)
    seen = [place for place, (_, count) in enumerate(steps) if count]
    shown = steps[max(seen[0] - 2, 0) : seen[-1] + 3]
    width, bottom = (_WIDTH - 2 * _GAP) / len(shown), 40 + _AGES_HEIGHT
    parts = [text_at(0, 18, f"From producer to consumer, exactly once: {total:,} records", weight="bold")]
    for place, (below, count) in enumerate(shown):
        left, height = _GAP + place * width, count / most * _AGES_HEIGHT
        if count:
            parts.append(
                f'<rect x="{left:.1f}" y="{bottom - height:.1f}" width="{width - 1:.1f}" height="{height:.1f}" '
                f'fill="{_LINE}"/>'
            )
        if place % _LABELS == 0 and below != float("inf"):
            parts.append(text_at(left, bottom + 16, f"{below:,.0f} ms", size=11))
    parts.append(f'<path d="M{_GAP} {bottom}H{_WIDTH - _GAP}" stroke="{_AXIS}"/>')
    for line, percent in enumerate((50, 99, 99.9)):
        text = f"p{percent:g} {_percentile(steps, percent):,.0f} ms"
        parts.append(text_at(_WIDTH - _GAP, 40 + 18 * line, text, size=13, anchor="end"))
    return svg(_WIDTH, bottom + 30, parts)


def _percentile(steps: Sequence[tuple[float, int]], percent: float) -> float:
    """The end of the step in which it is."""
    wanted, found = percent / 100 * sum(count for _, count in steps), 0
    for below, count in steps:
        found += count
        if found >= wanted:
            return below
    return steps[-1][0]
