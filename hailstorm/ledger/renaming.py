"""Renaming: what is live, under other names of its steps and sinks.

State is kept in folders by the name of its step. Runs that go on under another name get a second link there, with an id
of their own, as those do that a rewind brings back (restoring.py): nothing is written again, and a file belongs to the
commits between its coming and its going. `engine/ticks/renaming.py` makes the commit; rewinds and reruns, which begin
with what was live before a step was renamed, come here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from hailstorm.ledger.commit import DataFile, Former, Run, SinkShape, Stamp, StateChange, StepShape
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import run_name, write_rows
from hailstorm.ledger.stores.store import Store, missing_file, read_table

MOMENTS = "moments"  # the folder of states at earlier commits as Delta tables (delta/moments.py)
Names = Mapping[str, str]  # the name of now -> the one of then

_Value = TypeVar("_Value")
_Shape = TypeVar("_Shape", StepShape, SinkShape)


def called_now(name: str, names: Names) -> str:
    """What is meant now by a name of then: of a step, of one of its outputs, or of one of its tables of state."""
    owner, dot, part = name.partition(".")
    return next((now for now, then in names.items() if then == owner), owner) + dot + part


def called_at(step: str, live: Live, newest: Live) -> str:
    """The name that a step had at an earlier moment, by the one that it has now. Any other name is one of then."""
    then = newest.called_then(live.commit).get(step)
    return step if then is None or then not in live.steps else then


def has_state(live: Live, step: str) -> bool:
    """Whether there is a run in one of its tables, which are called as the step, or as that with a dot and a word."""
    return any(runs for table, runs in live.runs.items() if table.partition(".")[0] == step)


def under_names_of_now(live: Live, names: Names) -> Live:
    """The same with the names of now. Values only: its runs are in the folders of then."""
    if not names:
        return live
    return msgspec.structs.replace(
        live,
        watermarks=_moved(live.watermarks, names),
        reached=_moved(live.reached, names),
        runs=_moved(live.runs, names),
        steps={name: _renamed(shape, names) for name, shape in _moved(live.steps, names).items()},
        fingerprints=_moved(live.fingerprints, names),
        declared=_moved(live.declared, names),
        coverage=_moved(live.coverage, names),
        sinks=_moved(live.sinks, names),
        outboxes=_moved(live.outboxes, names),
        wholes=_moved(live.wholes, names),
        retried=_moved(live.retried, names),
    )


def moved(store: Store, live: Live, names: Names, stamp: Stamp) -> Live:
    """The same with the names of now, and with files that have them: runs are linked, dead letters written again."""
    if not names:
        return live
    found = under_names_of_now(live, names)
    runs = {called_now(table, names): (table, of_table) for table, of_table in live.runs.items() if of_table}
    linked = {
        table: tuple(_linked(store, before, table, run, stamp) for run in of_table)
        for table, (before, of_table) in runs.items()
        if before != table
    }
    letters = tuple(_letters(store, file, names, stamp) for file in live.dead_letters)
    return msgspec.structs.replace(found, runs={**found.runs, **linked}, dead_letters=letters)


def renamed_fields(head: Live, after: Live) -> dict[str, Any]:
    """What the commit after `head` says, so that `after`, which is the same under other names, is live."""
    added = {table: runs for table, runs in after.runs.items() if runs and runs != head.runs.get(table)}
    removed = {table: runs for table, runs in head.runs.items() if runs and table not in after.runs}
    known, kept = {file.path for file in head.dead_letters}, {file.path for file in after.dead_letters}
    return {
        "watermarks": after.watermarks,
        "reached": after.reached,
        "state": {
            **{table: StateChange(removed=tuple(run.id for run in runs)) for table, runs in removed.items()},
            **{table: StateChange(added=runs) for table, runs in added.items()},
        },
        "steps": after.steps,
        "fingerprints": after.fingerprints,
        "declared": after.declared,
        "coverage": after.coverage,
        "sinks": after.sinks,
        "outboxes": _new(head.outboxes, after.outboxes),
        "wholes": _new(head.wholes, after.wholes),
        "retried_rejects": _new(head.retried, after.retried),
        "dead_letters": tuple(file for file in after.dead_letters if file.path not in known),
        "retried": tuple(file.path for file in head.dead_letters if file.path not in kept),
    }


def move_published(store: Store, names: Names) -> None:
    """Let published tables go on under the new names, with their versions. What is left of one when this is cut off is
    made again by the next publication. Versions of earlier commits are made again when they are asked for."""
    for now, then in names.items():
        for name in (now, then):  # a name may be another step's by now
            store.delete_folder(f"{MOMENTS}/{name}")
        files = sorted(file.name for file in store.files(f"delta/{then}"))
        for name in files:
            store.link(name, f"delta/{now}{name.removeprefix(f'delta/{then}')}")
        if files:
            store.delete_folder(f"delta/{then}")


def with_former(shape: _Shape, name: str | None, until: int) -> _Shape:
    """The shape of a step or a sink that had this name up to this commit; None: it had none but its own."""
    if name is None:
        return shape
    return msgspec.structs.replace(shape, formerly=(*shape.formerly, Former(name, until)))


def _moved(values: Mapping[str, _Value], names: Names) -> dict[str, _Value]:
    """By the names of now. Where both names are there, what stands under the one of now is of nobody."""
    owners = {name.partition(".")[0] for name in values}
    nobodys = {now for now, then in names.items() if then in owners}
    return {called_now(name, names): value for name, value in values.items() if name.partition(".")[0] not in nobodys}


def _renamed(shape: StepShape, names: Names) -> StepShape:
    tables, agendas = _moved(shape.tables, names), _moved(shape.agendas, names)
    return msgspec.structs.replace(shape, tables=tables, agendas=agendas)


def _new(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in after.items() if before.get(name) != number}


def _linked(store: Store, before: str, table: str, run: Run, stamp: Stamp) -> Run:
    again = msgspec.structs.replace(run, id=stamp.new_name())
    name = run_name(before, run.id)
    try:
        store.link(name, run_name(table, again.id), durable=True)
    except FileNotFoundError as error:
        raise missing_file(name) from error
    return again


def _letters(store: Store, file: DataFile, names: Names, stamp: Stamp) -> DataFile:
    """A file of dead letters, whose rows name their step: all of them the same one."""
    step = read_table(store, file.path, ["step"], file.sums)["step"][0].as_py()
    now = called_now(step, names)
    if now == step:
        return file
    letters = read_table(store, file.path, sums=file.sums)
    place = letters.schema.get_field_index("step")
    column = pa.array([now] * letters.num_rows, pa.string())
    return write_rows(store, "errors", letters.set_column(place, "step", column), stamp)
