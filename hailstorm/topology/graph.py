"""The picture of a topology: steps and edges as a value, drawn as text, Mermaid, DOT or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hailstorm.topology.step import ArrowBolt, Bolt, Fold, Step


@dataclass(frozen=True)
class Edge:
    source: str
    target: str
    grouping: str


@dataclass(frozen=True)
class Graph:
    name: str
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]

    @staticmethod
    def of_steps(name: str, steps: Sequence[Step]) -> Graph:
        edges = tuple(Edge(source, step.name, grouping_text(step)) for step in steps for source in step.inputs)
        return Graph(name, tuple(steps), edges)

    def json(self) -> dict[str, Any]:
        steps = [{"name": s.name, "kind": s.kind, "at": s.at.short, "schema": str(s.schema)} for s in self.steps]
        edges = [{"from": e.source, "to": e.target, "grouping": e.grouping} for e in self.edges]
        return {"steps": steps, "edges": edges}


def grouping_text(step: Step) -> str:
    """How rows reach the step; a fold groups by its key, and what has no grouping stays where it is."""
    if isinstance(step, (Bolt, ArrowBolt)) and step.grouping is not None:
        return str(step.grouping)
    if isinstance(step, Fold):
        return f"fields({', '.join(step.key)})" if step.key else "one()"
    return "local"
