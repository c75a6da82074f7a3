"""SQL as text: what becomes of a user's SQL before Spark gets it, and what its words say without being parsed.

`sql.py` and `query.py` call it with text that sqlglot has parsed. Spark gets the user's own text, because sqlglot's
rendering of a parsed query may mean something else, with three changes: comments are left out (an expression is put
between parentheses, and `-- why` would swallow the closing one), names outside ASCII are quoted (Spark's grammar has
letters from A to Z only), and stars are written out (query.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import sqlglot
from sqlglot import Token, TokenType

from hailstorm.columns import quoted

# Functions that give another result when a tick is run again, on another day or on another machine. A test asks Spark
# whether it has more of them.
NONDETERMINISTIC = frozenset(
    word
    for words in (
        "rand random randn randstr uniform uuid shuffle",
        "now curdate current_timestamp current_date current_time current_datetime localtimestamp localtime",
        "monotonically_increasing_id spark_partition_id input_file_name input_file_block_start input_file_block_length",
        "current_user session_user user current_catalog current_database current_schema current_path",
        "reflect java_method try_reflect",
    )
    for word in words.split()
)
# Those of them that Spark takes without parentheses, too, where no column has the name.
WITHOUT_PARENTHESES = NONDETERMINISTIC & {
    *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
    *("current_user", "session_user", "user"),
}
_TIMES = (TokenType.DATE, TokenType.TIMESTAMP, TokenType.TIMESTAMPTZ, TokenType.TIMESTAMPLTZ, TokenType.TIMESTAMPNTZ)
_MOVING = ("now", "today", "tomorrow", "yesterday")  # TIMESTAMP 'now', DATE 'today Europe/Berlin'


def tokens(text: str) -> list[Token]:
    return list(sqlglot.tokenize(text, dialect="spark"))


def for_spark(text: str) -> str:
    """The text without comments, and with names outside ASCII in backticks."""
    parts: list[str] = []
    place = 0
    for token in tokens(text):
        if token.start < place:  # `1L` is three tokens in one place
            continue
        between, word = text[place : token.start], text[token.start : token.end + 1]
        parts.append(" " if between.strip() else between)
        parts.append(quoted(word) if token.token_type == TokenType.VAR and not word.isascii() else word)
        place = token.end + 1
    return "".join(parts).strip()


def as_column(name: str) -> str:
    """How a column is written in an expression: as it is when it is a plain word, else in backticks."""
    found = tokens(name)
    plain = len(found) == 1 and found[0].token_type == TokenType.VAR and name.isascii()
    return name if plain else quoted(name)


def with_tables(text: str, names: Mapping[str, str]) -> str:
    """The text with other names of the tables that it reads: after FROM, and before the dot of a column."""
    found = tokens(text)
    changes = []
    for before, token, after in zip([None, *found], found, [*found[1:], None], strict=False):
        reads = before is not None and before.token_type == TokenType.FROM
        owns = after is not None and after.token_type == TokenType.DOT
        if token.text in names and (reads or owns):
            name = names[token.text]
            name = quoted(name) if token.token_type == TokenType.IDENTIFIER else name
            changes.append((token.start, token.end + 1, name))
    return replaced(text, changes)


def column_named(text: str) -> str | None:
    """The column that an expression is just the name of; None when it is more than a name."""
    found = tokens(text)
    names = (TokenType.VAR, TokenType.IDENTIFIER)
    return str(found[0].text) if len(found) == 1 and found[0].token_type in names else None


def nondeterministic_words(text: str) -> Iterator[str]:
    """The calls and literals, as people know them, whose result is another one when the SQL is run again."""
    found = tokens(text)
    for i, token in enumerate(found[:-1]):
        word, after = token.text.lower(), found[i + 1]
        called = after.token_type == TokenType.L_PAREN and token.token_type != TokenType.STRING
        if called and word in NONDETERMINISTIC:
            yield f"{word}()"
        elif called and word == "unix_timestamp" and found[i + 2].token_type == TokenType.R_PAREN:
            yield "unix_timestamp()"
        elif token.token_type in _TIMES and after.token_type == TokenType.STRING and _moves(after.text):
            yield f"{word.upper()} '{after.text}'"


def _moves(time: str) -> bool:
    return time.strip().lower().startswith(_MOVING)


def replaced(text: str, places: Iterable[tuple[int, int, str]]) -> str:
    """The text with other words in some places: (start, end, new), where end is exclusive."""
    for start, end, new in sorted(places, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def end_of_star(text: str, start: int) -> int:
    """Where a star ends, EXCEPT (...) included."""
    found = [token for token in tokens(text) if token.start >= start]
    if len(found) < 2 or found[1].token_type != TokenType.EXCEPT:
        return start + 1
    return next(token.end + 1 for token in found if token.token_type == TokenType.R_PAREN)


def froms(text: str) -> list[int]:
    """Where the FROM of each SELECT begins; not that of `extract(year FROM x)` or `IS DISTINCT FROM`."""
    places: list[int] = []
    waiting = [False]  # by depth of parentheses: whether a SELECT has not had its FROM yet
    found = tokens(text)
    for before, token in pairwise([found[0], *found]):
        if token.token_type == TokenType.L_PAREN:
            waiting.append(False)
        elif token.token_type == TokenType.R_PAREN:
            waiting.pop()
        elif token.token_type == TokenType.SELECT:
            waiting[-1] = True
        elif token.token_type == TokenType.FROM and waiting[-1] and before.token_type != TokenType.DISTINCT:
            places.append(token.start)
            waiting[-1] = False
    return places
