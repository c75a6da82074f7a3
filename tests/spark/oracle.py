"""Batch oracles in plain Python, and topologies drawn at random together with theirs.

A `Node` is a declared step and the function that says what its rows are, given all input so far. Tables are lists of
rows with one row a key, streams are lists of rows; what order they are in means nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hailstorm as hs
from hailstorm.topology.stream import Stream
from hailstorm.topology.table import Table

Row = dict[str, Any]
Inputs = dict[str, list[Row]]
Compute = Callable[[Inputs], list[Row]]

SCHEMA = "a STRING, b INT, x BIGINT"


@dataclass(frozen=True)
class Node:
    handle: Stream
    rows: Compute


@dataclass
class Drawn:
    """A topology, and an oracle for each of its tables and streams."""

    topology: hs.Topology
    spouts: list[str]
    nodes: dict[str, Node] = field(default_factory=dict)

    def tables(self) -> list[str]:
        return [name for name, node in self.nodes.items() if isinstance(node.handle, Table)]


# Monoids: what is declared, and what it gives for the values of its column; None when there are no values.
Fold = Callable[[Sequence[Any]], Any]


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def mean_of(values: Sequence[Any]) -> float | None:
    known = _present(values)
    return sum(known) / len(known) if known else None


def variance_of(values: Sequence[Any]) -> float | None:
    known = _present(values)
    if len(known) < 2:
        return None
    mean = sum(known) / len(known)
    return sum((value - mean) ** 2 for value in known) / (len(known) - 1)


MONOIDS: dict[str, tuple[Callable[[str], Any], Fold]] = {
    "n": (lambda column: hs.count(), len),
    "known": (lambda column: hs.count(column), lambda values: len(_present(values))),
    "total": (lambda column: hs.sum(column), lambda values: sum(_present(values)) if _present(values) else None),
    "mean": (lambda column: hs.mean(column), mean_of),
    "least": (lambda column: hs.min(column), lambda values: min(_present(values), default=None)),
    "most": (lambda column: hs.max(column), lambda values: max(_present(values), default=None)),
    "some": (
        lambda column: hs.any(f"{column} > 0"),
        lambda values: any(v > 0 for v in _present(values)) if _present(values) else None,
    ),
    "every": (
        lambda column: hs.all(f"{column} > 0"),
        lambda values: all(v > 0 for v in _present(values)) if _present(values) else None,
    ),
    "distinct": (lambda column: hs.set(column), lambda values: sorted(set(_present(values)))),
}
WHOLE = ("n", "known", "total", "least", "most")  # values that are whole numbers: they can be folded again


def folded(rows: Iterable[Row], by: Sequence[str], monoids: dict[str, tuple[str, Fold]]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        if None not in key:
            groups.setdefault(key, []).append(row)
    return [
        {
            **dict(zip(by, key, strict=True)),
            **{name: fold([row.get(column) for row in members]) for name, (column, fold) in monoids.items()},
        }
        for key, members in groups.items()
    ]


def topped(rows: list[Row], key: Sequence[str], n: int, by: str) -> list[Row]:
    known = [row for row in rows if row[by] is not None]
    unknown = [row for row in rows if row[by] is None]
    ordered = sorted(known, key=lambda row: (-row[by], tuple(row[name] for name in key)))
    ordered += sorted(unknown, key=lambda row: tuple(row[name] for name in key))
    return [{**row, "rank": rank} for rank, row in enumerate(ordered[:n], 1)]


# Random topologies


def _twice(row: Any) -> Any:
    for _ in range(1 + row.b % 2 if row.b is not None else 1):
        yield {"a": row.a, "b": row.b, "x": row.x}


def _stream_step(chance: random.Random, name: str, node: Node) -> Node:
    """One stateless step more. All keep the columns, so that they can follow each other."""
    stream, rows = node.handle, node.rows
    kind = chance.choice(["where", "select", "sql", "bolt"])
    if kind == "where":
        return Node(
            stream.where(name, "x IS NULL OR x > -20"),
            lambda inputs: [row for row in rows(inputs) if row["x"] is None or row["x"] > -20],
        )
    if kind == "select":
        return Node(
            stream.select(name, a="upper(a)", b="b", x="x * 2"),
            lambda inputs: [
                {"a": row["a"] and row["a"].upper(), "b": row["b"], "x": None if row["x"] is None else row["x"] * 2}
                for row in rows(inputs)
            ],
        )
    if kind == "sql":
        query = f"SELECT a, b, explode(array(x, x + 1)) AS x FROM {stream.name}"
        return Node(
            stream.sql(name, query),
            lambda inputs: [
                {**row, "x": None if row["x"] is None else row["x"] + more} for row in rows(inputs) for more in (0, 1)
            ],
        )
    return Node(
        stream.bolt(_twice, name=name, returns=SCHEMA),
        lambda inputs: [row for row in rows(inputs) for _ in range(1 + row["b"] % 2 if row["b"] is not None else 1)],
    )


def _fold_step(chance: random.Random, name: str, node: Node, keys: Sequence[str], numbers: Sequence[str]) -> Node:
    by = tuple(chance.sample(list(keys), chance.randint(0, min(2, len(keys)))))
    chosen = chance.sample([word for word in sorted(MONOIDS) if word not in by], chance.randint(1, 4))
    columns = {word: chance.choice(list(numbers)) for word in chosen}
    monoids = {word: MONOIDS[word][0](column) for word, column in columns.items()}
    table = node.handle.fold(name, by=by or None, **monoids)
    folds = {word: (column, MONOIDS[word][1]) for word, column in columns.items()}
    return Node(table, lambda inputs: folded(node.rows(inputs), by, folds))


def _table_step(chance: random.Random, name: str, node: Node) -> Node:
    table, rows = node.handle, node.rows
    assert isinstance(table, Table)
    numbers = [column for column in table.schema.names if column in WHOLE]
    keys = [column for column in table.schema.names if column in ("a", "b", *WHOLE)]
    kinds = ["where", "select", "fold", "fold", "top"] if numbers and table.key else ["fold"] if numbers else []
    if not kinds:
        return node
    kind = chance.choice(kinds)
    number = chance.choice(numbers)
    if kind == "where":
        limit = chance.randint(-5, 5)
        return Node(
            table.where(name, f"{number} > {limit}"),
            lambda inputs: [row for row in rows(inputs) if row[number] is not None and row[number] > limit],
        )
    if kind == "select":
        return Node(
            table.select(name, total=f"{number} % 7", n=number),
            lambda inputs: [
                {
                    **{key: row[key] for key in table.key},
                    "total": None if row[number] is None else int(math.fmod(row[number], 7)),
                    "n": row[number],
                }
                for row in rows(inputs)
            ],
        )
    if kind == "top" and "rank" not in table.schema.names:
        n = chance.randint(1, 4)
        return Node(table.top(name, n, by=number), lambda inputs: topped(rows(inputs), table.key, n, number))
    return _fold_step(chance, name, node, keys, numbers)


def draw(seed: int) -> Drawn:
    """One or two spouts, some stateless steps, some folds, and steps on top of those."""
    chance = random.Random(seed)
    storm = hs.Topology(f"drawn{seed}", error_limit=1)
    drawn = Drawn(storm, [f"s{i}" for i in range(chance.randint(1, 2))])

    def add(make: Callable[[str], Node]) -> Node:
        name = f"t{len(drawn.nodes)}"
        node = make(name)
        if node.handle.name == name:
            drawn.nodes[name] = node
        return node

    streams = []
    for spout in drawn.spouts:
        handle = storm.spout(spout, hs.Log("nowhere"), schema=SCHEMA)
        streams.append(Node(handle, lambda inputs, spout=spout: inputs[spout]))  # type: ignore[misc]
    if len(streams) == 2 and chance.random() < 0.7:
        left, right = streams
        streams.append(
            add(lambda name: Node(left.handle.union(name, right.handle), lambda i: left.rows(i) + right.rows(i)))
        )
    for _ in range(chance.randint(0, 3)):
        source = chance.choice(streams)
        streams.append(add(lambda name, source=source: _stream_step(chance, name, source)))  # type: ignore[misc]
    tables = []
    used = {name for step in storm.steps for name in step.inputs}
    # Every stream must be read by something.
    sources = [node for node in streams if node.handle.name not in used]
    for source in [*sources, *chance.choices(streams, k=chance.randint(1, 2))]:
        tables.append(add(lambda name, source=source: _fold_step(chance, name, source, ("a", "b"), ("x", "b"))))  # type: ignore[misc]
    for _ in range(chance.randint(1, 4)):
        source = chance.choice(tables)
        tables.append(add(lambda name, source=source: _table_step(chance, name, source)))  # type: ignore[misc]
    read = {name for step in storm.steps for name in step.inputs}
    for node in list(drawn.nodes.values()):
        if node.handle.step.kind in ("where", "select") and node.handle.name not in read:
            node.handle.sink(f"sink_{node.handle.name}", hs.Call(print))
    return drawn


def draw_rows(chance: random.Random, count: int, nulls: bool) -> list[Row]:
    return [
        {
            "a": chance.choice(["p", "q", "r", "ß"]) if chance.random() < 0.97 or not nulls else None,
            "b": chance.randint(0, 3),
            "x": chance.randint(-30, 30) if chance.random() < 0.9 else None,
        }
        for _ in range(count)
    ]


# Comparing


def plain(value: Any) -> Any:
    """A value as something that can be compared and printed: floats rounded, lists as sets."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return tuple(sorted(map(plain, value), key=repr))
    return value


def as_set(rows: Iterable[Row]) -> set[tuple[tuple[str, Any], ...]]:
    return {tuple(sorted((name, plain(value)) for name, value in row.items())) for row in rows}


def after_changes(changes: Iterable[Row], key: Sequence[str], values: Sequence[str]) -> list[Row]:
    """The table that changes lead to. Every change must fit to what was there before it."""
    table: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        identity = tuple(change[name] for name in key)
        kind, old = change["_kind"], change["_old"]
        before = table.get(identity)
        assert (before is None) == (kind == "insert"), (change, before)
        if before is not None:
            assert {name: plain(old[name]) for name in values} == {name: plain(before[name]) for name in values}, change
        else:
            assert old is None, change
        if kind == "delete":
            del table[identity]
        else:
            table[identity] = {name: change[name] for name in (*key, *values)}
    return list(table.values())
