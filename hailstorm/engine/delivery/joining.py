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
from hailstorm.topology.step import Sink
from hailstorm.topology.topology import Topology


def known_sinks(
    topology: Topology, stateful: Set[str], head: Live, fingerprints: Mapping[str, str]
) -> dict[str, SinkShape]:
    """The sinks of this topology, for the commit after `head`. Sinks that are gone are forgotten."""
    found = {}
    for sink in topology.steps:
        if not isinstance(sink, Sink):
            continue
        path = path_to_table(topology, sink, stateful)
        text = "\n".join(f"{name} {fingerprints[name]}" for name in path) if sink.is_table else sink.inputs[0]
        made = hashlib.sha256(text.encode()).hexdigest()
        before = head.sinks.get(sink.name)
        if before is not None and (before.is_table, before.fingerprint) == (sink.is_table, made):
            since = before.since
        else:
            # What the step gave before is in no outbox, unless the step is as new as its sink.
            since = head.commit + 1 if path[-1] in head.fingerprints else 0
        found[sink.name] = SinkShape(since=since, is_table=sink.is_table, fingerprint=made)
    return found


def path_to_table(topology: Topology, sink: Sink, stateful: Set[str]) -> list[str]:
    """The steps from the sink's input up to the one that keeps the table; of a stream, its input."""
    path = [sink.inputs[0]]
    while sink.is_table and path[-1] not in stateful:
        path.append(topology.step(path[-1]).inputs[0])
    return path
