"""Sinks that join a topology: which of them have an outbox that holds everything, and since when.

A sink that was added later, or was away for a run, or whose table is made in another way now, has an outbox with a
beginning. The ledger remembers that beginning (`SinkShape.since`); a table's sink whose cursor is before it needs the
whole table first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set

from hailstorm.ledger.commit import SinkShape
from hailstorm.ledger.live import Live
from hailstorm.topology.ends import Sink
from hailstorm.topology.fingerprint import called_then
from hailstorm.topology.topology import Topology


def known_sinks(
    topology: Topology, stateful: Set[str], head: Live, fingerprints: Mapping[str, str]
) -> dict[str, SinkShape]:
    """The sinks of this topology, for the commit after `head`. Sinks that are gone are forgotten."""
    found = {}
    for sink in topology.sinks:
        path = path_to_table(topology, sink, stateful)
        made = way_to_sink(topology, sink, stateful, fingerprints)
        before = head.sinks.get(sink.name)
        if before is not None and (before.is_table, before.fingerprint) == (sink.is_table, made):
            since = before.since
        else:
            # What the step gave before is in no outbox, unless the step is as new as its sink.
            since = head.commit + 1 if path[-1] in head.fingerprints else 0
        formerly = () if before is None else before.formerly
        found[sink.name] = SinkShape(since=since, is_table=sink.is_table, fingerprint=made, formerly=formerly)
    return found


def way_to_sink(
    topology: Topology,
    sink: Sink,
    stateful: Set[str],
    fingerprints: Mapping[str, str],
    formerly: Mapping[str, str] | None = None,
) -> str:
    """A hash of the steps that a table's rows go through on their way to the sink; of a stream, of its input's name.
    With `formerly`, under the names that steps had; then the fingerprints are of those names, too."""
    names = formerly or {}
    path = path_to_table(topology, sink, stateful)
    steps = [called_then(name, names) for name in path]
    ways = zip(steps, (fingerprints[name] for name in path), strict=True)
    text = "\n".join(f"{name} {made}" for name, made in ways) if sink.is_table else steps[0]
    return hashlib.sha256(text.encode()).hexdigest()


def path_to_table(topology: Topology, sink: Sink, stateful: Set[str]) -> list[str]:
    """The steps from the sink's input up to the one that keeps the table; of a stream, its input."""
    path = [sink.inputs[0]]
    while sink.is_table and path[-1] not in stateful:
        path.append(topology.step(path[-1]).inputs[0])
    return path
