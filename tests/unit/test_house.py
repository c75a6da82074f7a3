"""The house: imports go one way, building needs no Spark, and the public names are these."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

import hailstorm as hs
from hailstorm import columns
from hailstorm.topology import ends, stateful, stateless, two_sided
from hailstorm.topology.settings import SettingKeywords, Settings
from hailstorm.topology.step import Step

PACKAGE = Path(hs.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom: a part sees itself and every part in an earlier row. It is the order of the design, with one
# refinement: sinks see logs because Kafka is both, and the test driver can rewind.
ROWS = [
    {"errors", "columns", "faults", "halving"},
    {"types"},
    {"clock", "algebra", "environment"},
    {"topology"},
    {"ledger"},
    {"spouts"},
    {"sinks"},
    {"engine"},
    {"history"},
    {"testing"},
    {"cli", "dashboard"},
    {"__main__"},
]
# The only calls upwards, each when a user asks for it: `storm.run()`, `storm.rewind()` and others do what commands do.
# And what a source, a sink and the answers of these look like, for type checkers only.
UPWARDS = {
    ("topology/operations.py", "hailstorm.cli.run"),
    ("topology/operations.py", "hailstorm.engine.progress.Progress"),
    ("topology/operations.py", "hailstorm.engine.progress.Retried"),
    ("topology/operations.py", "hailstorm.engine.run"),
    ("topology/operations.py", "hailstorm.history.audit.AuditedSteps"),
    ("topology/operations.py", "hailstorm.history.backfill"),
    ("topology/operations.py", "hailstorm.history.looking_back"),
    ("topology/operations.py", "hailstorm.history.looking_back.Looked"),
    ("topology/operations.py", "hailstorm.history.planning"),
    ("topology/operations.py", "hailstorm.history.planning.Planned"),
    ("topology/operations.py", "hailstorm.history.replay.Replayed"),
    ("topology/operations.py", "hailstorm.history.rewind"),
    ("topology/operations.py", "hailstorm.history.rewind_steps"),
    ("topology/operations.py", "hailstorm.history.one_record.Record"),
    ("topology/operations.py", "hailstorm.history.trace.Trace"),
    ("topology/operations.py", "hailstorm.history.rewind.Rewinding"),
    ("topology/operations.py", "hailstorm.engine.progress.Summary"),
    ("topology/topology.py", "hailstorm.spouts.source.Source"),
    ("topology/topology.py", "hailstorm.sinks.sink.Sink"),
    ("topology/stream.py", "hailstorm.sinks.sink.Sink"),
    ("topology/ends.py", "hailstorm.spouts.source.Source"),
    ("topology/ends.py", "hailstorm.sinks.sink.Sink"),
}
# What a user builds with, and what the tasks of small tools import: no JVM for these.
WITHOUT_SPARK = {
    "errors",
    "columns",
    "faults",
    "halving",
    "types",
    "clock",
    "algebra",
    "topology",
    "spouts",
    "sinks",
    "ledger",
}

PUBLIC = {
    "topology": "Topology Stream Table Row Process",
    "groupings": "shuffle fields everyone one",
    "monoids": "Monoid count sum mean variance stddev min max latest earliest count_distinct quantiles frequent top set"
    " map_sum any all histogram bitmap",
    "logs": "Log Rate Files Kafka",
    "formats": "Avro Protobuf",
    "sinks": "Console Parquet Postgres Sqlite DuckDB Call Delta Redis Webhook",
    "reading": "open_ledger import_snapshot",
    "errors": "HailstormError",
}


def part_of(module: Path) -> str:
    """`hailstorm/topology/step.py` -> `topology`."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache  # hundreds of tests ask for the same modules
def nodes_of(module: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(module.read_text())))


@cache
def imports_of(module: Path) -> tuple[str, ...]:
    """What a module names in imports, anywhere in it, and in import_module calls."""
    return tuple(_imports_of(module))


def _imports_of(module: Path) -> Iterator[str]:
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def row_of(part: str) -> int:
    return next(number for number, parts in enumerate(ROWS) if part in parts)


@pytest.mark.parametrize(
    "module",
    [m for m in MODULES if part_of(m) not in ("__init__", "examples")],
    ids=lambda m: str(m.relative_to(PACKAGE)),
)
def test_imports_go_one_way(module: Path) -> None:
    here = part_of(module)
    for name in imports_of(module):
        if not name.startswith("hailstorm.") or (str(module.relative_to(PACKAGE)), name) in UPWARDS:
            continue
        there = name.split(".")[1]
        if there in PUBLIC_NAMES:  # `from hailstorm import Topology`: for users and examples, not for us
            raise AssertionError(f"{module} imports {name} through the front door")
        allowed = there == here or row_of(there) < row_of(here) or (there == "examples" and here == "cli")
        assert allowed, f"{here} may not import {name}"


PUBLIC_NAMES = {name for names in PUBLIC.values() for name in names.split()}


@pytest.mark.parametrize(
    "module", [m for m in MODULES if part_of(m) in WITHOUT_SPARK], ids=lambda m: str(m.relative_to(PACKAGE))
)
def test_only_the_engine_and_what_is_above_it_know_spark(module: Path) -> None:
    tree = nodes_of(module)[0]
    assert isinstance(tree, ast.Module)
    # Inside a function it is the caller's choice (`.spark()` of the reader); at the top it would be everyone's.
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
    assert not [name for name in named if name.split(".")[0] == "pyspark"]


def test_nothing_but_stores_and_the_cache_knows_paths_of_ledger_files() -> None:
    # The cache is a local folder, and a ledger is opened by a path.
    allowed = {"cache.py", "copies.py", "ledger.py", "reader.py"}
    ledger = [m for m in MODULES if part_of(m) == "ledger" and "stores" not in m.parts and m.name not in allowed]
    assert not [module for module in ledger if "pathlib.Path" in imports_of(module)]


HIDDEN_NAMES = {
    name for name in vars(columns).values() if isinstance(name, str) and re.fullmatch(r"_[a-z][a-z_]*", name)
}


@pytest.mark.parametrize(
    "module", [m for m in MODULES if part_of(m) != "columns"], ids=lambda m: str(m.relative_to(PACKAGE))
)
def test_hidden_names_of_columns_are_in_one_place(module: Path) -> None:
    """Elsewhere the names of columns.py are used, in SQL texts too: a name that is written twice is changed once."""
    texts = [node.value for node in nodes_of(module) if isinstance(node, ast.Constant)]
    assert not HIDDEN_NAMES.intersection(text for text in texts if isinstance(text, str))


KINDS = {
    kind.__qualname__: kind.__module__
    for module in (ends, stateless, stateful, two_sided)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Step) and kind is not Step
}
# Who declares kinds and who compiles them; and who reads what only one kind has: the functions and monoids of a user's
# (check, audit), and what the rows of a join were made of.
KNOW_KINDS = {"topology/", "engine/plan/", "cli/check.py", "history/audit.py", "history/made_of.py"}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_nobody_asks_what_kind_a_step_is(module: Path) -> None:
    """A step says itself what others must know of its kind: so a new one is added to no list."""
    if str(module.relative_to(PACKAGE)).startswith(tuple(KNOW_KINDS)):
        return
    asked = [
        named.id
        for node in nodes_of(module)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        for named in ast.walk(node.args[1])
        if isinstance(named, ast.Name) and f"{KINDS.get(named.id)}.{named.id}" in imports_of(module)
    ]
    assert not asked


@pytest.mark.parametrize("kind", ["Distinct", "Ordered"])
def test_a_kind_of_step_is_known_in_few_places(kind: str) -> None:
    """CONTRIBUTING says where a new kind of stateful step goes: nobody else has a list of kinds."""
    named = {module for module in MODULES if f"{KINDS[kind]}.{kind}" in imports_of(module)}
    places = {str(module.relative_to(PACKAGE)) for module in named}
    assert places == {"topology/stream.py", "engine/plan/compiler.py"}


def test_the_public_names_are_exactly_these() -> None:
    assert set(hs.__all__) == PUBLIC_NAMES
    assert len(hs.__all__) == len(PUBLIC_NAMES)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(hs, name) is not None
    assert name in dir(hs)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="hailstorm has no 'Kafkaesque'"):
        hs.Kafkaesque  # noqa: B018


def test_importing_hailstorm_imports_nothing_heavy() -> None:
    code = "import sys, hailstorm; assert not {'pyspark', 'pyarrow', 'numpy', 'sqlglot', 'duckdb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_keywords_of_a_topology_are_its_settings() -> None:
    assert set(get_type_hints(SettingKeywords)) == {name for name, _, _ in Settings().explain()}


def test_importing_a_test_changes_no_other_module() -> None:
    """Such a change stays for all tests that come later in the same process, and fails them now and then."""
    tests = Path(__file__).parents[1]
    for module in sorted(tests.rglob("*.py")):
        for node in ast.parse(module.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            changed = [one for target in targets for one in ast.walk(target) if isinstance(one, ast.Attribute)]
            assert not changed, (
                f"{module.relative_to(tests)}:{node.lineno} belongs in a fixture, or under `if __name__`"
            )
