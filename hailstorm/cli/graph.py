"""`hailstorm graph`: the picture of a topology."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hailstorm.cli.output import out, print_json
from hailstorm.cli.run import AppArgument
from hailstorm.cli.target import load_app


class GraphFormat(StrEnum):
    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"


def graph(
    app: AppArgument,
    format: Annotated[GraphFormat, typer.Option(help="How to draw it.")] = GraphFormat.text,
) -> None:
    """Draw a topology. Nothing runs.

    \b
    Examples:
      hailstorm graph app.py
      hailstorm graph app.py --format mermaid > topology.mmd
      hailstorm graph app.py --format dot | dot -Tsvg > topology.svg
    """
    drawing = load_app(app).topology.graph()
    match format:
        case GraphFormat.text:
            out.print(drawing.text(), markup=False)
        case GraphFormat.mermaid:
            out.print(drawing.mermaid(), markup=False)
        case GraphFormat.dot:
            out.print(drawing.dot(), markup=False)
        case GraphFormat.json:
            print_json(drawing.json())
