"""The picture of the README: what is required of each bench, and what its newest full run has measured.

Every required figure is a row. The line in the middle is the requirement, and the bar says how many times better (to
the right) or worse (to the left) the result is, on a scale where every step doubles; the whisker is its quartiles.
Written as SVG by hand: bars need no plotting library. Colours work on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from bench.contest import ROOT

PICTURE = ROOT / "docs" / "images" / "bench.svg"
_WIDTH, _ROW, _HEAD, _FOOT, _BAR = 880, 46, 40, 34, 14
_LINE, _STEP, _NUMBERS = 520, 58, 776  # where the requirement is, the width of a doubling, and the last column
_FURTHEST = (-1.0, 4.0)  # doublings that are drawn; what is beyond ends there
_KEPT, _MISSED, _TEXT, _PALE = "#2f81f7", "#db6d28", "#7d8590", "#8b949e"


def draw(results: Sequence[dict[str, Any]]) -> None:
    """No file when nothing has been measured."""
    if any(result["checks"] for result in results):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(picture(results))


def picture(results: Sequence[dict[str, Any]]) -> str:
    """The SVG, with the benches in this order."""
    checks = [
        (result["title"] if number == 0 else "", check)
        for result in results
        for number, check in enumerate(result["checks"])
    ]
    height = _HEAD + len(checks) * _ROW + _FOOT
    bottom = height - _FOOT
    parts = [
        _text(_LINE, 14, "required", anchor="middle"),
        _text(_LINE - _STEP, 14, "worse", colour=_MISSED, anchor="end"),
        _text(_LINE + _STEP, 14, "better", colour=_KEPT),
        *(_grid(doubling, bottom) for doubling in range(round(_FURTHEST[0]), round(_FURTHEST[1]) + 1)),
        *(_row(title, check, _HEAD + number * _ROW) for number, (title, check) in enumerate(checks)),
        _text(0, height - 8, _footnote(results), size=11),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def doublings(value: float, check: dict[str, Any]) -> float:
    """How many doublings a value is better than the check requires; negative when it is worse."""
    low, high = _FURTHEST
    if value <= 0:  # memory that has not grown
        return high if check["at_most"] else low
    share = check["limit"] / value if check["at_most"] else value / check["limit"]
    return min(max(math.log2(share), low), high)


def _row(title: str, check: dict[str, Any], y: int) -> str:
    measured, colour = check["measured"], _KEPT if check["kept"] else _MISSED
    middle = y + 33  # below the title, which may be longer than its column
    end = _LINE + doublings(measured["value"], check) * _STEP
    quartiles = sorted(_LINE + doublings(measured[side], check) * _STEP for side in ("low", "high"))
    side = "at most" if check["at_most"] else "at least"
    left, width = min(_LINE, end), max(abs(end - _LINE), 2)
    return "\n".join(
        [
            _text(0, y + 18, title, weight="bold"),
            _text(0, y + 37, f"{_number(measured['value'])} {check['text']}", size=12),
            f'<rect x="{left:.1f}" y="{middle - _BAR // 2}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<path d="M{quartiles[0]:.1f} {middle}H{quartiles[1]:.1f}" stroke="{_PALE}" stroke-width="2"/>',
            _text(_NUMBERS, y + 20, _number(measured["value"]), colour=colour, weight="bold", size=15),
            _text(_NUMBERS, y + 37, f"{side} {check['limit']:g}", size=12),
        ]
    )


def _grid(doubling: int, bottom: int) -> str:
    x = _LINE + doubling * _STEP
    style = 'stroke-width="2"' if doubling == 0 else 'stroke-width="1" stroke-opacity="0.25"'
    name = "" if doubling == 0 else _text(x, 32, f"{2.0**doubling:g}x", size=10, anchor="middle") + "\n"
    return f'{name}<path d="M{x} {_HEAD}V{bottom}" stroke="{_TEXT}" {style}/>'


def _text(
    x: float, y: float, text: str, *, colour: str = _TEXT, size: int = 13, weight: str = "normal", anchor: str = "start"
) -> str:
    look = f'fill="{colour}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {look}>{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _footnote(results: Sequence[dict[str, Any]]) -> str:
    machine = results[-1]["machine"]
    day = max(result["at"] for result in results)[:10]
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {day}. Bars are medians over the rounds of a run, "
        "in which contestants take turns; grey lines are quartiles."
    )
