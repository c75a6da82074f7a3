"""Fingerprints: one hash per step, that changes when, and only when, what the step does changes.

The engine writes them into commits and compares them on start. A fingerprint covers a step's own parameters and
the *names* of its inputs, not what those do: so a changed bolt is reported as itself, and what is downstream of it
can be told from the graph. Where a step stands in the user's file, comments and layout do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hailstorm.algebra.function_identity import function_identity
from hailstorm.algebra.monoid import AnyMonoid
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.schema import Schema
from hailstorm.topology.sql_text import with_tables
from hailstorm.topology.stateless import Sql
from hailstorm.topology.step import Step
from hailstorm.topology.times import folds_times

if TYPE_CHECKING:
    from hailstorm.topology.topology import Topology

# What steps could not say before: one that does not say it is the step that it was.
_ADDED_LATER = {"ttl_us", "per", "event_time"}
_LONGEST_PART = 160  # characters of a part that a commit holds as they are


def fingerprint(topology: Topology, formerly: Mapping[str, str] | None = None) -> dict[str, str]:
    """The fingerprint of every step, by name. `formerly` says what steps were called: then it is the one that they
    would have had under these names."""
    return {step.name: _hash(_identity(topology, step, formerly or {})) for step in topology.steps}


def _called(step: Step, formerly: Mapping[str, str]) -> Step:
    """The step with the former names of its inputs."""
    if not formerly:
        return step
    step = replace(step, inputs=tuple(called_then(one, formerly) for one in step.inputs))
    return replace(step, query=with_tables(step.query, formerly)) if isinstance(step, Sql) else step


def called_then(name: str, formerly: Mapping[str, str]) -> str:
    """The name that a step, or an output of one, had."""
    owner, dot, output = name.partition(".")
    return f"{formerly.get(owner, owner)}{dot}{output}"


def _identity(topology: Topology, step: Step, formerly: Mapping[str, str]) -> dict[str, Any]:
    # A fold that must know the times of its rows keeps another state than one that need not.
    times = {"times": True} if folds_times(topology, step) else {}
    return {**step_identity(_called(step, formerly), topology.folder), **times}


def step_identity(step: Step, folder: Path) -> dict[str, Any]:
    """What a step is, as JSON: the hash of this is its fingerprint.

    Paths below `folder`, the app file's, count from there: a project may be moved, and the engine may have resolved
    its paths already.
    """
    values = {field.name: getattr(step, field.name) for field in fields(step) if field.name not in step.not_identity}
    values = {name: value for name, value in values.items() if name not in _ADDED_LATER or value}
    if step.outside:
        described = values[step.outside].describe()
        values[step.outside] = {key: _from_folder(value, folder) for key, value in described.items()}
    return {"kind": step.kind, **{name: _plain(value) for name, value in values.items()}}


def declared_parts(topology: Topology) -> dict[str, dict[str, str]]:
    """Every step with its parts as people read them, so that one can say which has changed. Long ones are a hash."""
    return {
        step.name: {part: _text(value) for part, value in _identity(topology, step, {}).items() if part != "schema"}
        for step in topology.steps
    }


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_PART else f"code {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _hash(identity: dict[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _from_folder(value: Any, folder: Path) -> Any:
    if isinstance(value, (str, Path)) and Path(value).is_relative_to(folder):
        return str(Path(value).relative_to(folder))
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, AnyMonoid):
        return _plain(value.describe())
    if isinstance(value, Schema):
        # Types that Spark fills in later are not known now, so they are no part of it.
        return [[column.name, column.type, column.nullable] for column in value]
    if isinstance(value, Grouping):
        return str(value)
    if isinstance(value, Mapping):
        # In order: the columns of a select and of a fold come out in the order in which they were written.
        return [[str(name), _plain(inner)] for name, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if callable(value):
        return function_identity(value)
    return repr(value)
