"""A trace for people: as a tree for the terminal, and as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hailstorm.history.trace import Event, Trace
from hailstorm.ledger.json_value import to_json
from hailstorm.topology.topology import Topology


def tree(trace: Trace, topology: Topology) -> str:
    """A line for each event, below the step that its step reads. What nothing happened to is not drawn."""
    reader = (
        "not read yet" if trace.commit is None else f"read by commit {trace.commit:,}, {trace.at:%Y-%m-%d %H:%M:%S}"
    )
    late = f", late for {trace.late} steps" if trace.late > 1 else ", late" if trace.late else ""
    lines = [f"{trace.record}  {reader}{late}"]
    by_step = _by_step(trace)
    for name in by_step:
        if not any(above in by_step for above in topology.step(name).inputs):
            lines += _branch(name, "", "", by_step, topology)
    return "\n".join([*lines, *([trace.note] if trace.note else [])])


def mermaid(trace: Trace, topology: Topology) -> str:
    by_step = _by_step(trace)
    ids = {name: f"s{number}" for number, name in enumerate(by_step)}
    lines = ["flowchart LR"]
    for name, events in by_step.items():
        lines.append(f'    subgraph {ids[name]} ["{name}"]')
        lines += [f'        {ids[name]}e{number}["{_escaped(_text(event))}"]' for number, event in enumerate(events)]
        lines.append("    end")
    for name in by_step:
        lines += [f"    {ids[above]} --> {ids[name]}" for above in topology.step(name).inputs if above in ids]
    return "\n".join(lines)


def _by_step(trace: Trace) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in trace.events:
        found.setdefault(event.step, []).append(event)
    return found


def _branch(name: str, lead: str, margin: str, by_step: dict[str, list[Event]], topology: Topology) -> Iterator[str]:
    first, *others = by_step[name]
    below = [
        step.name
        for step in topology.consumers(name)
        if step.name in by_step and _drawn_below(step.inputs, by_step) == name
    ]
    yield f"{lead}{name}  {_text(first)}"
    rest = margin + ("│  " if below else "   ")
    yield from (f"{rest}{' ' * (len(name) - 1)}  {_text(event)}" for event in others)
    for one in below:
        last = one == below[-1]
        yield from _branch(
            one, margin + ("└─ " if last else "├─ "), margin + ("   " if last else "│  "), by_step, topology
        )


def _drawn_below(inputs: tuple[str, ...], by_step: dict[str, list[Event]]) -> str | None:
    return next((name for name in inputs if name in by_step), None)


def _text(event: Event) -> str:
    if event.what == "key":
        return f"{_json(event.row)}: {_json(event.before)} → {_json(event.after)}"
    if event.what == "letter":
        return f"refused: {event.row['reason']}"
    return _json(event.row)


def _json(value: Any) -> str:
    return "nothing" if value is None else to_json(value)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
