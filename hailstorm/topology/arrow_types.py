"""Spark's types as Arrow's, in one place.

A type is Spark's simple string (`decimal(10,2)`, `array<struct<a:int,b:string>>`), in any case and spacing.
The decoders, `Rate`, delivery and the engine all ask here, so that a column has one Arrow type everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from hailstorm.errors import TopologyError

Columns = tuple[tuple[str, str], ...]

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    # Other names for the same types; the names above are the ones that messages use.
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "real": pa.float32(),
}

# A name in backquotes, a word, or one of the marks that shape a type.
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[\w$.-]+|[<>(),:])")


def arrow_type(text: str) -> pa.DataType:
    """`decimal(10,2)` as Arrow's type. Raises TopologyError for a type that a record cannot hold."""
    parser = _Parser(text)
    found = parser.type()
    parser.finish()
    return found


def arrow_schema(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(type_)) for name, type_ in columns])


def spark_name(type_: pa.DataType) -> str:
    """The type as people write it in a schema: what error messages say."""
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_map(type_):
        return f"MAP<{spark_name(type_.key_type)}, {spark_name(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"ARRAY<{spark_name(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'{field.name}: {spark_name(field.type)}' for field in type_)}>"
    return next(name for name, known in _PLAIN.items() if known == type_).upper()


class _Parser:
    """Recursive descent over the tokens; every method leaves the place after what it returns."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        place = 0
        while place < len(text.rstrip()):
            match = _TOKEN.match(text, place)
            if match is None:
                raise self._refused()
            self._tokens.append(match[1])
            place = match.end()
        self._next = 0

    def type(self) -> pa.DataType:
        word = self._take().lower()
        if word in _PLAIN:
            return _PLAIN[word]
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word in ("varchar", "char"):
            self._numbers()
            return pa.string()
        if word == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return pa.list_(element)
        if word == "map":
            self._expect("<")
            key = self.type()
            self._expect(",")
            value = self.type()
            self._expect(">")
            return pa.map_(key, value)
        if word == "struct":
            self._expect("<")
            fields = self.fields()
            self._expect(">")
            return pa.struct(fields)
        raise self._refused(f"there is no type '{word}' that a record can hold")

    def fields(self) -> list[pa.Field]:
        """`a:int,b:string`, up to the closing mark; a NOT NULL is read and not needed."""
        fields: list[pa.Field] = []
        while self._peek() not in (None, ">"):
            if fields:
                self._expect(",")
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self._peek() == ":":
                self._take()
            fields.append(pa.field(name, self.type()))
            if (self._peek() or "").lower() == "not":
                self._take()
                if self._take().lower() != "null":
                    raise self._refused()
        return fields

    def finish(self) -> None:
        if self._peek() is not None:
            raise self._refused()

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers() if self._peek() == "(" else []
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise self._refused(f"a decimal has at most 38 digits, not ({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        self._expect("(")
        numbers: list[int] = []
        while self._peek() != ")":
            if numbers:
                self._expect(",")
            word = self._take()
            if not word.isdigit() or len(numbers) == 2:
                raise self._refused()
            numbers.append(int(word))
        self._take()
        return numbers

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise self._refused()
        self._next += 1
        return token

    def _expect(self, mark: str) -> None:
        if self._take() != mark:
            raise self._refused()

    def _refused(self, why: str = "it is not a type") -> TopologyError:
        return TopologyError(
            40,
            f"cannot read the type '{self._text}': {why}",
            hint="Types are Spark's: BIGINT, DOUBLE, STRING, TIMESTAMP, DECIMAL(10,2), ARRAY<STRING>, STRUCT<a: INT>.",
        )
