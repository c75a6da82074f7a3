"""The picture of a topology: steps and edges as a value, drawn as text, Mermaid, DOT or JSON.

`hailstorm graph` and `check` print it; the dashboard reads the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hailstorm.topology.picture import svg
from hailstorm.topology.step import Step

_MERMAID = {"spout": "([{}])", "fold": "[({})]", "top": "[({})]", "sink": "[/{}/]"}
_DOT = {"spout": "cds", "fold": "cylinder", "top": "cylinder", "sink": "note"}
_LONGEST_SCHEMA = 72


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
        """The picture of these steps, which are in the order of declaration."""
        edges = tuple(Edge(source, step.name, step.gathering) for step in steps for source in step.inputs)
        return Graph(name, tuple(steps), edges)

    def text(self) -> str:
        """A tree for the terminal, one line per step. What has several inputs is drawn below the first of them."""
        rows = [row for step in self.steps if not step.inputs for row in self._branch(step, "", "")]
        names = max((len(branch) for branch, _, _ in rows), default=0)
        kinds = max((len(kind) for _, kind, _ in rows), default=0)
        lines = [f"{branch:{names}}  {kind:{kinds}}  {schema}".rstrip() for branch, kind, schema in rows]
        return "\n".join([self.name, *lines])

    def mermaid(self) -> str:
        """A diagram that GitHub and many wikis draw."""
        # The ids are numbers, because `end` and other good names are words of Mermaid's own.
        ids = {step.name: f"s{number}" for number, step in enumerate(self.steps)}
        lines = ["flowchart LR"]
        for step in self.steps:
            box = _MERMAID.get(step.kind, "[{}]").format(f'"{step.name}<br/>{_escaped(step.title)}"')
            lines.append(f"    {ids[step.name]}{box}")
        for edge in self.edges:
            label = "" if edge.grouping == "local" else f'|"{edge.grouping}"|'
            lines.append(f"    {ids[edge.source]} -->{label} {ids[edge.target]}")
        return "\n".join(lines)

    def dot(self) -> str:
        """A graph for Graphviz."""
        lines = [f'digraph "{self.name}" {{', "    rankdir=LR;", '    node [shape=box, fontname="sans-serif"];']
        for step in self.steps:
            detail = step.title.replace("\\", "\\\\").replace('"', '\\"')
            shape = f", shape={_DOT[step.kind]}" if step.kind in _DOT else ""
            lines.append(f'    "{step.name}" [label="{step.name}\\n{detail}"{shape}];')
        for edge in self.edges:
            label = "" if edge.grouping == "local" else f' [label="{edge.grouping}"]'
            lines.append(f'    "{edge.source}" -> "{edge.target}"{label};')
        return "\n".join([*lines, "}"])

    def svg(self) -> str:
        """A picture that needs no JavaScript: what notebooks show."""
        return svg(self, {step.name: step.title for step in self.steps})

    def _repr_svg_(self) -> str:
        return self.svg()

    def json(self) -> dict[str, list[dict[str, str]]]:
        """What programs read: `steps` with their columns, and `edges`."""
        steps = [{"name": s.name, "kind": s.kind, "at": s.at.short, "schema": str(s.schema)} for s in self.steps]
        edges = [{"from": e.source, "to": e.target, "grouping": e.grouping} for e in self.edges]
        return {"steps": steps, "edges": edges}

    def _branch(self, step: Step, lead: str, margin: str) -> Iterator[tuple[str, str, str]]:
        """(name with its branch, kind, schema) of a step and of everything that is drawn below it."""
        more = "".join(f" + {name}" for name in step.inputs[1:])
        yield f"{lead}{step.name}", step.title + more, "" if step.kind == "sink" else _short(str(step.schema))
        below = [other for other in self.steps if step.name in other.inputs]
        for other in below:
            last = other is below[-1]
            lead = margin + ("└─ " if last else "├─ ")
            if other.inputs[0] == step.name:
                yield from self._branch(other, lead, margin + ("   " if last else "│  "))
            else:
                yield f"{lead}{other.name}", f"(drawn below {other.inputs[0]})", ""


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SCHEMA else text[: _LONGEST_SCHEMA - 4] + " ..."
