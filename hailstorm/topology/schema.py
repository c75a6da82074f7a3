"""Schemas: named columns with Spark types, known before Spark is.

A type is Spark's simple string in lower case (`bigint`, `decimal(10,2)`, `array<string>`,
`struct<a:int,b:string>`), or None where only Spark can tell (the columns of an SQL step); the engine fills
those in when it compiles. Reading DDL ourselves (types.py) lets a topology be built and checked without a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hailstorm.columns import shown
from hailstorm.errors import Location
from hailstorm.topology import mistakes
from hailstorm.types import Misread, read_columns, spark_type


@dataclass(frozen=True)
class Column:
    name: str
    type: str | None
    nullable: bool = True

    def __str__(self) -> str:
        name = shown(self.name)
        return f"{name} {spark_type(self.type).shouted if self.type else '?'}" + ("" if self.nullable else " NOT NULL")


@dataclass(frozen=True)
class Schema:
    columns: tuple[Column, ...]

    @staticmethod
    def parse(text: str, at: Location | None = None) -> Schema:
        """The schema that DDL such as `user STRING, tags ARRAY<STRING>, at TIMESTAMP NOT NULL` declares.

        Raises TopologyError that points at the wrong word; `at` is the user's line that it shows.
        """
        at = at or Location.of_caller()
        if not isinstance(text, str):
            raise mistakes.bad_schema("it is not text", repr(text), 0, 1, 'Write "user STRING, at TIMESTAMP".', at)
        try:
            fields = read_columns(text)
        except Misread as wrong:
            raise mistakes.bad_schema(wrong.why, text, wrong.position, wrong.length, wrong.advice, at) from None
        for field in fields:
            if field.name.startswith("_"):
                raise mistakes.reserved_name("a column", field.name, at)
        return Schema(tuple(Column(field.name, str(field.type), field.nullable) for field in fields))

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.columns)

    def __str__(self) -> str:
        return ", ".join(str(column) for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def type_of(self, name: str) -> str | None:
        return next(column.type for column in self.columns if column.name == name)

    def fits(self, other: Schema) -> bool:
        """Whether two streams can be united: the same names in the same order; an unknown type may be any."""
        return self.names == other.names and all(
            mine.type == theirs.type or mine.type is None or theirs.type is None
            for mine, theirs in zip(self, other, strict=True)
        )
