"""The description of an own monoid changes when its meaning does, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SOURCE = """
from hailstorm.algebra import Monoid

LIMIT = 10

def better(a, b):
    return a if len(a) > len(b) else b

class Longest(Monoid):
    state = "STRING"

    def zero(self):
        return ""

    def lift(self, text):
        return text[:LIMIT]

    def merge(self, a, b):
        return max(better(a, b), better(b, a))
"""


@pytest.fixture
def described(tmp_path: Path) -> Any:
    """describe() of Longest, from a file with these changes to the source."""
    count = 0

    def describe(*changes: tuple[str, str], call: str = 'Longest("text")') -> Any:
        nonlocal count
        count += 1
        text = SOURCE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / f"app_{count}.py"
        file.write_text(text)
        module = {"__name__": "app"}
        exec(compile(text, str(file), "exec"), module)
        return eval(call, module).describe()

    return describe


def test_the_same_code_in_another_file_is_the_same(described: Any) -> None:
    assert described() == described()


@pytest.mark.parametrize(
    "change",
    [
        ("def lift", "# cuts\n    def lift"),
        ("def zero(self):", 'def zero(self):\n        """Nothing yet."""'),
        ("max(better(a, b), better(b, a))", "max(\n            better(a, b),\n            better(b, a),\n        )"),
        ("LIMIT = 10", "OTHER = 3\nLIMIT = 10"),
    ],
    ids=["a comment", "a docstring", "layout", "another constant"],
)
def test_what_does_not_matter_does_not_count(described: Any, change: tuple[str, str]) -> None:
    assert described(change) == described()


@pytest.mark.parametrize(
    "change",
    [
        ('return ""', 'return "-"'),
        ("LIMIT = 10", "LIMIT = 11"),
        ("len(a) > len(b)", "len(a) < len(b)"),
        ('state = "STRING"', 'state = "BINARY"'),
        ("text[:LIMIT]", "text[LIMIT:]"),
        ("max(better", "min(better"),
    ],
    ids=["a constant", "a module's constant", "a function that it calls", "the state", "the lift", "the merge"],
)
def test_what_matters_counts(described: Any, change: tuple[str, str]) -> None:
    assert described(change) != described()


def test_attributes_of_the_object_count(described: Any) -> None:
    method = "    def __init__(self, text, n):\n        self.n = n\n        super().__init__(text)\n\n"
    init = ("    def zero", f"{method}    def zero")
    one, other = (described(init, call=f'Longest("text", {n})') for n in (1, 2))
    assert one != other
    assert one == described(init, call='Longest("text", 1)')


def test_code_without_source_is_told_apart_by_its_bytecode() -> None:
    def describe(constant: str) -> Any:
        module: dict[str, Any] = {"__name__": "prompt"}
        exec(SOURCE.replace('return ""', f"return {constant!r}"), module)
        return module["Longest"]("text").describe()

    assert describe("a") == describe("a")
    assert describe("a") != describe("b")
