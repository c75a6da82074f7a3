"""The types of columns: Spark's, read from text here and nowhere else.

A type is a small value (`Type`) whose text is Spark's simple string in lower case, with names in backticks where SQL
needs them: `decimal(10,2)`, `array<struct<a:int,`two words`:string>>`. Everything may import this module.
CHAR and VARCHAR become `string`, as they do in Spark's own DataFrames: no length is enforced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from hailstorm.columns import shown
from hailstorm.errors import suggestion

SIMPLE = {
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
_KNOWN = (*SIMPLE, *_DECIMALS, *_STRINGS, *_NESTED)
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


@dataclass(frozen=True)
class Type:
    """A type. `word` is one of the simple ones, `decimal`, `array`, `map`, `struct`, or what only Spark knows."""

    word: str
    numbers: tuple[int, ...] = ()  # precision and scale of a decimal
    inside: tuple[Type, ...] = ()  # of an array, a map (key, value) or a struct
    names: tuple[str, ...] = ()  # of the fields of a struct

    def __str__(self) -> str:
        return self._text(self.word, [str(part) for part in self.inside])

    @property
    def shouted(self) -> str:
        """As people write it: the words in capitals, names as they are."""
        return self._text(self.word.upper(), [part.shouted for part in self.inside])

    @property
    def fields(self) -> dict[str, Type]:
        """The fields of a struct; nothing for another type."""
        return dict(zip(self.names, self.inside, strict=True)) if self.word == "struct" else {}

    def walk(self) -> Iterator[Type]:
        """This type and all that are inside it."""
        yield self
        for part in self.inside:
            yield from part.walk()

    def _text(self, word: str, inside: list[str]) -> str:
        if self.word == "struct":
            inside = [f"{shown(name)}:{part}" for name, part in zip(self.names, inside, strict=True)]
        if self.word in _NESTED:
            return f"{word}<{','.join(inside)}>"
        return f"{word}({','.join(map(str, self.numbers))})" if self.numbers else word


@dataclass(frozen=True)
class Field:
    """A column, or a field of a struct, as it is declared."""

    name: str
    type: Type
    nullable: bool
    position: int  # in the text


class Misread(Exception):
    """The text is not a type or a schema: why, and where. The caller knows whose text it is."""

    def __init__(self, why: str, position: int, length: int, advice: str = "") -> None:
        self.why, self.position, self.length, self.advice = why, position, length, advice
        super().__init__(why)


@dataclass(frozen=True)
class _Token:
    text: str
    position: int
    kind: str  # name (backquoted), word, string, sign or end


def read_columns(text: str) -> list[Field]:
    """What DDL such as `user STRING, tags ARRAY<STRUCT<a: INT>>, at TIMESTAMP NOT NULL` declares. Raises Misread."""
    return _Parser(text).columns()


def read_type(text: str) -> Type:
    """One type that a column can be declared with, in any case and spacing. Raises Misread."""
    parser = _Parser(text)
    return parser.whole(parser.type())


@lru_cache(maxsize=1_000)
def spark_type(text: str) -> Type:
    """A type that Spark gave us: also one that no column can be declared with, such as `interval day`."""
    parser = _Parser(text, of_spark=True)
    return parser.whole(parser.type())


class _Parser:
    """Recursive descent over the tokens; stops at the first mistake."""

    def __init__(self, text: str, of_spark: bool = False) -> None:
        self.of_spark = of_spark
        self.tokens = [*_tokens(text), _Token("", len(text), "end")]
        self.next = 0

    def whole(self, type_: Type) -> Type:
        """The type, if nothing comes after it."""
        token = self._peek()
        if token.kind != "end":
            self._fail(token, f"'{token.text}' is one word too many")
        return type_

    def columns(self) -> list[Field]:
        if self._peek().kind == "end":
            self._fail(self._peek(), "it has no columns", 'Write "user STRING, at TIMESTAMP".')
        columns: list[Field] = []
        while True:
            token = self._peek()
            column = self._field()
            if column.name in (earlier.name for earlier in columns):
                self._fail(token, f"column '{column.name}' is declared twice")
            columns.append(column)
            if self._peek().kind == "end":
                return columns
            self._expect(",", "a comma before the next column")

    def _field(self) -> Field:
        """`name TYPE`, `name: TYPE`, each with NOT NULL and COMMENT 'text' if need be."""
        token = self._take()
        if token.kind not in ("name", "word"):
            self._fail(token, "a column name is missing" if token.kind == "end" else f"{token.text!r} is not a name")
        name = token.text[1:-1].replace("``", "`") if token.kind == "name" else token.text
        if not name:
            self._fail(token, "a column name is empty")
        if self._peek().text == ":":
            self._take()
        if self._peek().text in (",", ">") or self._peek().kind == "end":
            self._fail(token, f"column '{name}' has no type", f'Write "{name} STRING", for example.')
        type_ = self.type()
        nullable = not self._words("not", "null")
        if self._words("comment"):
            comment = self._take()
            if comment.kind != "string":
                self._fail(comment, "a comment is text in quotes")
        return Field(name, type_, nullable, token.position)

    def type(self) -> Type:
        token = self._take()
        word = token.text.lower()
        if self.of_spark and token.kind == "word" and (word not in _KNOWN or self._peek().text.lower() == "collate"):
            return self._of_sparks(word)
        if token.kind != "word" or word not in _KNOWN:
            self._fail(token, f"'{token.text}' is not a type", _advice(word))
        if word in _DECIMALS:
            return self._decimal()
        if word in _STRINGS:
            self._numbers(1)
            return Type("string")
        if word in SIMPLE:
            return Type(SIMPLE[word])
        self._expect("<", f"< after {token.text.upper()}")
        fields: list[Field] = []
        if word == "array":
            inside = [self.type()]
        elif word == "map":
            key = self.type()
            self._expect(",", "a comma between the types of key and value")
            inside = [key, self.type()]
        else:
            fields = list(self._fields())
            inside = [field.type for field in fields]
        self._expect(">", f"> to close {token.text.upper()}<")
        return Type(word, inside=tuple(inside), names=tuple(field.name for field in fields))

    def _of_sparks(self, word: str) -> Type:
        """`interval day to second`, `string collate UTF8_LCASE`: all words up to the next mark."""
        words = [word]
        while self._peek().kind == "word":
            words.append(self._take().text)
        return Type(" ".join(words), tuple(self._numbers(2)))

    def _fields(self) -> Iterator[Field]:
        """The fields of a struct, up to its end."""
        while self._peek().text != ">" and self._peek().kind != "end":
            yield self._field()
            if self._peek().text != ",":
                return
            self._take()

    def _decimal(self) -> Type:
        token = self._peek()
        numbers = self._numbers(2)
        precision = numbers[0] if numbers else 10
        scale = numbers[1] if len(numbers) == 2 else 0
        if not 1 <= precision <= 38 or scale > precision:
            why = f"DECIMAL({precision},{scale}) is out of range"
            self._fail(token, why, "At most 38 digits, and no more of them after the point.")
        return Type("decimal", (precision, scale))

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

    def _peek(self) -> _Token:
        return self.tokens[self.next]

    def _take(self) -> _Token:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def _expect(self, sign: str, meaning: str) -> None:
        token = self._take()
        if token.text != sign:
            found = f"'{token.text}'" if token.text else "the end"
            self._fail(token, f"{found} stands where {meaning} belongs")

    def _fail(self, token: _Token, why: str, advice: str = "") -> NoReturn:
        raise Misread(why, token.position, len(token.text), advice)


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        group = found.lastindex
        if group:
            yield _Token(found[group], found.start(group), _KINDS[group - 1])


def _advice(word: str) -> str:
    if word in _ELSEWHERE:
        return f"Did you mean '{_ELSEWHERE[word].upper()}'?"
    near = suggestion(word.upper(), [known.upper() for known in _KNOWN])
    return near or "Types are Spark's: STRING, BIGINT, DOUBLE, TIMESTAMP ..."
