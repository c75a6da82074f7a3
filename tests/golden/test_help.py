"""The help of every command, as a person reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hailstorm.cli.app import app

FOLDER = Path(__file__).parent / "help"
TERMINAL = {"TERMINAL_WIDTH": "100", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


COMMANDS = sorted(commands(get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "hailstorm")
def test_the_help_of_a_command(words: tuple[str, ...], golden: Callable[[Path, str], None]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env=TERMINAL, prog_name="hailstorm")
    assert result.exit_code == 0
    text = "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())
    golden(FOLDER / f"{'-'.join(words) or 'hailstorm'}.txt", text)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in [("log",)]], ids=" ".join)
def test_every_command_has_examples(words: tuple[str, ...]) -> None:
    text = (FOLDER / f"{'-'.join(words) or 'hailstorm'}.txt").read_text()
    assert f"hailstorm {' '.join(words)}".strip() in text.partition("Examples:")[2]


def test_there_is_no_help_of_commands_that_are_gone() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {"-".join(words) or "hailstorm" for words in COMMANDS}
