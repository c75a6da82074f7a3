"""The whole command line as one object: what the help is made of, and what tests run."""

from __future__ import annotations

from hailstorm.cli.commands import command_line

app = command_line()
