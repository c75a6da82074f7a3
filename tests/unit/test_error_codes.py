"""Error codes: the reference has each of them once, and each means one thing."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hailstorm
from hailstorm import errors
from hailstorm.errors import HailstormError

PACKAGE = Path(hailstorm.__file__).parent
REFERENCE = PACKAGE.parent / "docs" / "reference" / "errors.md"
FAMILIES = {
    name: kind.family
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HailstormError) and kind is not HailstormError
}
# What breaks a law has its number from a table of laws (hailstorm/testing/laws.py).
OF_LAWS = {f"HS-LAW-00{number}" for number in range(1, 7)}
# Codes that several modules raise. Each was looked at: it is one thing that can happen in several places.
SHARED = {
    "HS-CLI-017": "the test driver is fed a column that is not there",
    "HS-CLI-007": "no such key column, on the command line or in Python",
    "HS-CLI-008": "a key that is not of its column's type, of a state, of a trace or of a range",
    "HS-CLI-094": "the whole key is needed, and there is none or a part of it",
    "HS-LED-002": "a newer Hailstorm has written it, a ledger or an export",
    "HS-LED-007": "no such commit, by number or counted back",
    "HS-LED-032": "not kept any more, by number or by time",
    "HS-LED-048": "something is there already, where an export or an import should go",
    "HS-LOG-006": "a segment is missing, in a folder or in a store",
    "HS-LOG-013": "no such partition, in each kind of log",
    "HS-LOG-021": "not a gz file, in a folder or in a store",
    "HS-LOG-023": "a file is gone, in a folder or in a store",
    "HS-LOG-024": "a file has changed, in a folder or in a store",
    "HS-LOG-030": "no broker answers, asked by the driver or by a task",
    "HS-LOG-072": "a file of an archive does not fit, when it is looked through or when it is read",
    "HS-SNK-001": "the target cannot be written",
    "HS-SNK-002": "a package is missing",
    "HS-SNK-003": "the target is there in another form",
    "HS-SNK-004": "options that do not fit",
    "HS-SNK-006": "not now",
    "HS-SNK-011": "the target does not take the rows",
    "HS-SNK-012": "an address of another kind",
    "HS-SNK-014": "options of a Kafka sink that do not fit its rows",
    "HS-SNK-020": "may not write",
    "HS-SNK-024": "no place for such a column or table",
}


@cache
def raised() -> tuple[tuple[str, str], ...]:
    """(code, module) of every error that is made with a number."""
    return tuple(_raised())


def _raised() -> Iterator[tuple[str, str]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FAMILIES:
                match node.args:
                    case [ast.Constant(value=int(number)), *_]:
                        yield f"{FAMILIES[node.func.id]}-{number:03d}", file.stem


def documented() -> Counter[str]:
    return Counter(re.findall(r"^(?:\| |### )(HS-[A-Z]{3}-\d{3})", REFERENCE.read_text(), re.MULTILINE))


def test_the_reference_has_every_code_and_no_other() -> None:
    assert set(documented()) == {code for code, _ in raised()} | OF_LAWS


def test_a_code_has_one_place_in_the_reference() -> None:
    assert [code for code, places in documented().items() if places > 1] == []


def test_a_code_that_several_modules_raise_means_the_same_in_all_of_them() -> None:
    modules: dict[str, set[str]] = {}
    for code, module in raised():
        if not code.startswith("HS-TOP"):  # tests/golden looks at those
            modules.setdefault(code, set()).add(module)
    assert {code for code, places in modules.items() if len(places) > 1} == set(SHARED)
