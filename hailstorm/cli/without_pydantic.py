"""Commands that only read start a tenth of a second sooner without pydantic.

typer imports it to make values of words, also where a word is a text and stays one, and where none was given. Those
are done here; what must be understood (a number, one of several forms) is left to typer. A typer that does not know
of `build_runtime_param` keeps its own ways.
"""

from __future__ import annotations

from typing import Any

from typer import core


class _Word:
    """What typer asks for the value of a parameter."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind = self._descriptor.annotation
        if value is None and not (param.multiple or param.nargs == -1):
            return None
        if kind is str and isinstance(value, str):
            return value
        if kind == list[str] and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return list(value)
        return _built_by_typer(self._descriptor).coerce(value, param=param, ctx=ctx)


_built_by_typer: Any = getattr(core, "build_runtime_param", None)


def without_pydantic() -> None:
    """Let typer ask here first."""
    if _built_by_typer is not None:
        vars(core)["build_runtime_param"] = _Word
