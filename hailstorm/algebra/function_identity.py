"""What a Python function does, as JSON that stays the same over edits that do not matter.

A function is its syntax tree, without comments, docstrings and positions: that is the same in the next version of
Python, which bytecode is not. Where there is no source (a prompt, two lambdas on one line), it is the bytecode.
Beside it counts what the function takes from around it: defaults, closure, the globals that it names, and functions
of the user's that it calls.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_STANDARD = str(Path(inspect.__file__).parent)
_PACKAGE = str(Path(__file__).parent.parent)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_HINTS = {"annotation", "returns", "type_comment", "ctx", "kind"}


def function_identity(function: Any) -> Any:
    """The identity of anything that can be called: functions, methods, partials, objects."""
    return _Identities().of(function)


class _Identities:
    """Remembers the functions and classes that it has met, because they can name each other in circles.

    Only those: whether two equal tuples are one object differs from process to process.
    """

    def __init__(self) -> None:
        self.met: dict[int, int] = {}
        self.around: list[int] = []

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, (float, complex, bytes)):
            return repr(value)
        if isinstance(value, ModuleType):
            return {"module": value.__name__}
        if isinstance(value, CodeType):
            return self._bytecode(value)
        if isinstance(value, (FunctionType, type)):
            if id(value) in self.met:
                return {"again": self.met[id(value)]}
            self.met[id(value)] = len(self.met)
            return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        if id(value) in self.around:
            return {"around": self.around.index(id(value))}
        self.around.append(id(value))
        identity = self._object(value)
        self.around.pop()
        return identity

    def _object(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *(self.of(inner) for inner in value)]
        if isinstance(value, (set, frozenset)):
            return [type(value).__name__, *sorted((self.of(inner) for inner in value), key=repr)]
        if isinstance(value, Mapping):
            return {"mapping": [[self.of(key), self.of(inner)] for key, inner in value.items()]}
        if isinstance(value, functools.partial):
            return {"partial": [self.of(value.func), self.of(value.args), self.of(value.keywords)]}
        if isinstance(value, MethodType):
            return {"method": [self.of(value.__func__), self.of(value.__self__)]}
        if _is_users(type(value)):
            return {"instance": self.of(type(value)), "state": self.of(getattr(value, "__dict__", None))}
        shown = repr(value)
        # The default repr holds an address, which is another one in every process.
        return {"instance": self.of(type(value)), "value": None if " at 0x" in shown else shown}

    def _function(self, function: FunctionType) -> Any:
        if not _is_users(function):
            return {"function": f"{function.__module__}.{function.__qualname__}"}
        code = function.__code__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        around = {name: function.__globals__.get(name) for name in sorted(_global_names(code))}
        return {
            "code": _tree(function) or self._bytecode(code),
            "defaults": self.of((function.__defaults__, function.__kwdefaults__)),
            "closure": [[name, self.of(_content(cell))] for name, cell in cells],
            "globals": [[name, self.of(value)] for name, value in around.items()],
        }

    def _bytecode(self, code: CodeType) -> list[Any]:
        return [code.co_code.hex(), self.of(code.co_consts), list(code.co_names), list(code.co_varnames)]

    def _class(self, value: type) -> Any:
        if not _is_users(value):
            return {"class": f"{value.__module__}.{value.__qualname__}"}
        methods = {name: inner for name, inner in vars(value).items() if isinstance(inner, FunctionType)}
        return {
            "class": value.__qualname__,
            "bases": [self.of(base) for base in value.__bases__],
            "methods": [[name, self.of(method)] for name, method in sorted(methods.items())],
            "fields": [
                [name, self.of(inner)]
                for name, inner in sorted(vars(value).items())
                if isinstance(inner, (bool, int, float, str, tuple)) and not name.startswith("__")
            ],
        }


def _is_users(value: Any) -> bool:
    """Installed packages are taken by name: an upgrade of one is not an edit of the topology."""
    file = _file_of(value)
    if file is None:
        return getattr(value, "__module__", "") != "builtins"
    if file.startswith(_PACKAGE):
        return file.startswith(f"{_PACKAGE}/examples/")
    return not {"site-packages", "dist-packages"} & set(Path(file).parts) and not file.startswith(_STANDARD)


def _file_of(value: Any) -> str | None:
    """Where a function or class was written; None for what was not written in Python."""
    if isinstance(value, FunctionType):
        return value.__code__.co_filename
    for member in vars(value).values():
        if isinstance(member, FunctionType) and member.__module__ == value.__module__:
            return member.__code__.co_filename
    return getattr(sys.modules.get(value.__module__), "__file__", None)


def _global_names(code: CodeType) -> set[str]:
    """The globals that a function reads, in the functions inside it, too."""
    read = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return read.union(*(_global_names(constant) for constant in inner))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later, such as the function itself
        return None


def definition(function: FunctionType) -> Definition | None:
    """The syntax tree of a function, or None when its source is not there or not certain."""
    code = function.__code__
    try:
        module = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    found = [node for node in ast.walk(module) if isinstance(node, Definition) and _is_definition(node, code)]
    return found[0] if len(found) == 1 else None


def _tree(function: FunctionType) -> Any:
    node = definition(function)
    if node is None:
        return None
    if isinstance(node, ast.Lambda):
        return [_dump(node.args), _dump(node.body)]
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return [_dump(node.args), _dump(body)]


def _is_definition(node: Definition, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if node.name != code.co_name:
        return False
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) == code.co_firstlineno


def _dump(node: Any) -> Any:
    """`ast.dump`, but the same in every version of Python: what is empty or only a hint is left out."""
    if isinstance(node, list):
        return [_dump(inner) for inner in node]
    if not isinstance(node, ast.AST):
        return node if isinstance(node, str) else repr(node)
    if isinstance(node, ast.Constant):
        return repr(node.value)
    kept = {name: value for name, value in ast.iter_fields(node) if name not in _HINTS and value not in (None, [])}
    return [type(node).__name__, *([name, _dump(value)] for name, value in sorted(kept.items()))]
