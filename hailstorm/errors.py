"""Errors: one root, one shape.

    HailstormError
      TopologyError      HS-TOP  what a user declared is wrong; found before anything runs
        UnknownNameError         a method or a name that is not there; an AttributeError, too
      LawError           HS-LAW  a monoid breaks a law; carries the counterexample
      LogError           HS-LOG  a log cannot be read or written
        TransientLogError        ... and trying again may help
        RowError                 ... because of one of the rows that were to be appended: none of them was
      SinkError          HS-SNK  a sink cannot be opened or written
        TransientSinkError       ... and trying again may help
      LedgerError        HS-LED  the ledger cannot be opened, read or written
        FencedError              another driver has committed: this one must stop
        LedgerInUseError         another run holds the lease
      RunError           HS-RUN  a tick cannot go on: user code fails, too many bad rows, Spark fails
        TransientRunError        ... and trying again may help
        BadRecordsError          ... because of some records: without them it would
      UsageError         HS-CLI  the command line or the machine: what to type instead
        WordError                a word that was given is wrong; the command ends with exit code 2

Every error says what happened, where (step, and the user's file:line) and what to do.
Everything may import this module; it imports nothing of ours.
"""

from __future__ import annotations

import difflib
import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import ClassVar

_PACKAGE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Location:
    """A line of the user's code: where a step was declared."""

    file: str
    line: int

    @staticmethod
    def of_caller() -> Location:
        """The innermost line on the stack that is not Hailstorm's own.

        The examples are the user's code, even though they live in this package.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            # The __init__ that dataclasses generate has no file; it runs in the names of the class's module.
            generated = file == "<string>" and str(frame.f_globals.get("__name__")).startswith("hailstorm.")
            ours = generated or file.startswith(_PACKAGE)
            if not ours or "/examples/" in file[len(_PACKAGE) :]:
                return Location(file, frame.f_lineno)
            frame = frame.f_back
        return Location("<unknown>", 0)

    @property
    def short(self) -> str:
        """`app.py:14`: what people read; the folder is noise to them."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def code(self) -> str:
        return linecache.getline(self.file, self.line).strip()


class HailstormError(Exception):
    """The root. `code` is stable and documented; `at` and `hint` are shown when there are any."""

    family: ClassVar[str] = "HS"

    def __init__(self, number: int, what: str, *, at: Location | None = None, hint: str = "") -> None:
        self.code = f"{self.family}-{number:03d}"
        self.what = what
        self.at = at
        self.hint = hint
        super().__init__(self.render())

    def render(self) -> str:
        """The whole error as people read it: code, what, where, what to do."""
        lines = [f"{self.code}  {self.what}"]
        if self.at is not None:
            code = self.at.code
            lines.append(f"  at {self.at.short}" + (f", in {code}" if code else ""))
        lines += [f"  {line}" for line in self.hint.splitlines()]
        return "\n".join(lines)


class TopologyError(HailstormError):
    family = "HS-TOP"


class UnknownNameError(TopologyError, AttributeError):
    """A name that a stream, a topology or the package does not have. `hasattr` and tools see an AttributeError."""


class LawError(HailstormError):
    family = "HS-LAW"


class LogError(HailstormError):
    family = "HS-LOG"


class TransientLogError(LogError):
    """The log may answer later: the negotiator may wait and ask again."""


class RowError(LogError):
    """One of the rows of an append cannot be appended, so none of them was. `row` counts from 0."""

    def __init__(self, number: int, row: int, why: str) -> None:
        super().__init__(number, f"row {row} {why}; nothing was appended")
        self.row, self.why = row, why


class SinkError(HailstormError):
    family = "HS-SNK"


class TransientSinkError(SinkError):
    """The sink may take the same rows later: delivery waits and tries again."""


class LedgerError(HailstormError):
    family = "HS-LED"


class FencedError(LedgerError):
    """Another driver has committed in our place; going on would lose its work or ours."""


class LedgerInUseError(LedgerError):
    """Another run holds the lease of this ledger."""


class RunError(HailstormError):
    family = "HS-RUN"


class TransientRunError(RunError):
    """The same may work when it is tried again: a worker was killed, say."""


@dataclass(frozen=True)
class BadRecord:
    spout: str
    partition: int
    offset: int
    why: str


class BadRecordsError(RunError):
    """Some records make it fail: without them it would not. `records` names them, or is empty: then look for them.

    `count` is how many are known to be bad: there may be more than are named at once.
    """

    def __init__(
        self,
        number: int,
        what: str,
        *,
        at: Location | None = None,
        hint: str = "",
        records: tuple[BadRecord, ...] = (),
        count: int = 0,
    ) -> None:
        super().__init__(number, what, at=at, hint=hint)
        self.records, self.count = records, max(count, len(records))


class UsageError(HailstormError):
    family = "HS-CLI"


class WordError(UsageError):
    """Found before anything starts."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'word'?`, or nothing when nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean '{near[0]}'?" if near else ""
