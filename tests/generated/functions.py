"""Functions of bolts, chosen from a small library whose source can be printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.generated.batch import HIDDEN_NAMES, Row
from tests.generated.expressions import Column, Columns
from tests.generated.values import BIGINT, INT, STRING, Array, Chance


@dataclass(frozen=True)
class RowFunction:
    """`body` is the inside of a function of `row`, after `given` is the row as a dict."""

    body: tuple[str, ...]
    returns: Columns

    def source(self, name: str) -> str:
        return "\n    ".join([f"def {name}(row):", "given = row.asdict()", *self.body])

    def compiled(self, name: str) -> Callable[[Any], Any]:
        namespace: dict[str, Any] = {}
        exec(self.source(name), namespace)
        return namespace[name]  # type: ignore[no-any-return]

    def repaired(self) -> RowFunction:
        """The same without the rows on which it raises."""
        return RowFunction(
            ("try:", *(f"    {line}" for line in self.body), "except Exception:", "    return None"), self.returns
        )


class _Given(dict[str, Any]):
    def asdict(self) -> dict[str, Any]:
        return dict(self)


def called(function: Callable[[Any], Any], row: Mapping[str, Any]) -> list[Row]:
    result = function(_Given(row))
    return [] if result is None else [result] if isinstance(result, dict) else list(result)


def draw_row_function(chance: Chance, columns: Columns) -> RowFunction:
    """Pass rows on, twice, some of them, the items of a list, something new; or refuse some."""
    kept = tuple(sorted(chance.sample(columns, chance.randint(1, len(columns))), key=columns.index))
    as_they_are = "{" + ", ".join(f"{column.name!r}: given[{column.name!r}]" for column in kept) + "}"
    numbers = [column for column in columns if column.type in (INT, BIGINT)]
    texts = [column for column in columns if column.type == STRING]
    arrays = [column for column in columns if isinstance(column.type, Array)]
    free = next(name for name in ("made", "made2", "made3") if name not in [column.name for column in kept])
    copied = f"return {as_they_are}"

    def with_it(new: str) -> str:
        return f"    yield {{**{as_they_are}, {free!r}: {new}}}"

    bodies: list[tuple[tuple[str, ...], Columns]] = [
        ((copied,), kept),
        (("for _ in range(2):", f"    yield {as_they_are}"), kept),
    ]
    if numbers:
        number = f"given[{chance.choice(numbers).name!r}]"
        bodies += [
            ((f"if {number} is None or {number} % 2:", "    return None", copied), kept),
            ((f"if {number} is not None and {number} % 3 == 1:", "    raise ValueError('1 of 3')", copied), kept),
            ((f"for i in range(({number} or 0) % 3):", with_it("i")), (*kept, Column(free, INT))),
        ]
    if texts:
        text = f"given[{chance.choice(texts).name!r}]"
        bodies += [
            ((f"for word in ({text} or '').split():", with_it("word")), (*kept, Column(free, STRING))),
            ((f"return {{**{as_they_are}, {free!r}: len({text})}}",), (*kept, Column(free, BIGINT))),
        ]
    if arrays:
        array = chance.choice(arrays)
        assert isinstance(array.type, Array)
        items = (f"for item in given[{array.name!r}] or []:", with_it("item"))
        bodies.append((items, (*kept, Column(free, array.type.of))))
    return RowFunction(*chance.choice(bodies))


@dataclass(frozen=True)
class BatchFunction:
    """Of a batch: some of its columns, once or twice."""

    returns: Columns
    twice: bool

    def source(self, name: str) -> str:
        names = [column.name for column in self.returns]
        chosen = f"batch.select({[*names, *HIDDEN_NAMES]!r})"
        return f"def {name}(batch):\n    return {f'[{chosen}, {chosen}]' if self.twice else chosen}"

    def rows(self, rows: list[Row]) -> list[Row]:
        names = [*(column.name for column in self.returns), *HIDDEN_NAMES]
        return [{name: row[name] for name in names} for row in rows] * (2 if self.twice else 1)


def draw_batch_function(chance: Chance, columns: Columns) -> BatchFunction:
    kept = tuple(sorted(chance.sample(columns, chance.randint(1, len(columns))), key=columns.index))
    return BatchFunction(kept, chance.random() < 0.4)
