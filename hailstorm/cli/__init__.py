"""The command line: `hailstorm`, also `python -m hailstorm`. One file per command, and `commands.py` that lists
them.

Nothing imports this package. A command imports what it needs inside its function, so that `--help` and the
reading commands start at once: Spark alone takes longer to import than a state takes to read.
"""

from __future__ import annotations


def main() -> None:
    """What the `hailstorm` script calls."""
    from hailstorm.cli.commands import run_command_line

    run_command_line()
