"""Groupings: how tuples reach the tasks of a bolt. Storm's shuffle, fields, all and global.

The result of a pure bolt depends on its grouping in one case only: `everyone` gives every task its own copy of
each tuple, so what the bolt emits comes once per task.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grouping:
    kind: str
    tasks: int | None = None
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(self.names) if self.names else (str(self.tasks) if self.tasks else "")
        return f"{self.kind}({inside})"


def shuffle(tasks: int) -> Grouping:
    """Tuples spread evenly over so many tasks."""
    return Grouping("shuffle", tasks=tasks)


def fields(*names: str) -> Grouping:
    """Tuples with equal values of these fields meet in one task."""
    return Grouping("fields", names=names)


def everyone(tasks: int) -> Grouping:
    """Every task gets every tuple: Storm's *all*."""
    return Grouping("everyone", tasks=tasks)


def one() -> Grouping:
    """All tuples go to one task: Storm's *global*."""
    return Grouping("one", tasks=1)
