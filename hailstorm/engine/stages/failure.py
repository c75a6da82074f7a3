"""What a task tells the driver when it fails: an error of ours, as a value, and not as words.

Spark carries the text of an exception from a Python worker to the driver, and nothing else. So a task raises one whose
text is the error as JSON, on one line behind a mark; the driver makes the same error of it (`told_by`).
"""

from __future__ import annotations

import errno
import re
from typing import Any

import msgspec

from hailstorm.errors import BadRecord, BadRecordsError, HailstormError, Location, RunError

_MARK = "hailstorm-failure:"
_LINE = re.compile(re.escape(_MARK) + r"(\{.*\})")


class StageFailed(Exception):
    """Raised in a task, in the place of an error of ours."""

    def __init__(self, error: HailstormError) -> None:
        super().__init__(_MARK + msgspec.json.encode(_told(error)).decode())


class _Told(msgspec.Struct):
    kind: str
    code: str
    what: str
    hint: str
    at: tuple[str, int] | None = None
    records: tuple[BadRecord, ...] = ()
    count: int = 0


def as_failure(error: Exception) -> Exception:
    """What to raise in a task for this error. A full disk is known by its number, which only the task has."""
    if isinstance(error, HailstormError):
        return StageFailed(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return StageFailed(disk_full(str(error)))
    return error


def told_by(text: str) -> HailstormError | None:
    """The error that a task told in a text of Spark's, if one did. The first, when several tasks failed."""
    found = _LINE.search(text)
    if found is None:
        return None
    told = msgspec.json.decode(found.group(1), type=_Told)
    kinds = {kind.__name__: kind for kind in _all_kinds(HailstormError)}
    family, _, number = told.code.rpartition("-")
    kind: Any = kinds[told.kind]
    assert kind.family == family, told
    named = {"records": told.records, "count": told.count} if told.records else {}
    at = None if told.at is None else Location(*told.at)
    return kind(int(number), told.what, at=at, hint=told.hint, **named)  # type: ignore[no-any-return]


def disk_full(what: str) -> RunError:
    hint = "The disk is full. Nothing of this tick was committed; make room and run again."
    return RunError(8, f"a tick could not be written: {what}", hint=hint)


def expression_failed(what: str) -> BadRecordsError:
    return BadRecordsError(
        10,
        what,
        hint="Nothing of this tick was committed. Let it give null on such rows (try_cast, try_divide, nullif),\n"
        "or leave them out before it (where).",
    )


def _told(error: HailstormError) -> _Told:
    at = None if error.at is None else (error.at.file, error.at.line)
    records, count = (error.records, error.count) if isinstance(error, BadRecordsError) else ((), 0)
    return _Told(type(error).__name__, error.code, error.what, error.hint, at, records, count)


def _all_kinds(kind: type[HailstormError]) -> list[type[HailstormError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in _all_kinds(child))]
