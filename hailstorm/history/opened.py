"""`hs.open_ledger`: the whole read side, at any moment, and what may be done to a ledger without its app.

    ledger = hs.open_ledger(".hailstorm/trending")
    ledger.state("counts", at="monday").pandas()            # a snapshot; or a commit, a clock, a time, "latest-5"
    ledger.diff("counts", "monday", "latest").polars()
    ledger.life("counts", word="rain").arrow()
    ledger.snapshot("before-the-deploy")

Needs neither Spark nor the app. Reading, snapshots and `verify` may be used while a topology runs; what makes a commit
or erases (`discard`, `release_state`, `erase`) refuses then. The commands of the same names come here, or call what
these call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hailstorm.errors import UsageError
from hailstorm.history.diff import Diff, refuse_unknown
from hailstorm.history.life import Life, refuse_part_of_key
from hailstorm.history.moments import When, kept_moment
from hailstorm.history.snapshots import NamedCommit, list_snapshots, make_snapshot, release_snapshot
from hailstorm.ledger.commit import Commit
from hailstorm.ledger.lease import Lease
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.pins import Snapshot
from hailstorm.ledger.reader import LedgerReader, State, state_of
from hailstorm.ledger.renaming import called_at

# What only few ask for is imported when they do: `hailstorm state` comes through here, and starts at once.
if TYPE_CHECKING:
    from hailstorm.history.erase import Report
    from hailstorm.history.exporting import Contents
    from hailstorm.history.verify import Verified
    from hailstorm.ledger.delta.moments import DeltaVersion
    from hailstorm.ledger.releasing import Kept
    from hailstorm.topology.topology import Topology


def open_ledger(path: str | Path) -> OpenLedger:
    """Open a ledger: a folder, or `s3://…`. It may be in use by a run."""
    return OpenLedger(Ledger(path))


class OpenLedger(LedgerReader):
    """A ledger, without its app: what `open_ledger` gives.

    A moment (`at`) is a commit's number, a snapshot's name, a clock (JSON or a Clock), a time (ISO 8601 or a datetime),
    `"latest"` or `"latest-5"`; None is the latest.
    """

    def live(self, at: When = None) -> Live:
        """What is live now, or was at a moment."""
        return kept_moment(self._ledger, at)

    def state(self, step: str, at: When = None, *, open: bool = False) -> State:
        """A step's state at a moment. `open`: of windows, those that can still grow."""
        return state_of(self._ledger, self.live(at), step, open)

    def delta(self, step: str, at: When = None) -> DeltaVersion:
        """Where a Delta reader finds a step's state at a kept commit, as `hailstorm state --delta` says: the version is
        the commit's number. It is made unless it is there, and stays as long as the commit is kept."""
        from hailstorm.ledger.delta.moments import delta_version

        return delta_version(self._ledger, step, self.live(at))

    def diff(self, step: str, a: When, b: When = None) -> Diff:
        """What changed in a step from one moment to another."""
        newest = self._ledger.newest()
        one, other = (State(self._ledger, live, called_at(step, live, newest)) for live in (self.live(a), self.live(b)))
        refuse_unknown(step, one, other, newest)
        return Diff(one, other)

    def life(self, step: str, until: When = None, **key: Any) -> Life:
        """What became of a key, commit by commit: `ledger.life("counts", word="rain")`."""
        state = self.state(step, until)
        columns = state.live.steps[state.step].key
        wanted = _wanted(step, key, columns, state.key_types())
        refuse_part_of_key(step, columns, wanted)
        return Life(self._ledger, step, wanted, state.live.commit)

    def snapshots(self) -> list[NamedCommit]:
        """The snapshots, oldest commit first."""
        return list(list_snapshots(self._ledger))

    def snapshot(self, name: str, at: When = None) -> Snapshot:
        """Give a commit a name, as `hailstorm snapshot` does: it is kept until it is released, whatever the setting
        `retention` says. Raises LedgerError when the name is taken."""
        return make_snapshot(self._ledger, name, at)

    def release(self, name: str) -> Snapshot:
        """Let a snapshot go, as `hailstorm release` does: its commit is kept as long as any other of its age."""
        return release_snapshot(self._ledger, name)

    def export(self, name: str, to: str | Path) -> Contents:
        """Write a snapshot to a new file that ends in `.tar`, or to a new folder, that opens elsewhere, as `hailstorm
        snapshot export` does. `hs.import_snapshot` makes a ledger of it."""
        from hailstorm.history.exporting import export_snapshot

        return export_snapshot(self._ledger, name, to)

    def verify(self) -> Verified:
        """Check every file that a kept commit names, as `hailstorm verify` does. Reads the whole ledger; what is wrong
        is in `problems`."""
        from hailstorm.history.verify import verify

        return verify(self._ledger)

    def discard(self, step: str, reason: str) -> dict[str, int]:
        """Give up the dead letters of a step or sink, or of `"all"`, as `hailstorm errors --discard` does. How many, by
        step. The reason stays in the history. Raises LedgerInUseError while a run goes on."""
        from hailstorm.ledger.discarding import discard

        with self._writing() as ledger:
            return discard(ledger, step, reason)

    def kept_states(self) -> tuple[Kept, ...]:
        """The state of steps that were removed from the topology: what `release_state` can let go."""
        from hailstorm.ledger.releasing import kept_states

        return kept_states(self.live())

    def release_state(self, step: str) -> Commit:
        """Let the state of a step go that was removed from the topology, as `hailstorm release --step` does. Gives the
        commit that is without it. Raises LedgerInUseError while a run goes on."""
        from hailstorm.ledger.releasing import release_state

        with self._writing() as ledger:
            return release_state(ledger, step)

    def erase(self, step: str, /, *, dry_run: bool = False, logs_of: Topology | None = None, **key: Any) -> Report:
        """Remove a key from a step at every commit, from outboxes and from dead letters, as `hailstorm erase --yes`
        does: `ledger.erase("accounts", user="ada")`. It cannot be undone; `dry_run` only says what would go.

        A key of which only some columns are named is erased with all values of the others. With `logs_of`, embedded
        logs of this topology above the step lose its records, too. What else may hold the key is named in `elsewhere`.
        Raises LedgerInUseError while a run goes on.
        """
        from hailstorm.history.erase import erasable, erase, logs_above

        columns = erasable(self._ledger, step)
        if not key:
            hint = f"For example: {next(iter(columns), 'user')}=... Columns: {', '.join(columns)}."
            raise UsageError(7, f"no key of '{step}' is named, and all rows of a step are not erased", hint=hint)
        wanted = _wanted(step, key, columns, columns)
        return erase(self._ledger, step, wanted, dry_run, {} if logs_of is None else logs_above(logs_of, step))

    @contextmanager
    def _writing(self) -> Iterator[Ledger]:
        """The ledger at its newest commit, with the lease: nobody else makes a commit meanwhile."""
        with Lease(self._ledger.store).held():
            self._ledger.catch_up()
            yield self._ledger


def _wanted(
    step: str, key: Mapping[str, Any], columns: Collection[str], types: Mapping[str, pa.DataType]
) -> dict[str, pa.Array]:
    """The values that are asked for, as their columns have them."""
    found = {}
    for name, value in key.items():
        if name not in columns:
            hint = f"Key columns: {', '.join(columns)}."
            raise UsageError(7, f"'{name}' is no key column of '{step}'", hint=hint)
        try:
            found[name] = pa.array([value], types.get(name))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise UsageError(8, f"key column '{name}' is {types.get(name)}, and {value!r} is not") from error
    return found
