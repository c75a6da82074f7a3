"""Reading one key is quick: nothing is imported that costs more than the reading, and little is read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hailstorm.ledger import arrays
from hailstorm.ledger.commit import StateChange, StepShape
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.runs import write_run

KEYS = 300_000
SCRIPT = """
import sys
from hailstorm.cli import main
sys.argv = ["hailstorm", "state", sys.argv[1], "counts", "--key", sys.argv[2], "--json"]
try:
    main()
finally:
    heavy = "pandas pyspark sqlglot duckdb pydantic rich.console pyarrow.compute numpy.ma concurrent.futures".split()
    heavy = [name for name in heavy if name in sys.modules]
    print({"heavy": heavy}, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: all keys, and a newer one with a few of them."""
    made = Ledger(tmp_path_factory.mktemp("key") / "ledger", create=True)
    shape = StepShape(kind="fold", key=("a", "b"), values=("n",), fingerprint="f")
    made.commit(next_commit(made.head, "evolve", 1, datetime.now(UTC), steps={"counts": shape}))
    for numbers, n in ((np.arange(KEYS), 1), (np.arange(0, KEYS, 1_000), 2)):
        a, b = pa.array(numbers), pa.array(numbers % 7).cast(pa.string())
        hashes = hash_columns([a, b], len(numbers))
        table = pa.table(
            {"_hash": hashes, "a": a, "b": b, "n": np.full(len(a), n), "_deleted": np.zeros(len(a), np.bool_)}
        )
        run = write_run(made.store, "counts", table.take(pa.array(np.argsort(hashes))), made.stamp)
        made.commit(next_commit(made.head, "tick", 1, datetime.now(UTC), state={"counts": StateChange(added=(run,))}))
    return made.root


@pytest.mark.slow
@pytest.mark.parametrize(("key", "n"), [(5_000, 2), (5_001, 1)])
def test_a_key_is_found_without_pandas_spark_or_a_parser(ledger: Path, key: int, n: int) -> None:
    code = SCRIPT.replace("sys.argv[2]", f'"a={key}", "--key", "b={key % 7}"')
    done = subprocess.run([sys.executable, "-c", code, str(ledger)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"a": key, "b": str(key % 7), "n": n}
    assert "{'heavy': []}" in done.stderr


@pytest.mark.slow
def test_with_copies_in_the_cache_no_parquet_is_read(ledger: Path) -> None:
    opened = Ledger(ledger)
    opened.cache.clear_after_reboot()
    for run in opened.head.runs["counts"]:
        opened.cache.open("counts", run)
    code = SCRIPT.replace("sys.argv[2]", '"a=5000", "--key", "b=2"').replace("pandas pyspark", "pandas pyarrow.parquet")
    done = subprocess.run([sys.executable, "-c", code, str(ledger)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"a": 5000, "b": "2", "n": 2}
    assert "{'heavy': []}" in done.stderr
    shutil.rmtree(opened.cache.folder)


@pytest.mark.parametrize("values", [["rain", "", "Grüße", "雨"], [], [""]])
def test_texts_are_what_pyarrow_makes_of_them(values: list[str]) -> None:
    made = arrays.texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("kind", [np.int64, np.int16, np.uint64, np.float64])
def test_numbers_are_what_pyarrow_makes_of_them(kind: type) -> None:
    for values in (np.arange(10, dtype=kind), np.arange(10, dtype=kind)[::-2], np.zeros(0, kind)):
        made = arrays.numbers(values)
        made.validate(full=True)
        assert made.equals(pa.array(values))


def test_flags_are_seen_through_slices() -> None:
    column = pa.array([True, False, True, True] * 5)
    assert arrays.flags(column.slice(3, 14)).tolist() == column.slice(3, 14).to_pylist()
    assert arrays.flags(pa.array([], pa.bool_())).tolist() == []


def test_integers_are_seen_through_slices() -> None:
    column = pa.array(range(10), pa.int64())
    assert arrays.integers(column.slice(3, 4)).tolist() == [3, 4, 5, 6]
    assert arrays.integers(column.slice(0, 0)).tolist() == arrays.integers(pa.array([], pa.int64())).tolist() == []


def test_arrow_does_without_its_module_what_it_does_with_it() -> None:
    rows = pa.table({"k": ["a", "b", None, "d"], "n": [1, 2, 3, 4]})
    places = np.array([3, 0, 0])
    assert arrays.taken(rows, places).equals(rows.take(pa.array(places)))
    mask = pa.array([True, None, False, True])
    assert arrays.where(rows, mask).equals(rows.filter(mask))
    assert arrays.negated(mask).equals(pc.invert(mask))
    assert arrays.there(rows.column("k")).equals(pc.is_valid(rows.column("k")))
    assert arrays.equals(rows.column("k"), rows.column("k")).equals(pc.equal(rows.column("k"), rows.column("k")))
    known = pa.array(["a", "d"])
    assert arrays.among(rows.column("k"), known).equals(pc.is_in(rows.column("k"), known))
    assert arrays.cast(pa.array(["7"]), pa.int64()).to_pylist() == [7]
    with pytest.raises(pa.ArrowInvalid):
        arrays.cast(pa.array(["seven"]), pa.int64())


@pytest.mark.parametrize("values", [[], [3], [3, -1, 3, 2**63 - 1, -(2**63), -1]])
def test_distinct_is_what_numpy_calls_unique(values: list[int]) -> None:
    given = np.array(values, dtype=np.int64)
    assert arrays.distinct(given).tolist() == np.unique(given).tolist()
