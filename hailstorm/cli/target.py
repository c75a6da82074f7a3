"""What a command is about: an app file (`app.py`, `app.py:storm`) or a ledger.

An app is imported by its path with its folder on `sys.path`, as Python itself would do with a script. Importing
runs the user's code, so every way in which it can fail becomes a UsageError that shows the user's own line.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from hailstorm.errors import HailstormError, Location, UsageError, WordError, suggestion

if TYPE_CHECKING:
    from hailstorm.topology.topology import Topology

LEDGER_FILE = "hailstorm.json"

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="An app file (app.py), or a ledger: a folder or s3://…")
]

LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", metavar="PATH", help="Where the state is; else .hailstorm/<name> beside the app."),
]


@dataclass(frozen=True)
class App:
    """A loaded app file."""

    path: Path
    module: ModuleType
    topology: Topology


def load_app(target: str) -> App:
    """Import an app file and find its topology. Raises UsageError, or what the topology itself finds wrong."""
    path, name = _split(target)
    module = _import(path)
    return App(path, module, _topology(module, path, name))


def is_app(target: str) -> bool:
    return "://" not in target and not Path(target).is_dir()


def find_ledger(target: str, told: str | None = None) -> str:
    """The address of the ledger that TARGET means; of an app, the one that --ledger has `told` us, if it has. Raises
    UsageError when there is none (yet)."""
    from hailstorm.engine.wishes import check_ledger

    check_ledger(target)
    check_ledger(told)
    if told is not None and not is_app(target):
        hint = "Name one of the two: the ledger alone, or the app with --ledger."
        raise WordError(119, f"'{target}' is a ledger itself, and --ledger says where that of an app is", hint=hint)
    if "://" in target:
        return target  # whether there is a ledger is asked when it is opened: every question takes its time
    if (Path(target) / LEDGER_FILE).exists():
        return target
    if not is_app(target):
        raise UsageError(
            5,
            f"'{target}' is a folder but not a ledger: it has no {LEDGER_FILE}",
            hint="Name an app file (app.py) or the folder of a ledger (.hailstorm/<topology>).",
        )
    if not Path(target).suffix and ":" not in target and not Path(target).exists():
        raise UsageError(
            1,
            f"there is nothing at '{target}'",
            hint="Name an app file (app.py) or the folder of a ledger (.hailstorm/<topology>).",
        )
    ledger = load_app(target).topology.ledger_address(told)
    if "://" not in ledger and not (Path(ledger) / LEDGER_FILE).exists():
        option = "" if told is None else f" --ledger {told}"
        raise UsageError(
            6,
            f"'{target}' has no ledger yet: nothing at {short_path(ledger)}",
            hint=f"Type: hailstorm run {target}{option}",
        )
    return ledger


def _is_beside(file: Path, folder: Path) -> bool:
    # A virtual environment or Hailstorm itself may lie in the app's folder; their lines are not the user's.
    return (
        file.is_relative_to(folder)
        and "site-packages" not in file.parts
        and not file.is_relative_to(Path(__file__).parents[1])
    )


def _split(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    if not (colon and name.isidentifier()):
        file, name = target, ""
    path = Path(file)
    if path.is_dir():
        raise UsageError(1, f"'{target}' is a folder, not an app file", hint=f"Type: {path / 'app.py'}")
    if not path.exists():
        near = suggestion(path.name, (p.name for p in path.parent.glob("*.py"))) if path.parent.is_dir() else ""
        raise UsageError(1, f"there is no app file '{file}'", hint=near or "To make one: hailstorm new NAME")
    return path.resolve(), name or None


def _import(path: Path) -> ModuleType:
    # Not the bare stem: an app that is called `types.py` must not replace Python's own module.
    name = f"hailstorm_app_{path.stem}"
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look the module up while it is being run
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except HailstormError:
        raise
    except SyntaxError as error:
        at = Location(error.filename or str(path), error.lineno or 0)
        raise UsageError(2, f"'{path.name}' is not valid Python: {error.msg}", at=at) from error
    except (Exception, SystemExit) as error:
        raise UsageError(
            3,
            f"'{path.name}' failed while it was imported: {type(error).__name__}: {error}",
            at=_last_line_of(path.parent, error),
            hint="HAILSTORM_DEBUG=1 shows the traceback.",
        ) from error
    return module


def _last_line_of(folder: Path, error: BaseException) -> Location | None:
    """The innermost line of the user's own code that the error went through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if _is_beside(Path(f.filename), folder)]
    return Location(own[-1].filename, own[-1].lineno or 0) if own else None


def _topology(module: ModuleType, path: Path, name: str | None) -> Topology:
    from hailstorm.topology.topology import Topology

    found = {key: value for key, value in vars(module).items() if isinstance(value, Topology)}
    if name is not None:
        if name not in found:
            hint = suggestion(name, found) or _choices(path, found)
            raise UsageError(4, f"'{path.name}' has no topology '{name}'", hint=hint)
        return found[name]
    if not found:
        hint = 'An app has one at its top level: storm = hs.Topology("name")'
        raise UsageError(4, f"'{path.name}' has no topology", hint=hint)
    if len({id(topology) for topology in found.values()}) > 1:
        raise UsageError(4, f"'{path.name}' has several topologies", hint=_choices(path, found))
    return next(iter(found.values()))


def _choices(path: Path, found: dict[str, Topology]) -> str:
    if not found:
        return 'An app has one at its top level: storm = hs.Topology("name")'
    return "Name one: " + ", ".join(f"{path.name}:{name}" for name in found)


def short_path(path: str | Path) -> str:
    """Relative to where the user is, when that is shorter."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
