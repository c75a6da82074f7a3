"""Restoring: what a commit must say so that everything is again as it was at an earlier one.

`history/rewind.py` makes that commit. What is live now and was not then is removed; what was live then and is not now
comes back under a new name: a second link to the same file. So a file belongs to the commits between its coming and
its going, as ever, and squashing, vacuum, caches and published tables need to know nothing of rewinds. Runs that are
live at both moments stay as they are. The order of runs is that of their `seq`, which they keep.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from hailstorm.ledger.commit import DataFile, Rewound, Run, Stamp, StateChange
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import Store, missing_file


def restored(store: Store, head: Live, then: Live, stamp: Stamp, now: datetime) -> dict[str, Any]:
    """The fields of the commit after `head` that makes live what was live at `then`. Links files, and nothing more.

    What sinks have got, and what they rejected, is as it is: nobody can take that back.
    """
    letters, gone = _letters(store, head, then, stamp)
    return {
        "start": then.clock,
        "end": then.clock,
        "watermark": then.watermark,
        "watermarks": then.watermarks,
        "event_times": _silent_as_then(then, now),
        "reached": then.reached,
        "recent": (),
        "state": _state(store, head, then, stamp),
        "dead_letters": letters,
        "retried": gone,
        # A step that came later keeps its shape, without a row: readers and published tables see that it is empty.
        "steps": {**head.steps, **then.steps},
        "fingerprints": then.fingerprints,
        "declared": then.declared,
        "coverage": then.coverage,
        "rosters": then.rosters,
        "rewound": Rewound(
            commit=head.commit + 1,
            to=then.commit,
            rows=then.rows,
            errors=then.errors,
            late=then.late,
            holes=then.holes,
            skipped=then.skipped,
        ),
    }


def changed_tables(head: Live, then: Live) -> dict[str, tuple[tuple[Run, ...], tuple[Run, ...]]]:
    """By table of state: the runs that are live now only, and those that were live then only."""
    found = {}
    for table in dict.fromkeys((*head.runs, *then.runs)):
        now, before = head.runs.get(table, ()), then.runs.get(table, ())
        known, old = {run.id for run in now}, {run.id for run in before}
        only = tuple(r for r in now if r.id not in old), tuple(r for r in before if r.id not in known)
        if any(only):
            found[table] = only
    return found


def _state(store: Store, head: Live, then: Live, stamp: Stamp) -> dict[str, StateChange]:
    return {
        table: StateChange(
            added=tuple(_linked(store, table, run, stamp) for run in back), removed=tuple(run.id for run in gone)
        )
        for table, (gone, back) in changed_tables(head, then).items()
    }


def _linked(store: Store, table: str, run: Run, stamp: Stamp) -> Run:
    again = msgspec.structs.replace(run, id=stamp.new_name())
    _link(store, run_name(table, run.id), run_name(table, again.id))
    return again


def _link(store: Store, name: str, other: str) -> None:
    try:
        store.link(name, other, durable=True)
    except FileNotFoundError as error:
        raise missing_file(name) from error


def _letters(store: Store, head: Live, then: Live, stamp: Stamp) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
    """The files of dead letters that come back, and those that go."""
    now, before = {file.path for file in head.dead_letters}, {file.path for file in then.dead_letters}
    back = []
    for file in then.dead_letters:
        if file.path not in now:
            again = msgspec.structs.replace(file, path=f"errors/{stamp.new_name()}.parquet")
            _link(store, file.path, again.path)
            back.append(again)
    return tuple(back), tuple(file.path for file in head.dead_letters if file.path not in before)


def _silent_as_then(then: Live, now: datetime) -> dict[str, dict[str, tuple[int, int]]]:
    """Event times with the silence of partitions as it was: the time until now is not time in which nothing came."""
    if not then.at:
        return {}
    since = datetime.fromisoformat(then.at)
    passed = (now - since) // timedelta(microseconds=1)
    return {
        spout: {partition: (highest, seen + passed) for partition, (highest, seen) in row.items()}
        for spout, row in then.event_times.items()
    }
