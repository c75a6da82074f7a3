"""What a run is asked to do, looked at before Spark starts: a wrong word costs a moment, not a start.

`run.py` calls this first. Each error says what is wrong with the word and, where one is near, what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hailstorm.clock.clock import Clock
from hailstorm.environment import concealed
from hailstorm.errors import TopologyError, WordError, suggestion
from hailstorm.ledger.stores import is_in_objects

if TYPE_CHECKING:  # who only looks at a ledger's address needs none of these
    from hailstorm.topology.settings import Settings
    from hailstorm.topology.step import Step
    from hailstorm.topology.topology import Topology

_ADDRESS = re.compile(r"\w+://")
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?")
_CLUSTER = re.compile(r"spark://[^/@\s]+:\d+(,[^/@\s]+:\d+)*|yarn|k8s://(https?://)?[^/@\s]+(:\d+)?/?")


def settings_of(topology: Topology, options: Mapping[str, str]) -> Settings:
    """The topology's settings with those of this run."""
    try:
        return topology.settings.with_options(options, at=None)
    except TopologyError as error:
        raise WordError(62, error.what, hint=error.hint) from error


def check_places(topology: Topology, ledger: str | Path | None, master: str | None, conf: Mapping[str, str]) -> None:
    """Where the run would be: on this machine, or on a cluster whose machines all reach the ledger."""
    address = ledger if ledger is not None else topology.ledger
    check_ledger(address)
    for name in conf:
        if not name.startswith("spark."):
            raise WordError(68, f"'{name}' is not a setting of Spark: those begin with spark.", hint=_set_hint(name))
    for url in (master, conf.get("spark.master")):
        if url is not None:
            check_master(url, address)


def check_master(url: str, ledger: str | Path | None) -> None:
    """A master that Hailstorm can run on, with a ledger that its machines reach."""
    if _LOCAL.fullmatch(url):
        return
    if not _CLUSTER.fullmatch(url):
        hint = "Say local[*], local[4] for four cores, or spark://host:7077, yarn or k8s://https://host for a cluster."
        raise WordError(65, f"'{url}' is not a Spark master", hint=hint)
    if ledger is None or not is_in_objects(ledger):
        raise WordError(
            64,
            f"the master '{url}' is a cluster, and the ledger is a folder of this machine",
            hint="Each machine would write its part of the state to its own disk, and it would be lost.\n"
            "Keep it where all of them reach it: --ledger s3://bucket/path",
        )


def check_ledger(address: str | Path | None) -> None:
    """A ledger is a folder, or in an object store. The same for those who read one."""
    if address is None or not _ADDRESS.match(str(address)) or is_in_objects(address):
        return
    shown = concealed(str(address))
    if "@" in str(address):
        raise WordError(
            63,
            f"the ledger's address '{shown}' has a name and a password in it",
            hint="Who you are comes from the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for example.",
        )
    raise WordError(
        63,
        f"'{shown}' is not the address of a ledger",
        hint="A ledger is a folder, or s3://bucket/path, gs://bucket/path, az://container/path.",
    )


def check_accepted(topology: Topology, accepted: Iterable[str]) -> None:
    names = [step.name for step in topology.steps]
    for name in accepted:
        if name not in names:
            raise WordError(
                66, f"there is no step '{name}' to accept", hint=_known("The steps are", names, suggestion(name, names))
            )


def step_called(topology: Topology, name: str) -> Step:
    """The step that a word of a command names."""
    names = [step.name for step in topology.steps]
    if name not in names:
        raise WordError(118, f"there is no step '{name}'", hint=_known("The steps are", names, suggestion(name, names)))
    return topology.step(name)


def target_of(topology: Topology, until: str | None) -> Clock | None:
    """The clock that `until` names; None when it is a word and no clock. Every number is one that can be reached."""

    if until is None or until in ("never", "caught-up"):
        return None
    form = 'Say caught-up, never, or a clock such as {"tweets": {"0": 1200}}'
    try:
        clock = Clock.from_json(msgspec.json.decode(until, type=dict[str, dict[str, int]]))
    except (msgspec.DecodeError, ValueError) as error:
        near = suggestion(until, ("caught-up", "never"))
        raise WordError(67, f"'{until}' does not say until when to run", hint=f"{form}. {near}".rstrip()) from error
    spouts = [spout.name for spout in topology.spouts]
    for spout in clock.offsets:
        if spout not in spouts:
            hint = _known("The spouts are", spouts, suggestion(spout, spouts))
            raise WordError(67, f"the clock to run until names '{spout}', which is not a spout", hint=hint)
    for spout, partition, offset in clock:
        if partition < 0 or offset < 0:
            raise WordError(
                67, f"the clock to run until has a negative number at {spout}/{partition}: {offset}", hint=form
            )
    return clock


def check_partitions(target: Clock, known: Clock) -> None:
    """`known` is where the logs end now: a partition that is not there would be waited for for ever."""
    for spout, partition, _ in target:
        partitions = known.offsets.get(spout, {})
        if partition not in partitions:
            there = ", ".join(map(str, sorted(partitions))) or "none"
            raise WordError(
                67,
                f"the clock to run until names partition {partition} of '{spout}', which it does not have",
                hint=f"Its partitions are: {there}",
            )


def _known(what: str, names: Iterable[str], near: str) -> str:
    return f"{what}: {', '.join(names)}. {near}".rstrip()


def _set_hint(name: str) -> str:
    return f"A setting of the topology is given with --set {name}=…"
