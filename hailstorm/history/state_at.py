"""The state of a step at any moment, also between two commits that are kept.

A kept commit is read as it is. Anything else is had again: from the kept commit before it, the rest is run (rerun.py).
`state --at` and `diff` call it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

from hailstorm.errors import LedgerError
from hailstorm.history.changed_code import changed_code
from hailstorm.history.committed import is_cut_known, ticks_to
from hailstorm.history.cut import depends_on_cut
from hailstorm.history.moments import Moment
from hailstorm.history.rerun import Tell, rerun, silent
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import State, state_of
from hailstorm.ledger.renaming import called_now
from hailstorm.topology.topology import Topology


@contextlib.contextmanager
def state_at(
    topology: Topology,
    spark: SparkSession,
    ledger: Ledger,
    moment: Moment,
    step: str,
    tell: Tell = silent,
    remarks: Tell = silent,
) -> Iterator[State]:
    """A step's state at a moment, to be read before the block ends. `topology` has its paths resolved. `remarks` hears
    what a person must know of the answer.

    Raises LedgerError when the step has no state there, or when the state depends on where ticks were cut and that is
    not known any more.
    """
    base = moment.base
    state = state_of(ledger, base, step)
    if moment.is_kept:
        yield state
        return
    step = called_now(state.step, ledger.newest().called_then(base.commit))
    part = topology.only([step])
    why = depends_on_cut(part, ledger.newest()).get(step)
    if why and not is_cut_known(ledger, moment):
        after = next(ledger.commits(base.commit)).commit
        nearest = f"{base.commit} and {after}" if base.commit else str(after)
        when = f"between commits {nearest}" if base.commit else f"before commit {after}, the first that is kept,"
        raise LedgerError(
            75,
            f"what '{step}' was {when} depends on where ticks were cut: {why}",
            hint=f"That is known for a day. The nearest moments that are kept: {nearest}.",
        )
    if remark := changed_code(topology, part, ledger, base):
        remarks(remark)
    with rerun(spark, part, ledger, base, ticks_to(ledger, moment), tell) as scratch:
        yield State(scratch, scratch.head, step)
