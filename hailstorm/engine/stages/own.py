"""One's own monoids: Python methods run over Arrow arrays.

A row on which a method raises, or gives what the declared type does not hold exactly, is named, and the driver runs the
tick again without its record (ticks/attempts.py). So the other rows of its key go on, and every fold leaves out the
same records. Rows that come from no record (changes of a table) cannot be named; then the driver looks for the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hailstorm.algebra.monoid import Monoid
from hailstorm.columns import OFFSET, PARTITION, SPOUT
from hailstorm.errors import BadRecord, BadRecordsError
from hailstorm.topology.exact_values import Misfit, exact_array, exact_value

ORIGIN = (SPOUT, PARTITION, OFFSET)  # what a row of the inputs has behind the monoid's own
_NAMED_AT_ONCE = 10_000  # more than so many are named in the next try: names travel in the text of an exception

Row = dict[str, Any]
Origin = tuple[Any, Any, Any]  # a record by spout, partition and offset; nulls where a row comes from none


@dataclass(frozen=True)
class OwnMerge:
    """Merge the prior states with lists of this tick's inputs, one list per key. Raises BadRecordsError."""

    monoid: Monoid
    state_type: pa.DataType
    value_type: pa.DataType
    where: str  # for errors: the step and the column

    def __call__(self, prior: pa.Array, inputs: pa.Array) -> pa.Array:
        try:
            states = [self._total(state, rows or ()) for state, rows in _pairs(prior, inputs)]
            made = exact_array(states, self.state_type, "its state")
            _presented(self.monoid, made, self.value_type)
            return made
        except Exception as error:  # of the user's, or a misfit, or a time that Python has no value for
            raise self._named(prior, inputs, error) from error

    def combined(self, one: pa.Array, other: pa.Array) -> pa.Array:
        """Merge states with states, where two groups become one. A null is the zero."""
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        merge = self.monoid.merge
        return exact_array(
            [b if a is None else a if b is None else merge(a, b) for a, b in pairs], self.state_type, "its state"
        )

    def _total(self, state: Any, rows: Sequence[Row]) -> Any:
        monoid = self.monoid
        total = monoid.zero() if state is None else state
        for row in rows:
            total = monoid.merge(total, monoid.lift(*list(row.values())[: -len(ORIGIN)]))
        return total

    def _named(self, prior: pa.Array, inputs: pa.Array, error: Exception) -> BadRecordsError:
        """The rows to leave out: those after which a state does not fit, or cannot be shown. Row by row, key by key.

        All are counted, so that the driver knows at once when they are too many to be left out.
        """
        named: dict[Origin, str] = {}
        bad: set[Origin] = set()
        for state, rows in zip(prior, inputs, strict=True):
            for origin, why in self._bad_rows(state, rows):
                bad.add(origin)
                if len(bad) <= _NAMED_AT_ONCE:
                    named.setdefault(origin, why)
        if not bad:  # a method that gives another answer each time it is asked
            return BadRecordsError(11, self._why((), error))
        first = next(iter(named.values()))
        if any(spout is None or offset is None for spout, _, offset in bad):
            return BadRecordsError(11, first)
        records = tuple(BadRecord(*origin, why) for origin, why in named.items())
        return BadRecordsError(11, first, records=records, count=len(bad))

    def _bad_rows(self, state: pa.Scalar, rows: pa.Scalar) -> Iterator[tuple[Origin, str]]:
        total: Any = None
        started = False
        for row in rows if rows.is_valid else ():
            spout, partition, offset = (row[name].as_py() for name in ORIGIN)
            values: tuple[Any, ...] = ()
            try:
                values = tuple(row[f"_{place}"].as_py() for place in range(len(row) - len(ORIGIN)))
                if not started:
                    total, started = self.monoid.zero() if not state.is_valid else state.as_py(), True
                after = self.monoid.merge(total, self.monoid.lift(*values))
                fitting = pa.array([exact_value(after, self.state_type, "its state")], self.state_type)
                _presented(self.monoid, fitting, self.value_type)
            except Exception as error:
                yield (spout, partition, offset), self._why(values, error)
            else:
                total = after

    def _why(self, values: tuple[Any, ...], error: Exception) -> str:
        said = str(error) if isinstance(error, Misfit) else f"{type(error).__name__}: {error}"
        name = type(self.monoid).__qualname__
        return f"{name} of {self.where} fails on {values!r:.200}: {said}".replace("\n", " ")


@dataclass(frozen=True)
class OwnPresent:
    monoid: Monoid
    value_type: pa.DataType

    def __call__(self, states: pa.Array) -> pa.Array:
        return _presented(self.monoid, states, self.value_type)


def _presented(monoid: Monoid, states: pa.Array, value_type: pa.DataType) -> pa.Array:
    if type(monoid).present is Monoid.present and states.type == value_type:
        return states
    return exact_array([monoid.present(state) for state in states.to_pylist()], value_type, "its value")


def _pairs(prior: pa.Array, inputs: pa.Array) -> Iterator[tuple[Any, list[Row] | None]]:
    return zip(prior.to_pylist(), inputs.to_pylist(), strict=True)
