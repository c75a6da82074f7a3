"""Steps and sinks that have another name now (`renamed_from=`): which those are, and the commit that says so.

The negotiator makes that commit before any other of a run, by itself: afterwards the ledger knows the new names, and
everything else that has changed is compared as ever. What is below a renamed step has not changed by that, although its
fingerprint has the names of its inputs in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import msgspec

from hailstorm.engine.delivery.joining import way_to_sink
from hailstorm.errors import RunError, suggestion
from hailstorm.ledger.commit import Stamp
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import (
    Names,
    called_now,
    has_state,
    moved,
    renamed_fields,
    under_names_of_now,
    with_former,
)
from hailstorm.ledger.stores.store import Store
from hailstorm.topology.ends import Sink
from hailstorm.topology.fingerprint import declared_parts, fingerprint
from hailstorm.topology.step import Step
from hailstorm.topology.topology import Topology


def renames(topology: Topology, live: Live) -> dict[str, str]:
    """The steps and sinks whose state the ledger has under another name, with that name.

    None once that is done, and none in a new ledger: `renamed_from` may stay in the code. Raises RunError when there is
    no such step to go on from, or when it is another one.
    """
    found: dict[str, str] = {}
    for step in topology.steps:
        if live.commit and step.renamed_from is not None:
            found.update(_renamed(step, step.renamed_from, live))
    for sink in topology.sinks:
        _refuse_taken(sink, live, found)
    return found


def _renamed(step: Step, old: str, live: Live) -> Iterator[tuple[str, str]]:
    name = step.name
    was_there = old in live.fingerprints or has_state(live, old)
    known = live.steps.get(name) or live.sinks.get(name)
    if known is not None and old in [former.name for former in known.formerly] and name in live.fingerprints:
        return  # done
    if name in live.fingerprints or has_state(live, name):
        if was_there:
            raise RunError(
                61,
                f"step '{name}' is renamed from '{old}', and the ledger has a state of each",
                at=step.at,
                hint=f"Two states do not become one. To go on with that of '{name}', leave renamed_from out, and let\n"
                f"the other one go: hailstorm release TARGET --step {old}",
            )
        return  # it had this name when the ledger began
    if not was_there:
        if known is None:
            names = sorted({*live.fingerprints, *live.steps})
            raise RunError(
                60,
                f"step '{name}' is renamed from '{old}', and the ledger knows no such step",
                at=step.at,
                hint=f"It knows: {', '.join(names) or 'none'}. {suggestion(old, names)}".rstrip()
                + "\nLeave renamed_from out if the step is new.",
            )
        return  # a rewind went back to before there was such a step
    kind = live.declared.get(old, {}).get("kind", step.kind)
    if kind != step.kind:
        raise RunError(
            62,
            f"{step.kind} '{name}' is renamed from '{old}', which is a {kind}",
            at=step.at,
            hint="A step goes on with the state of one of its kind. Leave renamed_from out: then it starts from now.",
        )
    yield name, old


def describe_renamed(names: Names) -> tuple[str, ...]:
    """A sentence per step."""
    return tuple(f"'{name}' was called '{old}', and goes on where that was" for name, old in names.items())


def _refuse_taken(sink: Sink, live: Live, names: Names) -> None:
    """A target remembers its sink by the first name that this had: no other sink can be called so."""
    for name, shape in live.sinks.items():
        taken = shape.formerly[0].name if shape.formerly else ""
        if sink.name == taken and sink.name != called_now(name, names):
            raise RunError(
                63,
                f"sink '{sink.name}' has the name by which the target of sink '{name}' knows that one",
                at=sink.at,
                hint=f"'{name}' was called '{taken}' at first, and its cursor is kept under that name. Take another.",
            )


def renaming(
    topology: Topology, store: Store, head: Live, names: Names, stateful: Set[str], stamp: Stamp
) -> dict[str, Any]:
    """The fields of the commit after `head` that moves what it has to the new names. Links files, and nothing more."""
    return renamed_fields(head, _known_as(topology, moved(store, head, names, stamp), names, stateful))


def as_renamed(topology: Topology, head: Live, stateful: Set[str]) -> Live:
    """What the ledger will know once it has the names of now. Values only: nothing is written, and files have the names
    that they had."""
    names = renames(topology, head)
    return _known_as(topology, under_names_of_now(head, names), names, stateful) if names else head


def _known_as(topology: Topology, live: Live, names: Names, stateful: Set[str]) -> Live:
    """What has the new names already, with the old ones as former ones; unchanged steps and sinks are known as such."""
    after = with_names_of_now(topology, live, names)
    former = fingerprint(topology, names)
    steps = {name: with_former(shape, names.get(name), live.commit) for name, shape in after.steps.items()}
    sinks = {name: with_former(shape, names.get(name), live.commit) for name, shape in after.sinks.items()}
    for sink in topology.sinks:
        known = sinks.get(sink.name)
        if known and known.fingerprint == way_to_sink(topology, sink, stateful, former, names):
            same = way_to_sink(topology, sink, stateful, fingerprint(topology))
            sinks[sink.name] = msgspec.structs.replace(known, fingerprint=same)
    return msgspec.structs.replace(after, steps=steps, sinks=sinks)


def with_names_of_now(topology: Topology, live: Live, names: Names) -> Live:
    """The same, with the fingerprints that unchanged steps have under the names of now. `live` has these names."""
    now, then, parts = fingerprint(topology), fingerprint(topology, names), declared_parts(topology)
    same = {name for name, known in live.fingerprints.items() if then.get(name) == known}
    return msgspec.structs.replace(
        live,
        fingerprints={name: now[name] if name in same else known for name, known in live.fingerprints.items()},
        declared={name: parts[name] if name in same else known for name, known in live.declared.items()},
    )
