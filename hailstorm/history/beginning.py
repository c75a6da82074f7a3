"""What was live before a kept commit, and where that commit began to read.

Retention keeps the first commits of a ledger as one, too. Before them there was nothing, and yet a rerun that goes
through them needs to know the steps, as they were when the first commit was made, and where the logs began.
`moments.py`, `committed.py` and `trace.py` ask.
"""

from __future__ import annotations

from hailstorm.clock.clock import Clock
from hailstorm.ledger.commit import Commit
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import under_names_of_now


def live_before(ledger: Ledger, commit: Commit) -> Live:
    """What was live before a commit; before the first, under the names of now.

    Raises LedgerError (032) when the ledger does not begin with its first commit, as one that was imported does not.
    """
    if commit.covers_from > 1:
        return ledger.at(commit.covers_from - 1)
    begun = Live(
        clock=commit.start,
        steps=commit.steps or {},
        fingerprints=commit.fingerprints or {},
        rosters=commit.rosters or {},
    )
    return under_names_of_now(begun, ledger.newest().called_then(commit.commit))


def began_at(commit: Commit) -> Clock:
    """Where a commit began to read. A partition that came while commits were made that are kept as one is not in their
    start: it began where the first step was given records of it."""
    found = {spout: dict(row) for spout, row in Clock.from_json(commit.start).offsets.items()}
    for covered in (commit.coverage or {}).values() if commit.first else ():
        for spout, row in covered.items():
            for partition, spans in row.items():
                if spans and partition not in commit.start.get(spout, {}):
                    known = found.setdefault(spout, {})
                    known[int(partition)] = min(spans[0][0], known.get(int(partition), spans[0][0]))
    return Clock(found)
