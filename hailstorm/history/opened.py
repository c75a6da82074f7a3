"""`hs.open_ledger`: the whole read side, at any moment.

    ledger = hs.open_ledger(".hailstorm/trending")
    ledger.state("counts", at="monday").pandas()            # a snapshot; or a commit, a clock, a time, "latest-5"
    ledger.diff("counts", "monday", "latest").polars()
    ledger.life("counts", word="rain").arrow()

Needs neither Spark nor the app, and may be used while a topology runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from hailstorm.errors import UsageError
from hailstorm.history.diff import Diff, refuse_unknown
from hailstorm.history.life import Life
from hailstorm.history.moments import When, kept_moment
from hailstorm.history.snapshots import NamedCommit, list_snapshots
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import LedgerReader, State, state_of
from hailstorm.ledger.renaming import called_at


def open_ledger(path: str | Path) -> OpenLedger:
    """Open a ledger for reading: a folder, or `s3://…`. It may be in use by a run."""
    return OpenLedger(Ledger(path))


class OpenLedger(LedgerReader):
    """A ledger, for reading: what `open_ledger` gives.

    A moment (`at`) is a commit's number, a snapshot's name, a clock (JSON or a Clock), a time (ISO 8601 or a datetime),
    `"latest"` or `"latest-5"`; None is the latest.
    """

    def live(self, at: When = None) -> Live:
        """What is live now, or was at a moment."""
        return kept_moment(self._ledger, at)

    def state(self, step: str, at: When = None, *, open: bool = False) -> State:
        """A step's state at a moment. `open`: of windows, those that can still grow."""
        return state_of(self._ledger, self.live(at), step, open)

    def diff(self, step: str, a: When, b: When = None) -> Diff:
        """What changed in a step from one moment to another."""
        newest = self._ledger.newest()
        one, other = (State(self._ledger, live, called_at(step, live, newest)) for live in (self.live(a), self.live(b)))
        refuse_unknown(step, one, other, newest)
        return Diff(one, other)

    def life(self, step: str, until: When = None, **key: Any) -> Life:
        """What became of a key, commit by commit: `ledger.life("counts", word="rain")`."""
        state = self.state(step, until)
        types, columns = state.key_types(), state.live.steps[state.step].key
        wanted = {name: pa.array([value], types.get(name)) for name, value in key.items()}
        if unknown := [name for name in key if name not in columns]:
            known = ", ".join(columns)
            raise UsageError(7, f"'{unknown[0]}' is no key column of '{step}'", hint=f"Key columns: {known}.")
        return Life(self._ledger, step, wanted, state.live.commit)

    def snapshots(self) -> list[NamedCommit]:
        """The snapshots, oldest commit first."""
        return list(list_snapshots(self._ledger))
