"""The picture of the README: how many times as fast as what people would use instead, bench by bench.

The line is the other system's speed. A bar to the right says how many times as fast Hailstorm is, one to the left that
it is slower, on a scale where every step doubles; the thin line is its quartiles. What we require of ourselves is not
shown here but in docs/performance.md. Written as SVG by hand: bars need no plotting library. Colours work on a light
and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from bench.contest import ROOT

PICTURE = ROOT / "docs" / "images" / "bench.svg"
_WIDTH, _ROW, _HEAD, _FOOT, _BAR = 880, 46, 40, 50, 14
_LINE, _STEP, _NUMBERS = 540, 60, 800  # where "as fast" is, the width of a doubling, and the last column
_FURTHEST = (-3.0, 4.0)  # doublings that are drawn; what is beyond ends there
_FASTER, _SLOWER, _TEXT, _PALE = "#2f81f7", "#db6d28", "#7d8590", "#8b949e"
# What people would use instead, as the texts of checks name it.
_OTHERS = {
    "Structured Streaming": "Structured Streaming",
    "Spark's Kafka reader": "Spark's Kafka reader",
    "mapInArrow": "a bare mapInArrow",
    "psycopg": "a bare psycopg COPY",
}
# Measured once beside the bench of this name, in milliseconds, and not repeated by `make bench`: they deliver at least
# once, where Hailstorm and Structured Streaming deliver exactly once.
_MEASURED_BEFORE = {"latency": ("Flink and Bytewax, which deliver at least once", 17.5)}


@dataclass(frozen=True)
class Comparison:
    title: str
    other: str
    times: float  # as fast as the other
    low: float
    high: float


def draw(results: Sequence[dict[str, Any]]) -> None:
    """No file when nothing has been measured."""
    if any(True for _ in comparisons(results)):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(picture(results))


def comparisons(results: Sequence[dict[str, Any]]) -> Iterator[Comparison]:
    """One for each check that names another system, and for what was measured before."""
    for result in results:
        for check in result["checks"]:
            other = next((name for word, name in _OTHERS.items() if word in check["text"]), None)
            if other is not None:
                what = check["text"].rpartition("'s ")[2] if "p50" in check["text"] or "p99" in check["text"] else ""
                title = f"{result['title']}, {what}" if what else result["title"]
                yield Comparison(title, other, *_times(check))
        if result["bench"] in _MEASURED_BEFORE:
            other, milliseconds = _MEASURED_BEFORE[result["bench"]]
            ours = result["series"][0]
            low, high = ours["quartiles_ms"]
            times = (milliseconds / ms for ms in (ours["median_ms"], high, low))
            yield Comparison(f"{result['title']}, p50", other, *times)


def _times(check: dict[str, Any]) -> tuple[float, float, float]:
    """A check either says which share of the other's time it took, at most, or how many times its rate it had."""
    value, low, high = (check["measured"][name] for name in ("value", "low", "high"))
    return (1 / value, 1 / high, 1 / low) if check["at_most"] else (value, low, high)


def picture(results: Sequence[dict[str, Any]]) -> str:
    """The SVG, with the benches in this order."""
    rows = list(comparisons(results))
    height = _HEAD + len(rows) * _ROW + _FOOT
    bottom = height - _FOOT
    parts = [
        text_at(_LINE, 14, "as fast", anchor="middle"),
        text_at(_LINE - _STEP, 14, "slower", colour=_SLOWER, anchor="end"),
        text_at(_LINE + _STEP, 14, "faster", colour=_FASTER),
        *(_grid(doubling, len(rows)) for doubling in range(round(_FURTHEST[0]), round(_FURTHEST[1]) + 1)),
        *(_row(row, _HEAD + number * _ROW) for number, row in enumerate(rows)),
        *(text_at(0, bottom + 18 + 16 * number, line, size=11) for number, line in enumerate(_footnotes(results))),
    ]
    return svg(_WIDTH, height, parts)


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def doublings(times: float) -> float:
    """How many doublings faster; negative when it is slower."""
    low, high = _FURTHEST
    return min(max(math.log2(times), low), high)


def _row(row: Comparison, y: int) -> str:
    """The title has a line of its own; below it are the other's name, the bar and the number, side by side."""
    colour = _FASTER if row.times >= 1 else _SLOWER
    middle = y + 32
    end = _LINE + doublings(row.times) * _STEP
    left, width = min(_LINE, end), max(abs(end - _LINE), 2)
    quartiles = [_LINE + doublings(times) * _STEP for times in (row.low, row.high)]
    return "\n".join(
        [
            text_at(0, y + 18, row.title, weight="bold"),
            text_at(0, y + 36, f"against {row.other}", size=12),
            f'<rect x="{left:.1f}" y="{middle - _BAR // 2}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<path d="M{quartiles[0]:.1f} {middle}H{quartiles[1]:.1f}" stroke="{_PALE}" stroke-width="2"/>',
            text_at(_NUMBERS, y + 37, f"{row.times:.1f} times", colour=colour, weight="bold", size=14),
        ]
    )


def _grid(doubling: int, rows: int) -> str:
    """A line through the bars only, so that it crosses no title."""
    x = _LINE + doubling * _STEP
    style = 'stroke-width="2"' if doubling == 0 else 'stroke-width="1" stroke-opacity="0.25"'
    name = "" if doubling == 0 else text_at(x, 32, f"{2.0**doubling:g}x", size=10, anchor="middle") + "\n"
    path = "".join(f"M{x} {_HEAD + number * _ROW + 22}v20" for number in range(rows))
    return f'{name}<path d="{path}" stroke="{_TEXT}" {style}/>'


def text_at(
    x: float, y: float, text: str, *, colour: str = _TEXT, size: int = 13, weight: str = "normal", anchor: str = "start"
) -> str:
    look = f'fill="{colour}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {look}>{escape(text)}</text>'


def _footnotes(results: Sequence[dict[str, Any]]) -> tuple[str, str]:
    machine = results[-1]["machine"]
    day = max(result["at"] for result in results)[:10]
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {day}. Bars are medians over the rounds of a run, "
        "in which contestants take turns; grey lines are quartiles.",
        "Flink and Bytewax were measured once, apart from these runs.",
    )
