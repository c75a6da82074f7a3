"""What is computed, and on which rows: one value that every peer understands.

The rows are pure functions of their number, so that every peer makes the same ones for itself. A peer is told a
`Work` as JSON over a pipe; nothing here knows Spark or Hailstorm.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Kind = Literal[
    "count",
    "top",
    "purchases",
    "words",
    "six",
    "six-selected",
    "one-of-six",
    "sketches",
    "bolt",
    "tumbling",
    "sliding",
    "sessions",
    "views-and-clicks",
    "tables",
    "process",
    "timers",
    "nexmark",
]

# Odd, and coprime to every number of keys in use: `keys` rows in a row touch every key exactly once.
SCRAMBLE = 2_654_435_761
WORDS = 5_000  # in the vocabulary of the lines of text
_WORDS_A_LINE = 10

# The key of row number `value`, as SQL; `keys` is the same in numpy.
_OWN_KEYS = {
    # Users are at work in two ticks of four, half of them at a time: so sessions begin, grow and end.
    "sessions": "(value * {scramble}L) % {keys} div 2 * 2 + (value div {rows} % 4) div 2",
    # Every fifth row is a click on a view of up to half a tick before.
    "views-and-clicks": "IF(value % 5 = 0, value - 1 - (value * {scramble}L) % ({rows} div 10) * 5, value)",
    # Rows of the left and of the right side by turns, so that both have all keys.
    "tables": "(value div 2 * {scramble}L) % {keys}",
}


@dataclass(frozen=True)
class Work:
    """`hot` is the share of rows, in percent, that all have one key. `apart` is the event time from one row to the
    next, in microseconds. `filled` is how many rows the state is filled with: else as many as there are keys."""

    kind: Kind
    rows: int
    keys: int
    hot: int = 0
    apart: int = 1
    filled: int | None = None

    @property
    def is_json(self) -> bool:
        """Whether the rows come as lines of JSON and not out of a generator of numbers."""
        return self.kind in ("purchases", "words")

    @property
    def key_sql(self) -> str:
        """The key of row number `value`."""
        if self.kind in _OWN_KEYS:
            return _OWN_KEYS[self.kind].format(rows=self.rows, keys=self.keys, scramble=SCRAMBLE)
        spread = f"(value * {SCRAMBLE}L) % {self.keys}"
        return f"IF(value % 100 < {self.hot}, 0L, {spread})" if self.hot else spread

    @property
    def fill(self) -> int:
        return self.keys if self.filled is None else self.filled

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        return Work(**json.loads(text))


def keys(work: Work, numbers: Numbers) -> Numbers:
    match work.kind:
        case "sessions":
            return (numbers * SCRAMBLE) % work.keys // 2 * 2 + numbers // work.rows % 4 // 2
        case "views-and-clicks":
            clicked = numbers - 1 - (numbers * SCRAMBLE) % (work.rows // 10) * 5
            return np.where(numbers % 5 == 0, clicked, numbers)
        case "tables":
            return (numbers // 2 * SCRAMBLE) % work.keys
    spread = (numbers * SCRAMBLE) % work.keys
    return np.where(numbers % 100 < work.hot, 0, spread) if work.hot else spread


def lines(work: Work, start: int, end: int) -> pa.Array:
    """The records start <= number < end of a work whose input is JSON, as text."""
    numbers = np.arange(start, end, dtype=np.int64)
    return _text_lines(numbers) if work.kind == "words" else _purchase_lines(numbers, work.keys)


def _purchase_lines(numbers: Numbers, keys: int) -> pa.Array:
    customer = pc.utf8_lpad(pa.array((numbers * SCRAMBLE) % keys).cast(pa.string()), 9, "0")
    cents = pc.utf8_lpad(pa.array(numbers % 100).cast(pa.string()), 2, "0")
    euros = pa.array(numbers * 7 % 1_000).cast(pa.string())
    level = pa.array(numbers * 31 % 10_007).cast(pa.string())
    parts = ['{"customer": "customer-', customer, '", "amount": ', euros, ".", cents, ', "level": ', level, "}"]
    return _joined(parts)


def _text_lines(numbers: Numbers) -> pa.Array:
    """Ten words a line; small numbers of words are much more frequent, as in real text."""
    parts: list[str | pa.Array] = ['{"text": "']
    for place in range(_WORDS_A_LINE):
        noise = (numbers * 97 + place * 1_000_003) * SCRAMBLE % 1_000_003 / 1_000_003
        word = (noise**3 * WORDS).astype(np.int64)
        parts += [" word" if place else "word", pa.array(word).cast(pa.string())]
    return _joined([*parts, '"}'])


def _joined(parts: list[str | pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
