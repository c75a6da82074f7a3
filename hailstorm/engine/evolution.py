"""Evolution: what changed in a topology since its last run, and whether it may go on.

Every step has a fingerprint. An unchanged step goes on. A new stateful step starts from now. A changed one needs a
word from its owner, because its old state may not mean what its new code says. Nothing is reset silently.
"""

from __future__ import annotations

from dataclasses import dataclass

from hailstorm.errors import Location, RunError
from hailstorm.ledger.live import Live
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.step import Fold, Top
from hailstorm.topology.topology import Topology


@dataclass(frozen=True)
class Evolution:
    """The difference between a topology and what its ledger knows. Names of steps."""

    fingerprints: dict[str, str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    returned: tuple[str, ...]  # stateful steps that were removed once: their state has a hole
    rekeyed: tuple[str, ...]  # stateful steps whose key is not that of their state

    @property
    def any(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.returned)

    def describe(self) -> str:
        parts = [("added", self.added), ("removed", self.removed), ("changed", self.changed), ("back", self.returned)]
        return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names)


def evolution(topology: Topology, head: Live) -> Evolution:
    now, before = fingerprint(topology), head.fingerprints
    returned = tuple(name for name in now if name not in before and head.runs.get(name))
    known = [name for name in now if head.runs.get(name) and name in head.steps]
    return Evolution(
        now,
        added=tuple(name for name in now if name not in before and name not in returned),
        removed=tuple(name for name in before if name not in now),
        changed=tuple(name for name in now if name in before and before[name] != now[name]),
        returned=returned,
        rekeyed=tuple(name for name in known if topology.step(name).key != head.steps[name].key),
    )


def require_consent(topology: Topology, found: Evolution, accepted: tuple[str, ...]) -> None:
    """Stop unless every stateful step that changed is accepted by name."""
    for name in found.rekeyed:
        raise RunError(
            9,
            f"step '{name}' has another key than its state",
            at=topology.step(name).at,
            hint="Such state cannot go on. Give the step another name, or run with a new ledger: --ledger PATH",
        )
    for name in (*found.changed, *found.returned):
        step = topology.step(name)
        if isinstance(step, Fold | Top) and name not in accepted:
            what = "has changed since its state was written" if name in found.changed else "was away and has old state"
            raise RunError(
                2,
                f"step '{name}' {what}",
                at=step.at,
                hint=f"To keep its state as it is and go on: --accept {name}\n"
                "To begin anew, give the step another name, or run with a new ledger: --ledger PATH",
            )
    for name in accepted:
        if name not in {step.name for step in topology.steps}:
            raise RunError(
                3, f"--accept names '{name}', which is not a step", at=Location(topology.at.file, topology.at.line)
            )
