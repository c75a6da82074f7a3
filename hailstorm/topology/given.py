"""What a bolt's function takes and gives, as far as its text tells: found when it is declared, and not row by row.

Only what is certain is refused: a dict that is written out in a `return` or `yield`, a text, the number of arguments.
What a function computes is known when it runs.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from hailstorm.algebra.function_identity import definition
from hailstorm.errors import Location, suggestion
from hailstorm.topology import mistakes
from hailstorm.topology.schema import Schema


@dataclass(frozen=True)
class Given:
    """The names in each dict that the function's text shows, and whether these are all that it can give."""

    dicts: tuple[frozenset[str], ...]
    complete: bool
    text: bool  # whether it gives a text, which is no row


def check_takes_one(step: str, function: Callable[..., Any], what: str, at: Location) -> None:
    """Refuse a function that cannot be called with one argument: the row, or the batch."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):  # written in C, and it does not say
        return
    try:
        signature.bind(None)
    except TypeError:
        raise mistakes.takes_other_arguments(step, f"{signature}", what, at) from None


def check_gives(step: str, function: Callable[..., Any], returns: Schema, at: Location) -> None:
    """Refuse what would make a dead letter of every row: names that are not declared, a missing NOT NULL, a text."""
    given = given_by(function)
    if given is None:
        return
    if given.text:
        raise mistakes.gives_no_rows(step, "a text", at)
    for names in given.dicts:
        for name in sorted(names - set(returns.names)):
            why, near = f"gives '{name}', which it does not declare", suggestion(name, returns.names)
            raise mistakes.gives_other_columns(step, why, returns, near, at)
        for column in returns:
            if not column.nullable and column.name not in names:
                why = f"does not give '{column.name}', which is NOT NULL"
                raise mistakes.gives_other_columns(step, why, returns, "", at)


def never_given(function: Callable[..., Any], returns: Schema) -> tuple[str, ...]:
    """The columns that no result of the function has: they would always be null. `hailstorm check` asks."""
    given = given_by(function)
    if given is None or not given.complete or not given.dicts:
        return ()
    return tuple(name for name in returns.names if not any(name in names for names in given.dicts))


def given_by(function: Callable[..., Any]) -> Given | None:
    """What the text of a function shows; None when its source is not there."""
    node = definition(function) if isinstance(function, FunctionType) else None
    if node is None:
        return None
    results = [node.body] if isinstance(node, ast.Lambda) else list(_results(node.body))
    found = [one for result in results for one in _rows(result)]
    return Given(
        tuple(one for one in found if isinstance(one, frozenset)),
        "unknown" not in found,
        "text" in found,
    )


def _results(body: list[ast.stmt]) -> Iterator[ast.expr | None]:
    """The values of `return`, or of `yield` where there is one; not those of functions inside."""
    nodes = list(_own_nodes(body))
    yields = [node for node in nodes if isinstance(node, ast.Yield | ast.YieldFrom)]
    if yields:
        # What `yield from` gives is not known, whatever it is written on.
        yield from (node.value if isinstance(node, ast.Yield) else ast.Name("unknown") for node in yields)
    else:
        yield from (node.value for node in nodes if isinstance(node, ast.Return))


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting = [*ast.iter_child_nodes(node), *waiting]


def _rows(result: ast.expr | None) -> Iterator[frozenset[str] | str]:
    """The names of each row that an expression stands for, or `text`, or `unknown`."""
    match result:
        case None | ast.Constant(value=None):
            return
        case ast.Constant(value=str()) | ast.JoinedStr():
            yield "text"
        case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
            yield frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            for item in items:
                yield from _rows(item)
        case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item):
            yield from _rows(item)
        case ast.IfExp(body=yes, orelse=no):
            yield from _rows(yes)
            yield from _rows(no)
        case _:
            yield "unknown"
