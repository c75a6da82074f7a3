"""Why a step needs the JVM, and what to write instead. A topology without needs can be run by a resident worker.

The compiler notes them where it decides; `check` and `status` show them. No Spark here, because `status` needs none: it
reads what the last run has left in the ledger's cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

FILE = "needs.json"

_SIMPLER = "comparisons, + - *, IF, CASE, coalesce, IN, BETWEEN and casts to wider types; or compute it in a bolt"
_MONOIDS = "count, sum, mean, any, all; min and max of what is neither nested nor a float"


class Need(msgspec.Struct, frozen=True):
    step: str
    why: str
    instead: str


def of_sql(step: str) -> Need:
    return Need(step, "an SQL query is run by Spark", "where, select and fold, as far as they can say it")


def of_expressions(step: str, texts: Iterable[str]) -> Need:
    quoted = ", ".join(texts)
    return Need(step, f"only Spark computes: {quoted}", _SIMPLER)


def of_keys(step: str, names: Iterable[str]) -> Need:
    named = ", ".join(f"'{name}'" for name in names)
    return Need(step, f"only Spark hashes the type of {named}", "a key of numbers, texts, times or booleans")


def of_monoids(step: str, columns: Iterable[str]) -> Need:
    named = ", ".join(f"'{name}'" for name in columns)
    return Need(step, f"only Spark computes the monoid of {named}", _MONOIDS)


class Found(msgspec.Struct, frozen=True):
    """Whether a topology can be resident, and why not."""

    resident: bool
    needs: tuple[Need, ...] = ()

    def leave(self, cache: Path) -> None:
        """For `status`, in the cache folder of the ledger."""
        cache.mkdir(parents=True, exist_ok=True)
        (cache / FILE).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def left_in(cache: Path) -> Found | None:
        """What the last run has left. None before the first one, or when somebody has emptied the cache."""
        try:
            return msgspec.json.decode((cache / FILE).read_bytes(), type=Found)
        except (OSError, msgspec.DecodeError):
            return None

    def text(self) -> str:
        """For people, one line for each reason."""
        if self.resident:
            return "Small ticks are run by a resident worker: no step needs the JVM."
        reasons = [f"  {need.step}: {need.why}\n    without it: {need.instead}" for need in self.needs]
        return "\n".join(["Every tick is a Spark job, because of steps that need the JVM:", *reasons])
