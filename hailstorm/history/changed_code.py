"""Whether the code of now is the code of then: whoever runs committed input again says so where it is not.

A rerun has only the code of now. Where a step above the answer was edited since, the answer is what this code makes of
the records, and not what was there. `state_at.py` and `trace.py` ask.
"""

from __future__ import annotations

from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.topology import Topology


def changed_code(topology: Topology, part: Topology, ledger: Ledger, base: Live) -> str:
    """That steps of a part of the topology are others than at an earlier moment, as a sentence; else nothing.

    Renaming a step, or an input of it, does not change it.
    """
    names = ledger.newest().called_then(max(base.commit, 1))
    now, then, before = fingerprint(topology), fingerprint(topology, names), base.fingerprints
    changed = [
        step.name
        for step in part.steps
        if step.gives_rows
        and before.get(step.name, before.get(names.get(step.name, ""))) not in (now[step.name], then[step.name])
    ]
    if not changed:
        return ""
    steps = f"step {changed[0]} has" if len(changed) == 1 else f"steps {', '.join(changed)} have"
    return f"with the code of now: {steps} changed since commit {base.commit}"
