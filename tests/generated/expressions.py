"""Random SQL expressions of a wanted type over some columns: never null, always null, nested, of every family.

None of them raises: where Spark has a function that fails and one that gives null, it is the latter. What raises is
the business of bolts (rows.py), because one row is refused there and not a whole record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.generated.values import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    STRING,
    WHOLE,
    Array,
    Chance,
    Decimals,
    Map,
    Struct,
    Type,
    quoted,
)


@dataclass(frozen=True)
class Column:
    """A column of a step. What is not `exact` (a sum of floats, an estimate) is only passed on."""

    name: str
    type: Type
    exact: bool = True

    @property
    def ddl(self) -> str:
        return f"{quoted(self.name)} {self.type.text}"


Columns = tuple[Column, ...]
Production = Callable[[], str]


def operand(text: str) -> str:
    """In parentheses, where operators could take each other's operands."""
    return text if text.replace("`", "").isidentifier() else f"({text})"


@dataclass(frozen=True)
class Expressions:
    chance: Chance
    columns: Columns

    def draw(self, type_: Type, depth: int = 2) -> str:
        """An expression of this type."""
        own = self.of_type(type_)
        if own and self.chance.random() < (0.35 if depth else 0.85):
            return self.chance.choice(own)
        if not depth:
            return type_.literal(type_.draw(self.chance))
        return self.chance.choice([*self._of_any_type(type_, depth - 1), *self._of_this_type(type_, depth - 1)])()

    def predicate(self) -> str:
        return self.draw(BOOLEAN, 2)

    def of_type(self, type_: Type) -> list[str]:
        """Columns, and fields of structs, that have this type."""
        found = [quoted(column.name) for column in self.columns if column.type == type_ and column.exact]
        for column in self.columns:
            if isinstance(column.type, Struct) and column.exact:
                found += [f"{quoted(column.name)}.{quoted(n)}" for n, t in column.type.fields if t == type_]
        return found

    def _some(self, test: Callable[[Type], bool]) -> str | None:
        """A column whose type passes the test."""
        found = [quoted(column.name) for column in self.columns if test(column.type) and column.exact]
        return self.chance.choice(found) if found else None

    def _of_any_type(self, type_: Type, depth: int) -> list[Production]:
        def draw() -> str:
            return self.draw(type_, depth)

        productions: list[Production] = [
            lambda: type_.literal(None),
            lambda: type_.literal(type_.known(self.chance)),
            lambda: f"coalesce({draw()}, {draw()})",
            lambda: f"coalesce({draw()}, {type_.literal(type_.known(self.chance))})",
            lambda: f"CASE WHEN {self.draw(BOOLEAN, depth)} THEN {draw()} ELSE {draw()} END",
            lambda: f"CASE WHEN {self.draw(BOOLEAN, depth)} THEN {draw()} END",
            lambda: f"if({self.draw(BOOLEAN, depth)}, {draw()}, {draw()})",
            lambda: f"get({self.draw(Array.holding(type_), depth)}, {self.chance.randint(0, 1)})",
            lambda: f"try_element_at({self.draw(Map.holding(STRING, type_), depth)}, 'a')",
        ]
        if type_.orderable and not isinstance(type_, Struct):
            productions += [lambda: f"nullif({draw()}, {draw()})", lambda: f"greatest({draw()}, {draw()})"]
        return productions

    def _of_this_type(self, type_: Type, depth: int) -> Sequence[Production]:
        draw, chance = self.draw, self.chance
        if type_ == BOOLEAN:
            return self._booleans(depth)
        if isinstance(type_, Array):
            return [
                lambda: f"array({draw(type_.of, depth)}, {draw(type_.of, depth)})",
                lambda: f"filter({draw(type_, depth)}, e -> e IS NOT NULL)",
                lambda: f"transform({draw(type_, depth)}, e -> e)",
                lambda: f"transform({draw(type_, depth)}, (e, i) -> if(i > 0, e, {type_.of.literal(None)}))",
                lambda: f"slice({draw(type_, depth)}, 1, 2)",
                lambda: f"reverse({draw(type_, depth)})",
                lambda: f"concat({draw(type_, depth)}, {draw(type_, depth)})",
            ]
        if isinstance(type_, Map):
            return [
                lambda: f"map({type_.key.literal(type_.key.plainest)}, {draw(type_.value, depth)})",
                lambda: f"map_filter({draw(type_, depth)}, (k, v) -> v IS NOT NULL)",
            ]
        if isinstance(type_, Struct):
            return [
                lambda: (
                    "named_struct("
                    + ", ".join(f"{STRING.literal(n)}, {draw(t, max(depth - 1, 0))}" for n, t in type_.fields)
                    + ")"
                )
            ]
        if type_ == STRING:
            return self._strings(depth)
        if type_ == INT:
            return [
                lambda: f"length({draw(STRING, depth)})",
                lambda: f"try_cast({draw(STRING, depth)} AS int)",
                lambda: f"size({draw(Array.holding(INT), depth)})",
                lambda: f"year({draw(Type('date'), depth)})",
                lambda: f"ascii({draw(STRING, depth)})",
                lambda: f"try_add({draw(INT, depth)}, {chance.randint(-2, 2)})",
                lambda: f"try_mod({draw(INT, depth)}, {chance.choice([2, 3, 7])})",
            ]
        if type_ == BIGINT:
            return [
                lambda: f"try_add({draw(BIGINT, depth)}, {draw(BIGINT, depth)})",
                lambda: f"try_multiply({draw(BIGINT, depth)}, 2L)",
                lambda: f"cast({draw(INT, depth)} AS bigint)",
                lambda: f"try_cast({draw(DOUBLE, depth)} AS bigint)",
                lambda: f"bit_count({draw(BIGINT, depth)}) + 0L",
                lambda: f"pmod(xxhash64({draw(STRING, depth)}), 5L)",
            ]
        if type_ == DOUBLE:
            return [
                lambda: f"try_divide({draw(DOUBLE, depth)}, {draw(DOUBLE, depth)})",
                lambda: f"cast({draw(INT, depth)} AS double)",
                lambda: f"abs({draw(DOUBLE, depth)})",
                lambda: f"{operand(draw(DOUBLE, depth))} * 2D",
                lambda: f"nanvl({draw(DOUBLE, depth)}, 0D)",
                lambda: f"sqrt({draw(DOUBLE, depth)})",
            ]
        if type_.text in WHOLE or isinstance(type_, Decimals) or type_.text == "float":
            return [
                lambda: f"try_cast({draw(BIGINT, depth)} AS {type_.text})",
                lambda: f"try_cast({draw(STRING, depth)} AS {type_.text})",
            ]
        if type_.text == "date":
            return [lambda: f"trunc({draw(type_, depth)}, 'MM')", lambda: f"try_cast({draw(STRING, depth)} AS date)"]
        if type_.text.startswith("timestamp"):
            return [lambda: f"try_cast({draw(STRING, depth)} AS {type_.text})"]
        return [lambda: f"cast({draw(STRING, depth)} AS binary)", lambda: f"unhex(hex({draw(STRING, depth)}))"]

    def _booleans(self, depth: int) -> list[Production]:
        draw = self.draw
        types = [column.type for column in self.columns if column.exact and column.type.orderable] or [INT]
        compared = self.chance.choice(types)
        sign = self.chance.choice(["=", "<", ">=", "<>", "<=>"])
        anything = self._some(lambda type_: True)
        productions: list[Production] = [
            lambda: "true",
            lambda: f"{operand(draw(compared, depth))} {sign} {operand(draw(compared, depth))}",
            lambda: f"{operand(draw(compared, depth))} IS NULL",
            lambda: f"{operand(draw(BOOLEAN, depth))} AND {operand(draw(BOOLEAN, depth))}",
            lambda: f"({draw(BOOLEAN, depth)} OR {draw(BOOLEAN, depth)})",
            lambda: f"NOT ({draw(BOOLEAN, depth)})",
            lambda: f"{draw(STRING, depth)} LIKE '%a%'",
            lambda: f"{draw(INT, depth)} IN (1, 2, 3)",
            lambda: f"{draw(BIGINT, depth)} > 0",
            lambda: f"{draw(INT, depth)} BETWEEN -2 AND 4",
            lambda: f"exists({draw(Array.holding(INT), depth)}, e -> e > 1)",
            lambda: f"coalesce({draw(BOOLEAN, depth)}, false)",
        ]
        if anything:
            productions += [lambda: f"{anything} IS NOT NULL", lambda: f"{anything} IS NULL"]
        return productions

    def _strings(self, depth: int) -> list[Production]:
        draw = self.draw
        castable = self._some(lambda t: t.text in ("boolean", "int", "bigint", "date", "string", "timestamp_ntz"))
        nested = self._some(lambda t: isinstance(t, Struct) and "binary" not in t.text and "map<" not in t.text)
        productions: list[Production] = [
            lambda: f"upper({draw(STRING, depth)})",
            lambda: f"concat({draw(STRING, depth)}, {draw(STRING, depth)})",
            lambda: f"{draw(STRING, depth)} || '-'",
            lambda: f"substring({draw(STRING, depth)}, 1, 2)",
            lambda: f"trim({draw(STRING, depth)})",
            lambda: f"reverse({draw(STRING, depth)})",
            lambda: f"replace({draw(STRING, depth)}, 'a', 'o')",
            lambda: f"regexp_replace({draw(STRING, depth)}, '[ab]+', '.')",
            lambda: f"concat_ws('+', {draw(STRING, depth)}, {draw(STRING, depth)})",
            lambda: f"split_part({draw(STRING, depth)}, ' ', 1)",
            lambda: f"hex({draw(STRING, depth)})",
        ]
        if castable:
            productions.append(lambda: f"cast({castable} AS string)")
        if nested:
            productions.append(lambda: f"to_json({nested})")
        return productions
