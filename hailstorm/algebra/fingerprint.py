"""The fingerprint of a user's own code: changes when what it does changes, and not when it is only formatted.

Called for own monoids, whose state must not be carried on under another meaning. It covers the methods and constants
of the class, the object's attributes, and the functions and constants of the module that the methods name.
Code in other modules is covered by its name only: a fingerprint of everything would change with every upgrade.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType


def fingerprint(value: object, until: type) -> str:
    """Of an object whose class derives from `until`; what `until` and its bases define is not the user's."""
    seen: set[int] = set()
    parts: list[str] = []
    for class_ in type(value).__mro__:
        if class_ in until.__mro__:
            continue
        for name, member in sorted(vars(class_).items()):
            if name == "__init__" or not name.startswith(("__", "_abc_")):
                parts.append(f"{name} = {_meaning(member, seen)}")
    parts.append(_meaning(vars(value), seen))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _meaning(value: object, seen: set[int]) -> str:
    """A text that is the same in every process."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        return " ".join(_meaning(f, seen) for f in (value.fget, value.fset) if f is not None)
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_meaning(k, seen)}: {_meaning(v, seen)}" for k, v in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_meaning(v, seen) for v in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_meaning(v, seen) for v in value)) + "}"
    if isinstance(value, CodeType):
        return _bytecode(value, seen)
    if type(value).__repr__ is not object.__repr__ and not callable(value):
        return repr(value)
    # An object's default repr holds its address; a module, class or builtin is known by its name.
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', '')}.{name}"


def _function(function: FunctionType, seen: set[int]) -> str:
    if id(function) in seen:  # it calls itself, or was covered already
        return function.__qualname__
    seen.add(id(function))
    defaults = _meaning((function.__defaults__, function.__kwdefaults__), seen)
    closed_over = inspect.getclosurevars(function).nonlocals
    named = [
        f"{name} = {_meaning(function.__globals__[name], seen)}"
        for name in sorted(_names(function.__code__))
        if _is_own(function.__globals__.get(name), function)
    ]
    return "\n".join([_body(function, seen), defaults, _meaning(closed_over, seen), *named])


def _is_own(value: object, function: FunctionType) -> bool:
    """Whether a global is the module's own function or a constant, not something imported."""
    if isinstance(value, FunctionType):
        return value.__module__ == function.__module__
    return isinstance(value, bool | int | float | str | bytes | tuple | list | dict | set | frozenset)


def _body(function: FunctionType, seen: set[int]) -> str:
    """The source without comments, docstrings and layout; the bytecode where there is no source (a prompt)."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # SyntaxError: a lambda inside a longer line
        return _bytecode(function.__code__, seen)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _bytecode(code: CodeType, seen: set[int]) -> str:
    return f"{code.co_code.hex()} {code.co_names} {_meaning(code.co_consts, seen)}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
