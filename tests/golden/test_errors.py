"""Every mistake that a topology can have: a small app in `errors/`, and beside it what its author reads."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from hailstorm.errors import TopologyError
from hailstorm.topology import mistakes

APPS = sorted((Path(__file__).parent / "errors").glob("*.py"))
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.stem)
def test_a_mistake_is_shown_with_its_place_and_what_to_do(app: Path, golden: Callable[[Path, str], None]) -> None:
    with pytest.raises(TopologyError) as caught:
        runpy.run_path(str(app))
    golden(app.with_suffix(".txt"), caught.value.render())


def codes_in(file: Path) -> set[str]:
    return {
        f"HS-TOP-{int(number):03d}"
        for number in re.findall(r"\b(?:Topology|UnknownName)Error\(\s*(\d+),", file.read_text())
    }


def test_every_mistake_has_an_example_here_and_a_place_in_the_reference() -> None:
    raised = codes_in(Path(mistakes.__file__))
    shown = {app.with_suffix(".txt").read_text().split()[0] for app in APPS}
    documented = set(re.findall(r"^### (HS-TOP-\d+)", REFERENCE.read_text(), re.MULTILINE))
    assert raised == shown == documented


def test_what_other_parts_find_wrong_with_a_topology_is_in_the_reference_too() -> None:
    package = Path(mistakes.__file__).parents[1]
    raised = set().union(*(codes_in(file) for file in package.rglob("*.py"))) - codes_in(Path(mistakes.__file__))
    assert raised == set(re.findall(r"^\| (HS-TOP-\d+)", REFERENCE.read_text(), re.MULTILINE))


def test_the_examples_in_the_reference_are_what_people_read() -> None:
    golden_texts = [app.with_suffix(".txt").read_text().rstrip() for app in APPS]
    examples = re.findall(r"```text\n(HS-TOP.*?)\n```", REFERENCE.read_text(), re.DOTALL)
    assert examples
    assert [example for example in examples if example not in golden_texts] == []
