"""Reads the DDL of a schema without Spark: `user STRING, tags ARRAY<STRUCT<a: INT>>, at TIMESTAMP NOT NULL`.

`schema.py` calls it. Types come out as Spark's simple strings, in lower case. CHAR and VARCHAR become `string`,
as they do in Spark's own DataFrames: no length is enforced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from hailstorm.errors import Location, TopologyError, suggestion
from hailstorm.topology import mistakes

_SIMPLE = {
    **{name: name for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")},
    **{name: name for name in ("string", "binary", "date", "timestamp", "timestamp_ntz", "variant")},
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_DECIMALS = ("decimal", "dec", "numeric")
_STRINGS = ("char", "character", "varchar")
_NESTED = ("array", "map", "struct")
_KNOWN = (*_SIMPLE, *_DECIMALS, *_STRINGS, *_NESTED)
# What people coming from Python or another database write; too far from ours for a spelling suggestion.
_ELSEWHERE = {
    **dict.fromkeys(("str", "text", "object", "utf8"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("datetime", "timestamptz"), "timestamp"),
    **dict.fromkeys(("int64", "uint32", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "uint16"), "int"),
    **dict.fromkeys(("float64", "number"), "double"),
    **dict.fromkeys(("bytes", "blob", "bytea"), "binary"),
    **dict.fromkeys(("list",), "array"),
    **dict.fromkeys(("dict", "json"), "map"),
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")|(\S))")
_KINDS = ("name", "word", "string", "sign")
_PLAIN_NAME = re.compile(r"\w+")


@dataclass(frozen=True)
class Token:
    text: str
    position: int
    kind: str  # name (backquoted), word, string, sign or end


def parse_columns(text: str, at: Location) -> list[tuple[str, str, bool]]:
    """(name, type, nullable) of each column that the DDL declares. Raises TopologyError."""
    if not isinstance(text, str):
        raise mistakes.bad_schema("it is not text", repr(text), 0, 1, 'Write "user STRING, at TIMESTAMP".', at)
    return _Parser(text, at).columns()


def read_type(text: str) -> str | None:
    """One type as Spark's simple string, or None for what is not a type."""
    try:
        parser = _Parser(text, Location("", 0))
        type_ = parser.type()
    except TopologyError:
        return None
    return type_ if parser.at_end else None


def struct_fields(type_: str) -> dict[str, str]:
    """The fields of a struct type; nothing for another type."""
    if not type_.startswith("struct<"):
        return {}
    parser = _Parser(type_[len("struct<") : -1], Location("", 0))
    return {name: field for name, field, _ in parser.fields()}


def quoted(name: str) -> str:
    """The name as it is written in DDL and SQL: in backquotes when it is not a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def shouted(type_: str) -> str:
    """A type as people write it: the type words in capitals, names inside a struct as they are."""
    return re.sub(r"\w+(?=\s*[<>,()]|$)|\b(?:struct|array|map|decimal)\b(?=[<(])", lambda word: word[0].upper(), type_)


class _Parser:
    """Recursive descent over the tokens; stops at the first mistake."""

    def __init__(self, text: str, at: Location) -> None:
        self.text, self.at = text, at
        self.tokens = [*_tokens(text), Token("", len(text), "end")]
        self.next = 0

    @property
    def at_end(self) -> bool:
        return self._peek().kind == "end"

    def columns(self) -> list[tuple[str, str, bool]]:
        if self.at_end:
            self._fail(self._peek(), "it has no columns", 'Write "user STRING, at TIMESTAMP".')
        columns: list[tuple[str, str, bool]] = []
        while True:
            token = self._peek()
            column = self._field()
            if column[0].startswith("_"):
                raise mistakes.reserved_name("a column", column[0], self.at)
            if column[0] in (name for name, _, _ in columns):
                self._fail(token, f"column '{column[0]}' is declared twice")
            columns.append(column)
            if self.at_end:
                return columns
            self._expect(",", "a comma before the next column")

    def _field(self) -> tuple[str, str, bool]:
        """`name TYPE`, `name: TYPE`, each with NOT NULL and COMMENT 'text' if need be."""
        token = self._take()
        if token.kind not in ("name", "word"):
            self._fail(token, "a column name is missing" if token.kind == "end" else f"{token.text!r} is not a name")
        name = token.text[1:-1].replace("``", "`") if token.kind == "name" else token.text
        if not name:
            self._fail(token, "a column name is empty")
        if self._peek().text == ":":
            self._take()
        if self._peek().text in (",", ">") or self.at_end:
            self._fail(token, f"column '{name}' has no type", f'Write "{name} STRING", for example.')
        type_ = self.type()
        nullable = not self._words("not", "null")
        if self._words("comment"):
            comment = self._take()
            if comment.kind != "string":
                self._fail(comment, "a comment is text in quotes")
        return name, type_, nullable

    def type(self) -> str:
        token = self._take()
        word = token.text.lower()
        if token.kind != "word" or word not in _KNOWN:
            self._fail(token, f"'{token.text}' is not a type", _advice(word))
        if word in _DECIMALS:
            return self._decimal()
        if word in _STRINGS:
            self._numbers(1)
            return "string"
        if word in _SIMPLE:
            return _SIMPLE[word]
        self._expect("<", f"< after {token.text.upper()}")
        if word == "array":
            inside = self.type()
        elif word == "map":
            key = self.type()
            self._expect(",", "a comma between the types of key and value")
            inside = f"{key},{self.type()}"
        else:
            inside = ",".join(f"{quoted(name)}:{type_}" for name, type_, _ in self.fields())
        self._expect(">", f"> to close {token.text.upper()}<")
        return f"{word}<{inside}>"

    def fields(self) -> Iterator[tuple[str, str, bool]]:
        """The fields of a struct, up to its end."""
        while self._peek().text != ">" and not self.at_end:
            yield self._field()
            if self._peek().text != ",":
                return
            self._take()

    def _decimal(self) -> str:
        token = self._peek()
        numbers = self._numbers(2)
        precision = numbers[0] if numbers else 10
        scale = numbers[1] if len(numbers) == 2 else 0
        if not 1 <= precision <= 38 or scale > precision:
            why = f"DECIMAL({precision},{scale}) is out of range"
            self._fail(token, why, "At most 38 digits, and no more of them after the point.")
        return f"decimal({precision},{scale})"

    def _numbers(self, most: int) -> list[int]:
        """`(10)` or `(10, 2)`: at most so many numbers; none when there are no parentheses."""
        numbers: list[int] = []
        if self._peek().text != "(":
            return numbers
        self._take()
        while True:
            number = self._take()
            if not number.text.isdecimal() or len(numbers) == most:
                self._fail(number, "a number belongs here" if len(numbers) < most else "one number too many")
            numbers.append(int(number.text))
            if self._peek().text == ")":
                self._take()
                return numbers
            self._expect(",", ")")

    def _words(self, *words: str) -> bool:
        """Take these words if they come next."""
        ahead = self.tokens[self.next : self.next + len(words)]
        if [token.text.lower() for token in ahead if token.kind == "word"] != list(words):
            return False
        self.next += len(words)
        return True

    def _peek(self) -> Token:
        return self.tokens[self.next]

    def _take(self) -> Token:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def _expect(self, sign: str, meaning: str) -> None:
        token = self._take()
        if token.text != sign:
            found = f"'{token.text}'" if token.text else "the end"
            self._fail(token, f"{found} stands where {meaning} belongs")

    def _fail(self, token: Token, why: str, advice: str = "") -> NoReturn:
        raise mistakes.bad_schema(why, self.text, token.position, len(token.text), advice, self.at)


def _tokens(text: str) -> Iterator[Token]:
    for found in _TOKEN.finditer(text):
        group = found.lastindex
        if group:
            yield Token(found[group], found.start(group), _KINDS[group - 1])


def _advice(word: str) -> str:
    if word in _ELSEWHERE:
        return f"Did you mean '{_ELSEWHERE[word].upper()}'?"
    near = suggestion(word.upper(), [known.upper() for known in _KNOWN])
    return near or "Types are Spark's: STRING, BIGINT, DOUBLE, TIMESTAMP ..."
