"""SQL expressions that Arrow computes exactly as Spark does: rows need not leave the Python pass that holds them.

A small part of SQL, on purpose. What is compiled here agrees with Spark on nulls, NaN, overflow and types (a test
compares the two on the borders of every type); everything else is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from hailstorm.columns import TIME
from hailstorm.engine.stages.failure import expression_failed

_WIDTHS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNITS = {"SECOND", "MINUTE", "HOUR", "DAY"}


class NotInArrow(Exception):
    """This expression is Spark's to compute."""


class Node(Protocol):
    @property
    def type(self) -> pa.DataType: ...

    def __call__(self, rows: pa.RecordBatch) -> Any: ...


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType

    def __call__(self, rows: pa.RecordBatch) -> Any:
        return rows.column(self.name)


@dataclass(frozen=True)
class Constant:
    value: Any
    type: pa.DataType

    def __call__(self, rows: pa.RecordBatch) -> Any:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True)
class Apply:
    function: Callable[..., Any]
    arguments: tuple[Node, ...]
    type: pa.DataType

    def __call__(self, rows: pa.RecordBatch) -> Any:
        return self.function(*(argument(rows) for argument in self.arguments))


@dataclass(frozen=True)
class Expression:
    """One expression, ready to run. `text` is what the user wrote."""

    text: str
    node: Node

    @property
    def type(self) -> pa.DataType:
        return self.node.type

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        try:
            result = self.node(rows)
        except pa.ArrowInvalid as error:
            raise expression_failed(f"an SQL expression fails on a row: {error}. In: {self.text}") from error
        return pa.repeat(result, rows.num_rows) if isinstance(result, pa.Scalar) else result


def in_arrow(expected: Iterable[tuple[str, pa.DataType]], schema: pa.Schema) -> tuple[Expression, ...] | None:
    """These expressions over these columns, when Arrow computes all of them as Spark would; else None.

    With each comes the type that Spark gives it.
    """
    found = [(_compiled(text, schema), type_) for text, type_ in expected]
    same = tuple(one for one, type_ in found if one is not None and one.type == type_)
    return same if len(same) == len(found) else None


def _compiled(text: str, schema: pa.Schema) -> Expression | None:
    if "\\" in text:  # Spark's escapes are its own
        return None
    try:
        return Expression(text, _Compiler(schema).node(sqlglot.parse_one(text, dialect="spark")))
    except (SqlglotError, NotInArrow):
        return None


@dataclass
class _Compiler:
    schema: pa.Schema
    guarded: bool = False  # below AND, OR, IF: Spark may never compute what is here, so it must not fail

    def node(self, tree: exp.Expr) -> Node:
        compile_ = _KINDS.get(type(tree))
        if compile_ is None:
            raise NotInArrow
        return compile_(self, tree)

    def _under_guard(self, tree: exp.Expr) -> Node:
        return _Compiler(self.schema, guarded=True).node(tree)

    def paren(self, tree: exp.Paren) -> Node:
        return self.node(tree.this)

    def column(self, tree: exp.Column) -> Node:
        if tree.table or tree.name not in self.schema.names:
            raise NotInArrow
        return Column(tree.name, self.schema.field(tree.name).type)

    def literal(self, tree: exp.Literal) -> Node:
        if tree.is_string:
            return Constant(tree.name, pa.string())
        return _integer(tree.name)

    def boolean(self, tree: exp.Boolean) -> Node:
        return Constant(bool(tree.this), pa.bool_())

    def negative(self, tree: exp.Neg) -> Node:
        if not isinstance(tree.this, exp.Literal) or tree.this.is_string:
            raise NotInArrow
        return _integer("-" + tree.this.name)

    def comparison(self, tree: exp.Binary) -> Node:
        if isinstance(tree.left, _PREDICATES) or isinstance(tree.right, _PREDICATES):
            raise NotInArrow  # `a = b < c` is `(a = b) < c` in Spark, and `a = (b < c)` in sqlglot
        left, right = _alike(self.node(tree.left), self.node(tree.right))
        functions = _FLOAT_COMPARISONS if pa.types.is_float64(left.type) else _COMPARISONS
        return Apply(functions[type(tree)], (left, right), pa.bool_())

    def between(self, tree: exp.Between) -> Node:
        low = exp.GTE(this=tree.this, expression=tree.args["low"])
        high = exp.LTE(this=tree.this, expression=tree.args["high"])
        return self.connected(exp.And(this=low, expression=high))

    def connected(self, tree: exp.Connector) -> Node:
        left, right = self.node(tree.left), self._under_guard(tree.right)
        _require(left, pa.bool_())
        _require(right, pa.bool_())
        return Apply(pc.and_kleene if isinstance(tree, exp.And) else pc.or_kleene, (left, right), pa.bool_())

    def negated(self, tree: exp.Not) -> Node:
        inner = self.node(tree.this)
        _require(inner, pa.bool_())
        return Apply(pc.invert, (inner,), pa.bool_())

    def is_null(self, tree: exp.Is) -> Node:
        if not isinstance(tree.expression, exp.Null):
            raise NotInArrow
        return Apply(pc.is_null, (self.node(tree.this),), pa.bool_())

    def one_of(self, tree: exp.In) -> Node:
        if not tree.expressions or any(tree.args.get(name) for name in ("query", "unnest", "field")):
            raise NotInArrow
        value = self.node(tree.this)
        found: Node | None = None
        for item in tree.expressions:
            left, right = _alike(value, self.node(item))
            if not isinstance(right, Constant) or pa.types.is_float64(left.type):
                raise NotInArrow
            equal = Apply(pc.equal, (left, right), pa.bool_())
            found = equal if found is None else Apply(pc.or_kleene, (found, equal), pa.bool_())
        assert found is not None
        return found

    def arithmetic(self, tree: exp.Binary) -> Node:
        left, right = _alike(self.node(tree.left), self.node(tree.right))
        if pa.types.is_float64(left.type):
            return Apply(_FLOAT_ARITHMETIC[type(tree)], (left, right), left.type)
        if self.guarded or left.type not in _WIDTHS:  # it may overflow
            raise NotInArrow
        return Apply(_CHECKED_ARITHMETIC[type(tree)], (left, right), left.type)

    def remainder(self, tree: exp.Mod) -> Node:
        left, right = _alike(self.node(tree.left), self.node(tree.right))
        if left.type not in _WIDTHS or isinstance(left, Constant):
            raise NotInArrow
        if not isinstance(right, Constant) or right.value <= 0:
            raise NotInArrow
        return Apply(_remainder, (left, right), left.type)

    def coalesced(self, tree: exp.Coalesce) -> Node:
        values = [self.node(tree.this), *map(self._under_guard, tree.expressions)]
        for value in values:
            _require(value, values[0].type)
        return Apply(pc.coalesce, tuple(values), values[0].type)

    def chosen(self, tree: exp.If) -> Node:
        return self._choice([tree], tree.args.get("false"))

    def case(self, tree: exp.Case) -> Node:
        if tree.this is not None:
            raise NotInArrow
        return self._choice(tree.args["ifs"], tree.args.get("default"))

    def _choice(self, ifs: Sequence[exp.Expr], default: exp.Expr | None) -> Node:
        pairs = [(self._under_guard(one.this), self._under_guard(one.args["true"])) for one in ifs]
        type_ = pairs[0][1].type
        result: Node = Constant(None, type_) if default is None else self._under_guard(default)
        _require(result, type_)
        for condition, value in reversed(pairs):
            _require(condition, pa.bool_())
            _require(value, type_)
            result = Apply(_if_true, (condition, value, result), type_)
        return result

    def cast(self, tree: exp.Cast) -> Node:
        value = self.node(tree.this)
        target = _CASTS.get(tree.to.sql("spark").upper())
        if target is None or value.type not in _WIDTHS:
            raise NotInArrow
        if target in _WIDTHS and _WIDTHS.index(target) < _WIDTHS.index(value.type):
            raise NotInArrow  # it may not fit
        return _as(value, target)

    def truncated(self, tree: exp.TimestampTrunc) -> Node:
        unit, value = tree.text("unit").upper(), self.node(tree.this)
        _require(value, TIME)
        if unit not in _UNITS or tree.args.get("zone"):
            raise NotInArrow
        return Apply(_Floor(unit.lower()), (value,), TIME)


def _integer(text: str) -> Node:
    try:
        value = int(text)
    except ValueError:
        raise NotInArrow from None  # a decimal
    if not -(2**63) <= value < 2**63:
        raise NotInArrow
    return Constant(value, pa.int32() if -(2**31) <= value < 2**31 else pa.int64())


def _alike(left: Node, right: Node) -> tuple[Node, Node]:
    """Both as the one type in which Spark would compare or add them."""
    if left.type in _WIDTHS and right.type in _WIDTHS:
        wide = max(left.type, right.type, key=_WIDTHS.index)
        return _as(left, wide), _as(right, wide)
    numeric = (*_WIDTHS, pa.float64())
    if left.type in numeric and right.type in numeric:
        return _as(left, pa.float64()), _as(right, pa.float64())
    if left.type != right.type or not _can_compare(left.type):
        raise NotInArrow
    return left, right


def _can_compare(type_: pa.DataType) -> bool:
    return type_ in (pa.string(), pa.bool_(), pa.date32(), TIME)


def _as(node: Node, type_: pa.DataType) -> Node:
    if node.type == type_:
        return node
    if isinstance(node, Constant):
        convert: Callable[[Any], Any] = float if type_ == pa.float64() else str if type_ == pa.string() else int
        return Constant(convert(node.value), type_)
    return Apply(_Cast(type_), (node,), type_)


def _require(node: Node, type_: pa.DataType) -> None:
    if node.type != type_:
        raise NotInArrow


@dataclass(frozen=True)
class _Cast:
    type: pa.DataType

    def __call__(self, values: Any) -> Any:
        return values.cast(self.type, safe=False)  # never narrower: only a double loses digits, as in Spark


@dataclass(frozen=True)
class _Floor:
    unit: str

    def __call__(self, times: Any) -> Any:
        return pc.floor_temporal(times, unit=self.unit)


def _if_true(condition: Any, yes: Any, no: Any) -> Any:
    return pc.if_else(pc.fill_null(condition, False), yes, no)


def _remainder(values: Any, divisor: pa.Scalar) -> pa.Array:
    """With the sign of the dividend, as in Java."""
    numbers = values.fill_null(0) if values.null_count else values
    found = np.fmod(numbers.to_numpy(zero_copy_only=False), divisor.as_py())
    nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return pa.array(found, values.type, mask=nulls)


# NaN equals itself and is greater than any number; in Arrow every comparison with it is false.


def _equal(left: Any, right: Any) -> Any:
    return pc.or_kleene(pc.equal(left, right), pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _greater(left: Any, right: Any) -> Any:
    return pc.or_kleene(pc.greater(left, right), pc.and_kleene(pc.is_nan(left), pc.invert(pc.is_nan(right))))


def _not_equal(left: Any, right: Any) -> Any:
    return pc.invert(_equal(left, right))


def _less(left: Any, right: Any) -> Any:
    return _greater(right, left)


def _at_least(left: Any, right: Any) -> Any:
    return pc.invert(_greater(right, left))


def _at_most(left: Any, right: Any) -> Any:
    return pc.invert(_greater(left, right))


_COMPARISONS: dict[type, Callable[..., Any]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
}
_PREDICATES = (*_COMPARISONS, exp.Between, exp.In, exp.Not)
_FLOAT_COMPARISONS: dict[type, Callable[..., Any]] = {
    exp.EQ: _equal,
    exp.NEQ: _not_equal,
    exp.GT: _greater,
    exp.GTE: _at_least,
    exp.LT: _less,
    exp.LTE: _at_most,
}
_CHECKED_ARITHMETIC: dict[type, Callable[..., Any]] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
}
_FLOAT_ARITHMETIC: dict[type, Callable[..., Any]] = {exp.Add: pc.add, exp.Sub: pc.subtract, exp.Mul: pc.multiply}
_CASTS = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
}
_KINDS: dict[type, Callable[[_Compiler, Any], Node]] = {
    exp.Paren: _Compiler.paren,
    exp.Column: _Compiler.column,
    exp.Literal: _Compiler.literal,
    exp.Boolean: _Compiler.boolean,
    exp.Neg: _Compiler.negative,
    **dict.fromkeys(_COMPARISONS, _Compiler.comparison),
    exp.Between: _Compiler.between,
    exp.And: _Compiler.connected,
    exp.Or: _Compiler.connected,
    exp.Not: _Compiler.negated,
    exp.Is: _Compiler.is_null,
    exp.In: _Compiler.one_of,
    **dict.fromkeys(_CHECKED_ARITHMETIC, _Compiler.arithmetic),
    exp.Mod: _Compiler.remainder,
    exp.Coalesce: _Compiler.coalesced,
    exp.If: _Compiler.chosen,
    exp.Case: _Compiler.case,
    exp.Cast: _Compiler.cast,
    exp.TryCast: _Compiler.cast,  # how sqlglot reads both in this dialect; a wider type never fails
    exp.TimestampTrunc: _Compiler.truncated,
}
