"""What a bolt's function gets and gives: rows in, dicts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex


class Row(tuple[Any, ...]):
    """One row, as a bolt's function sees it: `row.text` or `row["text"]`, for each column.

    The engine makes a class per step, with an attribute per column. A column whose name is no word of Python is
    `row["two words"]`. On a table, a row is a change: it has `_kind` and `_old`, too.
    """

    __slots__ = ()
    _columns: ClassVar[tuple[str, ...]] = ()

    def asdict(self) -> dict[str, Any]:
        """The row as a dict, columns in order."""
        return dict(zip(self._columns, self, strict=True))

    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        return getattr(self, key) if key in self._columns else self.__getattr__(key)  # a tuple has an `index`, too

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name):
            raise AttributeError(f"the row has no '{name}'; it has: {', '.join(self._columns)}")


# What a function returns: a row, rows (or yields them), or None for no row.
Rows = Mapping[str, object] | Iterable[Mapping[str, object]] | None
