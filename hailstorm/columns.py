"""Names of columns: the hidden ones, each once, and how any name is written in SQL.

Names of users' columns never begin with an underscore (topology/checks.py), so none of the hidden ones can be theirs.
A user's column can have any other name, with quotes, dots and backticks in it: SQL text holds it only as `quoted`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

# Where a row came from, and when it happened. They travel with every row through stateless steps.
SPOUT, PARTITION, OFFSET, EVENT_TIME = "_spout", "_partition", "_offset", "_time"
TIME = pa.timestamp("us", tz="UTC")  # the type of every time of ours
HIDDEN = pa.schema([(SPOUT, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (EVENT_TIME, TIME)])

# Of changes: what flows out of a table.
KIND = "_kind"  # insert, update or delete
OLD = "_old"  # the values before the change, as a struct; null for an insert

# Of state rows, in runs.
BUCKET, HASH, UPDATED, DELETED = "_bucket", "_hash", "_updated", "_deleted"

KEY_HASH = "_key_hash"  # of an agenda's entry: the hash of the key that is due, where `_hash` is the time

# Of windowed folds: part of the key, and public.
WINDOW_START, WINDOW_END = "window_start", "window_end"

# Of folds, on the way to their state. In front of a column's name: its state, that of before, and its value before.
STATE, PRIOR, OLD_VALUE = "_state_", "_prior_", "_old_"
FOUND, MEMBERS = "_found", "_members"  # whether the key had a state, and how many rows it has, of a table

PANE = "_pane"  # of sliding windows: what the clocks show when a pane begins, in microseconds

INNER = "_inner_"  # of windows of windows: what the columns of the inner ones are called meanwhile
OLD_TIME = "_old_time"  # when the row before a change was

SIGN = "_sign"  # a row that comes (1) or goes (-1)

# Of timers, in runs and where they are due: the name, the time that one was set for (µs), and by which clock.
TIMER, TIMER_AT, TIMER_CLOCK = "_timer", "_at", "_clock"

# Of stages that read several inputs: which one a row is of, and the hash of the row's own key beside that of its task.
SIDE, OWN_HASH = "_side", "_own_hash"

# Of rows without a key that are remembered: the commit with which they came, and a number within it.
TICK, NUMBER = "_tick", "_number"

GONE = "_gone"  # of a record of a table: it removes its key
PRESENT = "_present"  # of a table's row in the state: null when it is only remembered, and not to be seen

# Which task of a grouping a row is for.
TASK = "_task"
OWNER = "_part"  # a number by which Spark sends a row to the task that owns its hash

# Which dead letter a row is that gets its second chance; null for any other row.
LETTER_ID = "_letter"

_PLAIN_NAME = re.compile(r"\w+", re.ASCII)


def quoted(name: str) -> str:
    """The name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def shown(name: str) -> str:
    """The name as people write it in a schema: quoted where it must be."""
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def struct_of(fields: Mapping[str, str]) -> str:
    """SQL that makes a struct with these fields of these expressions."""
    return f"struct({', '.join(f'{text} AS {quoted(name)}' for name, text in fields.items())})"
