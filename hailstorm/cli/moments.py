"""The state of a step at WHEN, for the commands that read: a kept commit as it is, anything else by running the rest.

Only the second needs Spark, the app and its logs; then a line on stderr says what is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hailstorm.cli.output import err
from hailstorm.cli.target import is_app, load_app

if TYPE_CHECKING:
    from hailstorm.ledger.ledger import Ledger
    from hailstorm.ledger.reader import State


@contextlib.contextmanager
def states_of(
    target: str, ledger: Ledger, whens: tuple[str, ...], step: str, open_: bool = False
) -> Iterator[list[State]]:
    """The step's state at each of these moments, to be read before the block ends."""
    from hailstorm.history.moments import moment_of, not_kept
    from hailstorm.ledger.reader import State
    from hailstorm.ledger.renaming import called_at

    moments = [moment_of(ledger, when) for when in whens]
    for remark in dict.fromkeys(moment.remark for moment in moments if moment.remark):
        _remark(remark)
    with contextlib.ExitStack() as stack:
        found = []
        for when, moment in zip(whens, moments, strict=True):
            if moment.is_kept:
                found.append(State(ledger, moment.base, called_at(step, moment.base, ledger.head), open_))
                continue
            if not is_app(target):
                raise not_kept(ledger, when, moment)
            from hailstorm.cli.doctor import require_java

            require_java()
            from hailstorm.engine.run import resolved
            from hailstorm.engine.spark.session import start_session
            from hailstorm.history.state_at import state_at

            begin = (
                f"after commit {moment.base.commit}" if moment.base.commit else "before the first commit that is kept"
            )
            err.print(f"{when} lies {begin}: the rest is run again", style="dim")
            topology = resolved(load_app(target).topology)
            spark = start_session(f"hailstorm state {topology.name}", master="local[2]")
            state = stack.enter_context(state_at(topology, spark, ledger, moment, step, remarks=_remark))
            found.append(State(state.ledger, state.live, state.step, open_))
        yield found


def _remark(sentence: str) -> None:
    err.print(sentence, style="yellow")
