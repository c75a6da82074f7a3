"""What a look at an executor tells: each thing that is wrong, by name."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pytest

import hailstorm as hs
from hailstorm.engine.spark import executors as module
from hailstorm.engine.spark.executors import Look, Seen, _refused, await_executors, own_packages
from hailstorm.engine.spark.session import _own_address

WELL = Seen("far", "/place/1", "3.11.7", {"hailstorm": "1", "pyarrow": "26"}, 100.0, "", {})
WANTED = {"hailstorm": "1", "pyarrow": "26"}


def told(**changes: object) -> list[str]:
    return list(msgspec.structs.replace(WELL, **changes).wrong(WANTED, 99.0, 101.0))


def test_an_executor_like_the_driver_is_well() -> None:
    assert told() == []
    assert told(clock=97.5) == [], "two seconds apart are no matter"


def test_everything_that_is_wrong_is_named() -> None:
    assert told(packages={"hailstorm": "1"}) == ["it lacks the packages pyarrow 26"]
    assert told(packages={"hailstorm": "2", "pyarrow": "26"}) == ["it has hailstorm 2, and the driver has 1"]
    assert told(ledger="there is none") == ["it cannot read the ledger: there is none"]
    assert told(logs={"lines": "gone"}) == ["it cannot read the log of 'lines': gone"]
    assert told(clock=60.0) == ["its clock is 39 s behind the driver's"]
    assert told(clock=160.0) == ["its clock is 59 s ahead of the driver's"]


def test_a_look_finds_packages_ledger_and_logs(tmp_path: Path) -> None:
    class Broken(hs.Rate):
        def latest(self) -> dict[int, int]:
            raise KeyError("broker")

    logs = {
        "there": hs.Rate(1, limit=3),
        "not": hs.Log(tmp_path / "nothing"),
        "broken": Broken(1, limit=3),
    }
    seen = Look(str(tmp_path / "ledger"), logs).seen()
    assert seen.packages == own_packages() and seen.packages["pyspark"]
    assert seen.ledger == "there is none"
    assert sorted(seen.logs) == ["broken", "not"]
    assert seen.logs["broken"] == "KeyError: 'broker'"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("...\nModuleNotFoundError: No module named 'hailstorm'\n", "the executors lack the package 'hailstorm'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker", "the executors have another Python than the driver"),
        ('java.io.IOException: Cannot run program "/x"', "the executors do not have the driver's Python"),
        ("something else\nat x", "the executors cannot run Python: something else"),
    ],
)
def test_python_that_does_not_start_there_is_told_too(text: str, what: str) -> None:
    assert _refused(text).what.startswith(what)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_with_dynamic_allocation_executors_come_when_tasks_wait_for_them(
    is_dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = MagicMock()
    spark.sparkContext.defaultParallelism = 2
    spark.sparkContext.getConf().get = lambda name, otherwise: str(is_dynamic).lower()
    submit = spark.range.return_value._jdf.queryExecution.return_value.toRdd.return_value.toJavaRDD().countAsync
    monkeypatch.setattr(module, "executors", lambda spark: 2 if submit.called or not is_dynamic else 0)
    monkeypatch.setattr(module, "SECONDS_TO_COME", 5.0)
    monkeypatch.setattr(module, "_SETTLED_SECONDS", 0.1)
    assert await_executors(spark) == 2
    assert submit.called == submit.return_value.cancel.called == is_dynamic


def test_executors_dial_the_address_by_which_the_master_is_reached() -> None:
    assert _own_address("local[*]") == "127.0.0.1"
    assert _own_address("spark://127.0.0.1:7077") == "127.0.0.1"
    assert _own_address("k8s://https://127.0.0.1:6443") == _own_address("k8s://127.0.0.1") == "127.0.0.1"
    assert _own_address("spark://no.such.host.invalid:7077,127.0.0.1:7077") == "127.0.0.1"
