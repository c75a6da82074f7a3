"""The settings of a topology: keywords of `Topology(...)`, overridden with `run --set name=value`.

Each field knows in one line what it means; `hailstorm check` prints those. Durations are kept in milliseconds,
in fields whose name ends in `_ms`; the setting itself has the name without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, get_args

from hailstorm.errors import Location
from hailstorm.topology import mistakes
from hailstorm.topology.durations import duration_text, read_duration
from hailstorm.topology.retention import DEFAULT, Retention, read_retention

OnOverload = Literal["queue", "drop", "sample"]
_WAYS = ("resident", "prepared", "planned")


@dataclass(frozen=True)
class Meaning:
    """What `check` prints of a setting, and how its value is read."""

    text: str
    takes: str
    read: Callable[[Any], Any]


def _duration(value: Any) -> int:
    duration = read_duration(value)
    if duration is None:
        raise ValueError
    return duration


def _latency(value: Any) -> int:
    return 0 if value == "lowest" else _duration(value)


def _duration_or_off(value: Any) -> int | None:
    return None if value == "off" else _duration(value)


def _whole_number(value: Any) -> int:
    number = int(str(value).replace("_", ""))
    if isinstance(value, float) or number < 1:
        raise ValueError
    return number


def _size(value: Any) -> int:
    """`64 MB`, or a number of bytes."""
    text = str(value).strip().upper()
    for power, unit in enumerate(("KB", "MB", "GB"), 1):
        if text.endswith(unit):
            return _whole_number(text.removesuffix(unit).strip()) * int(1000**power)
    return _whole_number(value)


def _share(value: Any) -> float:
    text = str(value).strip()
    number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 <= number <= 1:
        raise ValueError
    return number


def _on_overload(value: Any) -> str:
    if value not in get_args(OnOverload):
        raise ValueError
    return str(value)


def _ways(value: Any) -> str:
    chosen = [name.strip() for name in str(value).split(",")]
    if not chosen or not set(chosen) <= set(_WAYS):
        raise ValueError
    return ", ".join(name for name in _WAYS if name in chosen)


def _retention(value: Any) -> str:
    return str(read_retention(value))


def _setting(default: Any, text: str, takes: str, read: Callable[[Any], Any]) -> Any:
    return field(default=default, metadata={"meaning": Meaning(text, takes, read)})


_A_DURATION = 'a duration, such as "1 second"'
_A_NUMBER = "a whole number of at least 1"


class SettingKeywords(TypedDict, total=False):
    """The settings as keywords of `Topology(...)`, for type checkers: durations are text, such as "1 second"."""

    latency: str
    every: str
    max_tick_rows: int
    max_tick_bytes: int | str
    outbox_limit: int
    on_overload: OnOverload
    publish: str
    retention: str
    history_limit: int | str
    error_limit: float | str
    error_limit_rows: int
    search_jobs: int
    search_time: str
    ways: str
    resident_memory: int | str


@dataclass(frozen=True)
class Settings:
    latency_ms: int = _setting(
        1_000, "how long a tick should take; ticks are sized to it", f'{_A_DURATION}, or "lowest"', _latency
    )
    every_ms: int = _setting(0, "the least time from the start of one tick to the next", _A_DURATION, _duration)
    max_tick_rows: int = _setting(1_000_000, "the most records in one tick", _A_NUMBER, _whole_number)
    max_tick_bytes: int = _setting(
        256_000_000, "the most bytes of records in one tick, roughly", 'a size, such as "256 MB"', _size
    )
    outbox_limit: int = _setting(
        1_000, "how many commits may wait for a sink before input pauses", _A_NUMBER, _whole_number
    )
    on_overload: Literal["queue", "drop", "sample"] = _setting(
        "queue",
        "what becomes of records that wait when far more come than can be read",
        '"queue", "drop" or "sample"',
        _on_overload,
    )
    publish_ms: int | None = _setting(
        10_000,
        "how often state is published as Delta tables",
        'a duration, such as "10 seconds", or "off"',
        _duration_or_off,
    )
    retention: str = _setting(
        str(DEFAULT),
        "which commits are kept as they grow old",
        '"all", or tiers such as "10 minutes, 1 hour: 1 second, rest: 1 day"',
        _retention,
    )
    history_limit: int = _setting(
        10_000_000_000,
        "the most bytes that old commits may take, roughly; then fewer are kept",
        'a size, such as "10 GB"',
        _size,
    )
    error_limit: float = _setting(
        0.10, "the share of bad rows, of the last ones, at which a run or a sink stops", "0 to 1, or 10%", _share
    )
    error_limit_rows: int = _setting(
        100, "how many rows are the last ones; fewer stop nothing", _A_NUMBER, _whole_number
    )

    search_jobs: int = _setting(
        200, "how many Spark jobs may look for the records on which a tick fails", _A_NUMBER, _whole_number
    )
    search_time_ms: int = _setting(
        10_000, "how long they may look; what was looked through by then goes on", _A_DURATION, _duration
    )

    ways: str = _setting(
        ", ".join(_WAYS),
        "the ways in which a tick may be run; which one is measured",
        'one or more of "resident, prepared, planned"',
        _ways,
    )
    resident_memory: int = _setting(
        2_000_000_000,
        "the most memory of the resident worker, before another one takes its place",
        'a size, such as "2 GB"',
        _size,
    )

    @staticmethod
    def from_options(options: Mapping[str, Any], at: Location | None = None) -> Settings:
        return Settings().with_options(options, at)

    def with_options(self, options: Mapping[str, Any], at: Location | None = None) -> Settings:
        """These settings with some replaced, by their public names; text as well as numbers."""
        known = {setting_name(f.name): f for f in fields(self)}
        changes: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                raise mistakes.unknown_setting(name, known, at)
            meaning: Meaning = known[name].metadata["meaning"]
            try:
                changes[known[name].name] = meaning.read(value)
            except ValueError:
                raise mistakes.bad_setting(name, value, meaning.takes, at) from None
        return replace(self, **changes)

    @property
    def publish_every(self) -> float | None:
        """Seconds, or None for never."""
        return None if self.publish_ms is None else self.publish_ms / 1000

    @property
    def tiers(self) -> Retention:
        return read_retention(self.retention)

    def explain(self) -> list[tuple[str, str, str]]:
        """(name, value, meaning) of every setting, for `hailstorm check`."""
        rows = []
        for f in fields(self):
            value = getattr(self, f.name)
            shown = _shown(value, is_duration=f.name.endswith("_ms"))
            rows.append((setting_name(f.name), shown, f.metadata["meaning"].text))
        return rows


def _shown(value: Any, is_duration: bool) -> str:
    if value is None:
        return "off"
    if is_duration:
        return duration_text(value)
    return value if isinstance(value, str) else f"{value:,}"


def setting_name(field_name: str) -> str:
    return field_name.removesuffix("_ms")
