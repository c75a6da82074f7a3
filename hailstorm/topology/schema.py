"""Schemas: named columns with Spark types, known before Spark is.

A type is Spark's simple string in lower case (`bigint`, `decimal(10,2)`, `array<string>`,
`struct<a:int,b:string>`), or None where only Spark can tell (the columns of an SQL step); the engine fills
those in when it compiles. Parsing DDL here is what lets a topology be built and checked without a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    name: str
    type: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.type.upper() if self.type else '?'}"


@dataclass(frozen=True)
class Schema:
    columns: tuple[Column, ...]

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
