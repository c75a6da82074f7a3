"""The picture of the README: rows per second and milliseconds a tick, as bars, from the newest results.

Written as SVG by hand: two bar charts need no plotting library. Colours work on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.contest import ROOT

PICTURE = ROOT / "docs" / "images" / "bench.svg"
_WIDTH, _LABEL, _BAR, _GAP, _HEAD = 760, 210, 22, 8, 34
_OURS, _THEIRS, _TEXT = "#2f81f7", "#8b949e", "#7d8590"


def draw(results: Sequence[dict[str, Any]]) -> None:
    """The charts of those of the drawn benches that have a result; no file when none has."""
    charts = [(_TITLES[r["bench"]], _bars(r)) for r in results if r["bench"] in _TITLES]
    if not charts:
        return
    parts, y = [], 0
    for title, bars in charts:
        chart, height = _chart(title, bars, y)
        parts.append(chart)
        y += height
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" font-family="system-ui, sans-serif" '
        f'font-size="13">\n' + "\n".join(parts) + "\n</svg>\n"
    )


_TITLES = {
    "small": "1,000 rows a tick, 100k keys: milliseconds a tick (less is better)",
    "large": "500,000 rows a tick, 1M keys: rows per second (more is better)",
    "json": "JSON, string keys, decimals, 1M keys: rows per second (more is better)",
}


def _bars(result: dict[str, Any]) -> list[tuple[str, float, str]]:
    field, unit = ("median_ms", " ms") if result["bench"] == "small" else ("rows_per_second", "")
    return [(s["label"], s[field], f"{s[field]:,.0f}{unit}") for s in result["series"]]


def _chart(title: str, bars: list[tuple[str, float, str]], y: int) -> tuple[str, int]:
    longest = max(value for _, value, _ in bars)
    lines = [f'<text x="0" y="{y + 20}" fill="{_TEXT}" font-weight="bold">{escape(title)}</text>']
    for number, (label, value, text) in enumerate(bars):
        top = y + _HEAD + number * (_BAR + _GAP)
        width = value / longest * (_WIDTH - _LABEL - 90)
        colour = _OURS if label == "Hailstorm" else _THEIRS
        middle = top + _BAR * 0.7
        lines += [
            f'<text x="{_LABEL - 10}" y="{middle:.0f}" text-anchor="end" fill="{_TEXT}">{escape(label)}</text>',
            f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="3" fill="{colour}"/>',
            f'<text x="{_LABEL + width + 8:.1f}" y="{middle:.0f}" fill="{_TEXT}">{escape(text)}</text>',
        ]
    return "\n".join(lines), _HEAD + len(bars) * (_BAR + _GAP) + 16
