"""Commands that read, about values that neither text nor Python has a plain form for: nested keys, maps, bytes, small
decimals, NaN, and times outside of the years 1 to 9999."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.history.opened import OpenLedger
from hailstorm.ledger.commit import Stamp, StateChange, StepShape
from hailstorm.ledger.hashing import can_hash, hash_columns
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.runs import write_run

TIME = pa.timestamp("us", "UTC")
FAR = 347_925_455_999_999_999  # microseconds since 1970: in the year 12995
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "places": (
        pa.struct([("x", pa.int32()), ("n", pa.string())]),
        [{"x": 1, "n": "a=b"}, {"x": 2, "n": None}],
    ),
    "numbers": (pa.float64(), [math.nan, 0.5]),
    "hours": (TIME, [datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)]),
}
VALUES = {
    "m": pa.array([[("a", 0.5), ("b", math.nan)], []], pa.map_(pa.string(), pa.float64())),
    "raw": pa.array([b"\x00\xff", b"hi"]),
    "d": pa.array([Decimal("0E-10"), Decimal("1E-10")], pa.decimal128(20, 10)),
    "far": pa.array([FAR, 0], pa.int64()).cast(TIME),
}
SHOWN: list[dict[str, Any]] = [
    {"m": {"a": 0.5, "b": "NaN"}, "raw": "AP8=", "d": "0.0000000000", "far": "+12995-04-26T23:59:59.999999Z"},
    {"m": {}, "raw": "aGk=", "d": "0.0000000001", "far": "1970-01-01T00:00:00Z"},
]


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Each step has two rows, of one commit, which a second one takes away."""
    root = tmp_path / "odd"
    ledger = Ledger(root, create=True)
    steps = {name: StepShape(kind="fold", key=("key",), values=tuple(VALUES)) for name in KEYS}
    for number, gone in ((1, False), (2, True)):
        state = {}
        for name, (type_, keys) in KEYS.items():
            rows = {
                "_bucket": pa.array([0, 0], pa.int16()),
                "_hash": pa.array(hash_columns([pa.array(keys, type_)], 2) if can_hash(type_) else [1, 2], pa.int64()),
                "key": pa.array(keys, type_),
                **VALUES,
                "_updated": pa.nulls(2, TIME),
                "_deleted": [gone, gone],
            }
            state[name] = StateChange(
                added=(write_run(ledger.store, name, pa.table(rows).sort_by("_hash"), Stamp(number, 1)),)
            )
        now = datetime(2026, 1, 31, tzinfo=UTC)
        ledger.commit(next_commit(ledger.head, "tick", 1, now, state=state, steps=steps if number == 1 else None))
    return str(root)


def _typed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def _lines(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _typed(*words, "--json").splitlines()]


def test_every_value_has_one_form_whatever_is_beside_it(ledger: str) -> None:
    assert _lines("state", ledger, "places", "--at", "1") == [
        {"key": {"x": 1, "n": "a=b"}, **SHOWN[0]},
        {"key": {"x": 2, "n": None}, **SHOWN[1]},
    ]


@pytest.mark.parametrize(
    ("step", "key", "place"),
    [
        ("places", 'key={"x": 1, "n": "a=b"}', 0),
        ("places", '{"x": 2, "n": null}', 1),
        ("numbers", "NaN", 0),
        ("hours", "2026-01-01T11:00:00", 1),
        ("hours", "2026-01-01T12:00:00+01:00", 1),
    ],
)
def test_a_key_is_typed_as_it_is_shown(ledger: str, step: str, key: str, place: int) -> None:
    rows = _lines("state", ledger, step, "--at", "1", "--key", key)
    assert [{name: row[name] for name in VALUES} for row in rows] == [SHOWN[place]]
    life = _lines("state", ledger, step, "--history", "--key", key)
    assert [(one["commit"], one["kind"]) for one in life] == [(1, "insert"), (2, "delete")]
    assert life[0]["after"]["m"] == life[1]["before"]["m"] == SHOWN[place]["m"]
    assert life[0]["before"] is life[1]["after"] is None


def test_a_nested_key_that_is_none_says_how_to_type_it(ledger: str) -> None:
    result = CliRunner().invoke(app, ["state", ledger, "places", "--key", "a"])
    assert "A nested key is JSON" in getattr(result.exception, "hint", "")


def test_a_life_has_the_types_of_the_state(ledger: str) -> None:
    opened = OpenLedger(Ledger(ledger))
    after = opened.life("numbers", key=0.5).arrow().schema.field("after").type
    assert {field.name: field.type for field in after} == {name: column.type for name, column in VALUES.items()}


def test_notebooks_show_times_that_python_has_no_value_for(ledger: str) -> None:
    opened = OpenLedger(Ledger(ledger))
    for rows in (opened.state("numbers", at=1), opened.diff("numbers", 1), opened.life("numbers", key=0.5)):
        assert "1970" in rows._repr_html_()
    assert "12995-04-26" in opened.state("numbers", at=1)._repr_html_()


def test_bytes_and_small_decimals_are_written_as_csv(ledger: str) -> None:
    lines = _typed("state", ledger, "numbers", "--at", "1", "--format", "csv").splitlines()
    assert lines[0] == '"key","m","raw","d","far"'
    assert any(',"AP8=","0.0000000000",' in line for line in lines)
