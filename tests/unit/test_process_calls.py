"""What the methods of a process give that is no row."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.engine.stages.process_calls import OWN, Calls, StateClass
from hailstorm.errors import Location
from hailstorm.topology.process import Process
from hailstorm.topology.state_fields import state_fields


@dataclass
class Seen:
    n: int = 0


class Gives(Process):
    state = Seen
    returns = "n BIGINT"

    def on_event(self, key: str, event: Any, state: Seen, timers: Any) -> Any:
        state.n += 1
        return event.given


@pytest.mark.parametrize("given", [5, True, 0.5])
def test_what_is_no_row_is_an_error_that_says_so_and_leaves_the_key_as_it_was(given: object) -> None:
    calls = Calls(
        using=Gives,
        shape=StateClass(Seen, state_fields("p", Seen, ("k",), Location("app.py", 1))),
        outputs={OWN: pa.schema([("n", pa.int64())])},
        step="p",
        now=0,
        until={"event": None, "system": None},
        keys=["a"],
        prior=[None],
        events=[SimpleNamespace(given=given), SimpleNamespace(given={"n": 1})],
        keys_of=[0, 0],
        due=[],
    )
    calls.run()
    name = type(given).__name__
    assert {place: str(error) for place, error in calls.refused.items()} == {
        0: f"'p' gave {given!r} ({name}), and a row is a dict"
    }
    assert calls.states[0].n == 1 and calls.rows[OWN] == [{"n": 1}]
