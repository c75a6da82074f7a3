"""One's own monoids: Python methods run over Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.algebra.monoid import Monoid
from hailstorm.errors import RunError


@dataclass(frozen=True)
class OwnMerge:
    """Merge the prior states with lists of this tick's inputs, one list a key."""

    monoid: Monoid
    state_type: pa.DataType
    where: str  # for errors: the step and the column

    def __call__(self, prior: pa.Array, inputs: pa.Array) -> pa.Array:
        monoid, states = self.monoid, []
        for state, rows in zip(prior.to_pylist(), inputs.to_pylist(), strict=True):
            total = monoid.zero() if state is None else state
            for row in rows or ():
                try:
                    total = monoid.merge(total, monoid.lift(*row.values()))
                except Exception as error:
                    raise self._failed(tuple(row.values()), error) from error
            states.append(total)
        return pa.array(states, self.state_type)

    def _failed(self, values: tuple[object, ...], error: Exception) -> RunError:
        name = type(self.monoid).__qualname__
        what = f"{name} of {self.where} fails on {values!r:.200}: {type(error).__name__}: {error}"
        return RunError(11, what.replace("\n", " "))


@dataclass(frozen=True)
class OwnPresent:
    monoid: Monoid
    value_type: pa.DataType

    def __call__(self, states: pa.Array) -> pa.Array:
        return pa.array([self.monoid.present(state) for state in states.to_pylist()], self.value_type)
