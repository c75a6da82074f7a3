"""Merging files of dead letters, so that the list of them follows the letters and not the ticks that had some.

The negotiator asks between ticks. Many small files of a step become one, in a commit that names both: nothing about the
letters changes, only where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.ledger.commit import DataFile
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.runs import write_rows
from hailstorm.ledger.stores.store import read_table

_MANY = 64  # files
_SMALL_ROWS, _SMALL_BYTES = 10_000, 8 << 20  # what is larger is left alone: it would be read again and again


@dataclass(frozen=True)
class Merged:
    """The files that go, and those that take their place."""

    gone: tuple[str, ...]
    files: tuple[DataFile, ...]


def merged_letters(ledger: Ledger) -> Merged | None:
    """None while there are few."""
    small = [file for file in ledger.head.dead_letters if file.rows < _SMALL_ROWS and file.bytes < _SMALL_BYTES]
    if len(small) <= _MANY:
        return None
    alike: dict[tuple[str, str], list[tuple[DataFile, pa.Table]]] = {}
    for file in small:
        letters = read_table(ledger.store, file.path, sums=file.sums)
        # Of one step, as every file is; and of rows with the same columns, which an edit of the topology may change.
        alike.setdefault((letters["step"][0].as_py(), str(letters.schema)), []).append((file, letters))
    several = [group for group in alike.values() if len(group) > 1]
    if not several:
        return None
    return Merged(
        tuple(file.path for group in several for file, _ in group),
        tuple(
            write_rows(ledger.store, "errors", pa.concat_tables([letters for _, letters in group]), ledger.stamp)
            for group in several
        ),
    )
