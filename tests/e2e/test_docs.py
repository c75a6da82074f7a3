"""The docs do what they say: every page's files are written, its Python is run, and its commands are typed.

In a page, in order:
    ```python file=app.py     is written to that file
    ```python same=app.py     must be what that file holds
    ```python                 is run; a page's blocks share their names
    ```diff file=app.py       is what the reader changes in that file: lines with - become those with +
    ```console                `$ command` is typed in a shell and must succeed; what stands below is what it prints
                              (its stdout, or its stderr), where `...` stands for anything, and nothing there means
                              that nobody looks. A command below which an error stands (HS-...) must fail with it
Each page has a folder of its own, which `cd` in a command changes. Commands share a warm JVM and a warm Python
(`tests/forks.py`), those of the README not.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from hailstorm.cli.app import app
from hailstorm.topology.settings import Settings
from tests.jvm import WarmJvm

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w+)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    option: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = [Block(*match.groups()) for match in FENCE.finditer(page.read_text())]
    return [block for block in found if block.language in ("python", "console", "diff")]


@pytest.mark.spark
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jvm: WarmJvm) -> None:
    monkeypatch.chdir(tmp_path)
    warm = None if page.name == "README.md" else jvm
    commands = [*([warm.forks.commands] if warm else []), Path(sys.executable).parent]
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, commands), os.environ["PATH"]]))
    names: dict[str, object] = {}
    for block in blocks(page):
        kind, _, file = block.option.partition("=")
        if block.language == "console":
            type_commands(block.text, monkeypatch, warm)
        elif block.language == "diff":
            change(Path(file), block.text)
        elif kind == "file":
            Path(file).write_text(block.text)
        elif kind == "same":
            assert Path(file).read_text() == block.text
        else:
            exec(compile(block.text, f"{page.name}, a block", "exec", dont_inherit=True), names)


def type_commands(text: str, monkeypatch: pytest.MonkeyPatch, jvm: WarmJvm | None) -> None:
    for chunk in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = chunk.partition("\n")
        words = shlex.split(command)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            continue
        environment = {**os.environ, **(jvm.for_the_next() if jvm else {})}
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=180, check=False, env=environment
        )
        said = f"$ {command}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode != 0) == expected.startswith("HS-"), said
        if expected.strip():
            assert matches(done.stdout, expected) or matches(done.stderr, expected), said


def change(file: Path, text: str) -> None:
    lines = {sign: [line[1:] for line in text.splitlines() if line.startswith(sign)] for sign in "-+"}
    before = file.read_text()
    assert before.count("\n".join(lines["-"])) == 1
    file.write_text(before.replace("\n".join(lines["-"]), "\n".join(lines["+"])))


def matches(output: str, expected: str) -> bool:
    """Whether the output is as expected, where `...` stands for anything, also for nothing. Lines may end in spaces."""
    output = "\n".join(line.rstrip() for line in output.splitlines())
    pattern = "*".join(re.sub(r"([*?[])", r"[\1]", part) for part in expected.strip().split("..."))
    return fnmatch.fnmatchcase(output.strip(), pattern)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_reference_has_every_command_and_every_option() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text()
    sections = {part.split()[0]: part for part in text.split("\n### ")[1:]}
    sections |= {f"log {part.split()[1]}": part for part in text.split("\n### ")[1:] if part.startswith("log ")}
    group = get_command(app)
    commands = {name: command for name, command in group.commands.items() if name != "log"}  # type: ignore[attr-defined]
    log = group.commands["log"]  # type: ignore[attr-defined]
    commands |= {f"log {name}": command for name, command in log.commands.items()}
    for name, command in commands.items():
        assert name in sections, name
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("--") or f"`{option}" in sections[name], f"{name} {option}"


def test_the_reference_of_settings_is_what_check_prints() -> None:
    text = (ROOT / "docs/reference/settings.md").read_text().partition("Environment variables")[0]
    rows = [tuple(cell.strip(" `") for cell in line.split("|")[1:4]) for line in text.splitlines() if "| " in line]
    assert rows[1:] == Settings().explain()
