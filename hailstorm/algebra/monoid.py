"""What a monoid is: a state type, and lift, merge and present.

A native monoid (`SqlMonoid`) gives these as SQL text that Spark runs in the JVM; one's own (`Monoid`) gives
them as Python methods that run over Arrow. Both are frozen values and know nothing of Spark or of topologies.

The laws, for states a, b, c:
    merge(a, merge(b, c)) == merge(merge(a, b), c)
    merge(a, b) == merge(b, a)
    merge(zero, a) == a
    lift(rows + more) == merge(lift(rows), lift(more))
A NULL state is the zero of every native monoid: the engine never calls `merge` with one.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pyarrow as pa

from hailstorm.algebra.function_identity import function_identity
from hailstorm.algebra.types import check_expression
from hailstorm.columns import EVENT_TIME

# The hidden column that a lift may use, to break ties the same way however the input was cut into ticks.
_EVENT_TIME = re.compile(rf"(?<!\w){EVENT_TIME}\b")


@dataclass(frozen=True)
class ArrowLift:
    """The lift as aggregates that can be taken in Arrow: the engine takes them, this says which.

    `prepare` makes columns of the input columns (None: they are used as they are). Each of `aggregates` is the
    number of such a column, or None, and `count_all`, `count`, `sum`, `min` or `max`. `state` makes the states of
    the results, which come in the same order, one row a group.
    """

    aggregates: tuple[tuple[int | None, str], ...]
    state: Callable[[Sequence[pa.Array]], pa.Array]
    prepare: Callable[[Sequence[pa.Array]], Sequence[pa.Array]] | None = None


@dataclass(frozen=True)
class ArrowPieces:
    """The same merge and present as the SQL ones, vectorised in Arrow, for types where they agree bit by bit.

    `merge(prior, delta)` takes two arrays of states of one length; a null is the zero on either side.
    `present` is None when the value is the state itself.
    """

    merge: Callable[[pa.Array, pa.Array], pa.Array]
    present: Callable[[pa.Array], pa.Array] | None = None
    lift: ArrowLift | None = None


@dataclass(frozen=True)
class Pieces:
    """A monoid bound to the types of its inputs. All text is Spark SQL.

    Places are replaced as text (`str.replace`, not `str.format`: an expression of the user's may hold braces).
    `lift` is an aggregate over input rows. `merge` has the places {a} and {b}, `present` has {s}.
    `retract` is an aggregate over rows of which `{sign}` is +1 or -1, giving the state of the difference;
    None when the monoid has no inverse (the engine then recomputes the group from its members).
    `present == "{s}"` means that the value is the state itself: then it is stored once.
    """

    state_type: str
    value_type: str
    lift: str
    merge: str
    present: str = "{s}"
    retract: str | None = None
    arrow: ArrowPieces | None = None
    exact: bool = True  # False: an estimate or floating point; audit compares with tolerance

    def typed(self) -> Pieces:
        """These pieces with casts to the declared types, for states and values that are nested.

        Spark infers "not null" for fields that an expression always fills, and Arrow cannot hold a null struct with
        such a field. In a type that SQL text names, every field may be null.
        """
        if "<" not in self.state_type:
            return self
        state, value = f" as {self.state_type})", f" as {self.value_type})"
        nested_value = "<" in self.value_type and self.present != "{s}"
        return replace(
            self,
            lift=f"cast({self.lift}{state}",
            merge=f"cast({self.merge}{state}",
            retract=None if self.retract is None else f"cast({self.retract}{state}",
            present=f"cast({self.present}{value}" if nested_value else self.present,
        )


class AnyMonoid(ABC):
    """What a fold takes: a native monoid or one's own."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The SQL expressions over the input row that this monoid reads."""

    @property
    def reads_time(self) -> bool:
        """Whether the event time of a row makes a difference to it."""
        return any(_EVENT_TIME.search(text) for text in self.inputs)

    @abstractmethod
    def reading(self, inputs: tuple[str, ...]) -> AnyMonoid:
        """The same monoid over other expressions, as many as it has: a fold gives it the text that is Spark's."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """A JSON-able description that changes when, and only when, the meaning changes: its fingerprint."""


class SqlMonoid(AnyMonoid):
    """A native monoid: SQL pieces for given input types. Every one is a frozen dataclass of its arguments."""

    word: ClassVar[str]  # what users call it: hs.<word>
    expressions: ClassVar[tuple[str, ...]] = ("of",)  # the fields that hold expressions, in the order of `inputs`

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in self._given())

    def reading(self, inputs: tuple[str, ...]) -> SqlMonoid:
        # mypy sees the base class only, which is no dataclass itself.
        return replace(self, **dict(zip(self._given(), inputs, strict=True)))  # type: ignore[type-var]

    def _given(self) -> tuple[str, ...]:
        """The names of the expressions, without those that were left out."""
        return tuple(name for name in self.expressions if getattr(self, name) is not None)

    def describe(self) -> Mapping[str, Any]:
        # mypy sees the base class only, which is no dataclass itself.
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"monoid": self.word} | {
            name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items()
        }

    @abstractmethod
    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        """The pieces for inputs of these types (Spark's simple strings: `bigint`, `decimal(10,2)`, ...).

        Raises `TypeRefused` for a type that this monoid cannot take.
        """


@dataclass(frozen=True)
class OfOne(SqlMonoid):
    """A native monoid of one expression and nothing else."""

    what: ClassVar[str] = "the value"  # how errors call the expression
    of: str

    def __post_init__(self) -> None:
        check_expression(self.word, self.what, self.of)


class TypeRefused(Exception):
    """A monoid cannot take this type. The caller knows the step and turns it into a TopologyError."""

    def __init__(self, monoid: str, type_: str, takes: str) -> None:
        self.monoid, self.type, self.takes = monoid, type_, takes
        super().__init__(f"{monoid} cannot take {type_.upper()}; it takes {takes}")


def name_of(monoid: AnyMonoid) -> str:
    """What people call it: a state that one monoid has made is not read as that of another."""
    return monoid.word if isinstance(monoid, SqlMonoid) else "one's own"


class Monoid(AnyMonoid):
    """The base class for one's own monoid, in Python.

        class Longest(hs.Monoid):
            state = "STRING"                      # the type of the state; of the value, too, unless `value` is set
            def zero(self): return ""
            def lift(self, text): return text     # one argument per input expression
            def merge(self, a, b): return max(a, b, key=lambda s: (len(s), s))
            def present(self, state): return state

        words.fold("longest", by="user", word=Longest("text"))

    The methods must be pure. `hailstorm check` tests the laws and refuses a monoid that breaks one.
    A column may be null: then lift is called with None. Arguments of one's own go into attributes, and
    count as part of its meaning: set them before or after `super().__init__(*inputs)`.
    """

    state: str
    value: str | None = None
    takes: tuple[str, ...] | None = None  # the types of the inputs, for check_laws: takes = ("STRING",)
    exact: bool = True  # False: merge adds floats, so laws and audit allow for rounding

    def __init__(self, *inputs: str) -> None:
        self._inputs = inputs

    @property
    def inputs(self) -> tuple[str, ...]:
        """The SQL expressions over the input row that `lift` gets the values of."""
        return self._inputs

    def reading(self, inputs: tuple[str, ...]) -> Monoid:
        other = copy.copy(self)
        object.__setattr__(other, "_inputs", inputs)  # a monoid of one's own may be a frozen dataclass
        return other

    @abstractmethod
    def zero(self) -> Any:
        """The state of no rows."""

    @abstractmethod
    def lift(self, *values: Any) -> Any:
        """The state of one row, of which these are the values of the inputs."""

    @abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """The state of the rows of both. Must not change `a` or `b`."""

    def present(self, state: Any) -> Any:
        """The value that people see: the state itself, if not said otherwise."""
        return state

    def describe(self) -> Mapping[str, Any]:
        return {
            "own": type(self).__qualname__,
            "inputs": list(self._inputs),
            "state": self.state,
            "value": self.value,
            "code": function_identity(self),
        }
