"""The second chance of rows that a sink rejected: which of them go into its outbox again.

The negotiator asks for it (`hailstorm errors --retry`) and makes the commit, which names the new outbox files and, per
sink, up to which commit the rejected rows are in them. So a row is either a dead letter or in the outbox, never both,
whatever dies. What is rejected again is a dead letter of that commit.

A change of a table whose key has changed since is out of date: it must never overwrite what came later. It is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from hailstorm.columns import KIND
from hailstorm.engine.delivery.outbox import fitting
from hailstorm.errors import SinkError
from hailstorm.ledger.commit import DataFile
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.letters import ROW
from hailstorm.ledger.runs import write_rows
from hailstorm.ledger.stores.store import read_table
from hailstorm.sinks.json_rows import json_rows

Key = str  # the key columns, as JSON


@dataclass
class SecondChance:
    """What a retry commit says of the rows that sinks rejected."""

    outbox: dict[str, tuple[DataFile, ...]] = field(default_factory=dict)
    retried: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    outdated: int = 0


def second_chance(ledger: Ledger, sinks: Mapping[str, tuple[pa.Schema, tuple[str, ...]]]) -> SecondChance:
    """Write the rejected rows of these sinks into new outbox files. `sinks` has their columns and keys.

    Every sink must have got all that is committed: what it has not got may yet be rejected.
    """
    found = SecondChance()
    for sink, (schema, key) in sinks.items():
        letters = [
            (commit, _fitting(sink, commit, pa.Table.from_struct_array(letter[ROW]), schema))
            for commit, letter in ledger.rejected_by(sink, ledger.head)
        ]
        if not letters:
            continue
        changed = _last_changes(ledger, sink, letters, schema, key)
        # What was rejected before the sink got its whole table is out of date: that had the rows as they were then.
        whole = ledger.head.wholes.get(sink, 0)
        current = [
            rows.slice(0, 0) if commit < whole else _unchanged_since(commit, rows, key, changed)
            for commit, rows in letters
        ]
        rows = pa.concat_tables(current)
        found.retried[sink] = letters[-1][0]
        found.rows += rows.num_rows
        found.outdated += sum(all_.num_rows for _, all_ in letters) - rows.num_rows
        if rows.num_rows:
            found.outbox[sink] = (write_rows(ledger.store, f"outbox/{sink}", rows, ledger.stamp),)
    return found


def _fitting(sink: str, commit: int, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        return fitting(rows, schema)
    except SinkError as error:
        raise SinkError(
            23,
            f"rows of commit {commit} that sink '{sink}' rejected do not fit its columns any more: {error.__cause__}",
            hint="The step before the sink has other types now. Nothing was retried; the rows stay dead letters.",
        ) from error


def _last_changes(
    ledger: Ledger, sink: str, letters: list[tuple[int, pa.Table]], schema: pa.Schema, key: tuple[str, ...]
) -> dict[Key, int]:
    """The last commit that has a change of each key, of the keys of these rows. Nothing for rows of a stream.

    Only commits after the first letter's count: the outbox of that one is delivered, and may be gone.
    """
    wanted = {one for _, rows in letters if KIND in rows.column_names for one in _keys(rows, key)}
    changed: dict[Key, int] = {}
    for commit in ledger.commits(letters[0][0]) if wanted else ():
        for file in commit.outbox.get(sink, ()):
            columns = read_table(ledger.store, file.path, [*key, KIND], file.sums)
            typed = columns.select(key).cast(pa.schema([schema.field(name) for name in key])) if key else columns
            changed |= dict.fromkeys(wanted.intersection(_keys(typed, key)), commit.commit)
    return changed


def _unchanged_since(commit: int, rows: pa.Table, key: tuple[str, ...], changed: Mapping[Key, int]) -> pa.Table:
    if KIND not in rows.column_names:
        return rows
    return rows.filter(pa.array([changed.get(one, commit) == commit for one in _keys(rows, key)], pa.bool_()))


def _keys(rows: pa.Table, key: tuple[str, ...]) -> Iterable[Key]:
    """The key of each row. A table without key columns is one row: its changes have all the same key."""
    return list(json_rows(rows.select(key)).to_pylist())
