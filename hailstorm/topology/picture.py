"""What notebooks show: graphs as SVG and tables as HTML, without JavaScript and without a file from elsewhere.

`Topology`, `Graph`, `Stream`, `Table` and the readers of the ledger call it from their `_repr_…_` methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hailstorm.topology.graph import Graph

_WIDE, _HIGH, _BETWEEN, _BELOW = 168, 46, 56, 18
_LONGEST = 24  # letters in a box
_COLOURS = {"spout": "#dbeafe", "fold": "#dcfce7", "top": "#dcfce7", "sink": "#fef3c7"}


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of texts; null is shown as an empty cell."""
    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    lines.append("<thead><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr></thead>")
    cells = ("".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{''.join(lines)}<tbody>{body}</tbody></table>"


def svg(graph: Graph, details: Mapping[str, str]) -> str:
    """The steps from left to right, each after what it reads; `details` has the second line of each."""
    column = _columns(graph)
    rows: dict[str, int] = {}
    filled = [0] * (max(column.values(), default=0) + 1)
    for step in graph.steps:
        # Not above what it reads, so that a chain is drawn on one line where that is free.
        wanted = max((rows[name] for name in step.inputs[:1]), default=0)
        rows[step.name] = max(wanted, filled[column[step.name]])
        filled[column[step.name]] = rows[step.name] + 1
    places = {name: (10 + column[name] * (_WIDE + _BETWEEN), 10 + rows[name] * (_HIGH + _BELOW)) for name in column}
    width = 20 + len(filled) * (_WIDE + _BETWEEN) - _BETWEEN
    height = 20 + max(filled) * (_HIGH + _BELOW) - _BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><title>{escape(graph.name)}</title>',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#64748b"/></marker></defs>',
    ]
    for edge in graph.edges:
        (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
        x1, y1, y2 = x1 + _WIDE, y1 + _HIGH // 2, y2 + _HIGH // 2
        middle = (x1 + x2) // 2
        way = f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"
        hover = "" if edge.grouping == "local" else f"<title>{escape(edge.grouping)}</title>"
        parts.append(f'<path d="{way}" fill="none" stroke="#64748b" marker-end="url(#end)">{hover}</path>')
    for step in graph.steps:
        x, y = places[step.name]
        colour = _COLOURS.get(step.kind, "#f1f5f9")
        parts.append(
            f"<g><title>{escape(str(step.schema))}</title>"
            f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="6" fill="{colour}" stroke="#94a3b8"/>'
            f'<text x="{x + 10}" y="{y + 19}" font-weight="bold" fill="#0f172a">{_cut(step.name)}</text>'
            f'<text x="{x + 10}" y="{y + 36}" fill="#475569">{_cut(details[step.name])}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _columns(graph: Graph) -> dict[str, int]:
    """How far right each step stands: after everything that it reads."""
    found: dict[str, int] = {}
    for step in graph.steps:
        found[step.name] = 1 + max((found[name] for name in step.inputs), default=-1)
    return found


def _cut(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
