"""`hailstorm new`: a small project to begin with: an app, its test, a README."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from hailstorm.cli.output import err, plain_write_errors
from hailstorm.errors import UsageError

APP = '''\
"""Counts words. Run it with: hailstorm run app.py"""

import hailstorm as hs

storm = hs.Topology("{name}")

lines = storm.spout("lines", hs.Log("data/lines"), schema="text STRING")


@lines.bolt(returns="word STRING")
def words(line):
    for word in line.text.lower().split():
        yield {{"word": word}}


counts = words.fold("counts", by="word", n=hs.count())
counts.top("top", 10, by="n").sink("board", hs.Console())

if __name__ == "__main__":
    storm.run()
'''

TEST = '''\
"""Run with: pytest"""

from app import storm

from hailstorm.testing import Driver


def test_words_are_counted():
    with Driver(storm) as driver:
        driver.feed("lines", [{"text": "Rain and snow"}, {"text": "rain"}])
        driver.advance()
        counts = {row["word"]: row["n"] for row in driver.table("counts")}
    assert counts == {"rain": 2, "and": 1, "snow": 1}
'''

README = """\
# {name}

    echo '{{"text": "rain and snow and rain"}}' | hailstorm log append data/lines
    hailstorm run app.py --until caught-up
    hailstorm state app.py counts

`hailstorm check app.py` looks for mistakes, `pytest` runs the tests, and `hailstorm --help` lists all commands.
State is in `.hailstorm/`; the log is in `data/`.
"""

IGNORED = ".hailstorm/\ndata/\n__pycache__/\n"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder to make, and the topology's name.")],
) -> None:
    """Make a small project: app.py, test_app.py, README.md.

    \b
    Examples:
      hailstorm new shop
      hailstorm new work/shop
    """
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(11, f"'{name}' exists already and is not empty", hint="Choose another name.")
    topology = _topology_name(folder.resolve().name)
    with plain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in {
            "app.py": APP.format(name=topology),
            "test_app.py": TEST,
            "README.md": README.format(name=topology),
            ".gitignore": IGNORED,
        }.items():
            (folder / file).write_text(text)
    err.print(f"Made {name}/ with app.py, test_app.py and README.md. Next:", markup=False)
    err.print(
        f"  cd {shlex.quote(name)}",
        """  echo '{"text": "rain and snow and rain"}' | hailstorm log append data/lines""",
        "  hailstorm run app.py --until caught-up",
        sep="\n",
        markup=False,
    )


def _topology_name(folder: str) -> str:
    """The folder's name, without what a topology's name cannot hold."""
    return re.sub(r"[^a-z0-9_-]+", "_", folder.lower()).strip("_-").lstrip("0123456789_-")[:64] or "storm"
