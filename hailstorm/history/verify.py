"""Verify: every file that a kept commit names is there and is what was written.

Reads the whole ledger: commits and packs one after another (each has its checksum, and must follow from the one before
it), then every file of state, outboxes and dead letters, byte by byte, and this machine's copies of runs, which ticks
believe. Nothing is changed. What is made from the rest (`delta/`, `moments/`), and what is only a courtesy
(`lease.json`, `pins/`), is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from hailstorm.errors import LedgerError
from hailstorm.history.erasures import unfinished_erasures
from hailstorm.ledger.commit import Commit, Run, commit_name, decode
from hailstorm.ledger.ledger import ERASED, Description, Ledger
from hailstorm.ledger.letters import REJECTED
from hailstorm.ledger.live import Live
from hailstorm.ledger.packs import OpenPack, Pack, list_commits, ticks_name
from hailstorm.ledger.pins import read_snapshot, snapshot_file, snapshot_names
from hailstorm.ledger.record import HISTORY
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import read_table
from hailstorm.ledger.sums import Sums, is_sealed, is_whole
from hailstorm.ledger.vacuum import passed_by_sinks
from hailstorm.topology.picture import html_table

_Found = TypeVar("_Found")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)

LEDGER = "hailstorm.json"


@dataclass(frozen=True)
class Problem:
    """A file that is not what it should be, and which moments it spoils."""

    file: str
    what: str
    affects: str
    is_copy: bool = False  # in the cache: it can be deleted


@dataclass
class Verified:
    """What was looked at, and what is wrong."""

    commits: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def _repr_html_(self) -> str:
        found = f"{len(self.problems)} problems in" if self.problems else "all is well:"
        rows = [(one.file, one.what, one.affects) for one in self.problems]
        caption = f"{found} {self.commits:,} commits, {self.files:,} files, {self.bytes:,} bytes"
        return html_table(("file", "what", "affects"), rows, caption)


@dataclass(frozen=True)
class _Named:
    """A file as commits name it."""

    step: str
    bytes: int
    sums: Sums | None
    first: int  # the kept commits that need it; `last` 0: up to the newest
    last: int = 0

    @property
    def affects(self) -> str:
        until = f"to {self.last}" if self.last else "on"
        return f"{self.step} from commit {self.first} {until}"


def verify(ledger: Ledger, tell: Callable[[int, int], None] = lambda done, of: None) -> Verified:
    """Look at everything. `tell` is told how many files are done, of how many."""
    found = Verified()
    sealed = _is_sealed(ledger, found)
    named = _commits(ledger, found, sealed)
    _small_files(ledger, found, sealed)
    for name, erasure in _tried(found, ERASED, "erasures", partial(unfinished_erasures, ledger.store)) or ():
        what = f"an erasure from step '{erasure.step}' was not finished: do it again"
        found.problems.append(Problem(name, what, f"the key is still in some files of {erasure.step}"))
    for done, (name, file) in enumerate(named.items(), 1):
        found.files += 1
        found.bytes += file.bytes
        if what := _wrong_with(ledger, name, file):
            found.problems.append(Problem(name, what, file.affects))
        tell(done, len(named))
    _copies(ledger, found)
    return found


def _copies(ledger: Ledger, found: Verified) -> None:
    """The cache: it can be deleted, but not believed, when it is damaged."""
    for path, what in ledger.cache.damaged():
        name = str(path.relative_to(ledger.cache.folder.parent))
        affects = f"{path.parent.name}, where ticks have looked rows up in this copy"
        found.problems.append(Problem(name, what, affects, is_copy=True))


def _commits(ledger: Ledger, found: Verified, sealed: bool) -> dict[str, _Named]:
    """Read all commits in order, and give the files that they name."""
    listing = list_commits(ledger.store)
    sums = _tried(found, HISTORY, "which commits are packed", ledger.history)
    known = sums.sums if sums else {}
    _demand_seal(ledger, found, HISTORY, "which commits are packed", sealed)
    for name in [*(pack.name for pack in listing.packs), *(ticks_name(*one) for one in listing.ticks)]:
        found.files += 1
        what = _wrong_with(ledger, name, _Named("commits", 0, known.get(name), 0))
        if what:
            found.problems.append(Problem(name, what, "the commits in it"))
    named: dict[str, _Named] = {}
    live = Live()
    for pack in listing.packs:
        read = _tried(found, pack.name, f"commits {pack.first} to {pack.last}", partial(_read_pack, ledger, pack))
        if read is None:
            return named
        base, commits = read
        if live.commit and base != live:
            what = "it does not go on where the one before it ends"
            found.problems.append(Problem(pack.name, what, "all later commits"))
            return named
        if not live.commit:
            _name(named, base, commits[0])
        live = base
        for commit in commits:
            live = _after(ledger, live, commit, named, found)
    for number in listing.loose:
        name = commit_name(number)
        one = _tried(found, name, f"commit {number} and all later ones", partial(ledger.read_commit, number))
        if one is None:
            return named
        _demand_seal(ledger, found, name, f"commit {number}", sealed)
        if one.covers_from != live.commit + 1:
            found.problems.append(Problem(name, f"it does not follow commit {live.commit}", "all later commits"))
            return named
        live = _after(ledger, live, one, named, found)
    return named


def _read_pack(ledger: Ledger, pack: Pack) -> tuple[Live, list[Commit]]:
    opened = OpenPack(ledger.store, pack)
    return opened.base(), list(opened.commits())


def _after(ledger: Ledger, live: Live, commit: Commit, named: dict[str, _Named], found: Verified) -> Live:
    found.commits += 1
    number = commit.commit
    for step, change in commit.state.items():
        for id_ in change.removed:
            name = run_name(step, id_)
            if name in named and named[name].first < number:
                before = named[name]
                named[name] = _Named(before.step, before.bytes, before.sums, before.first, number - 1)
            else:
                named.pop(name, None)
        for run in change.added:
            named[run_name(step, run.id)] = _of_run(step, run, number)
    for file in commit.dead_letters:
        named[file.path] = _Named("dead letters", file.bytes, file.sums, number)
    passed = passed_by_sinks(ledger)
    for sink, files in commit.outbox.items():
        if passed.get(sink, 0) < number:
            named |= {file.path: _Named(f"outbox of {sink}", file.bytes, file.sums, number, number) for file in files}
    return live.after(commit)


def _name(named: dict[str, _Named], live: Live, first: Commit) -> None:
    """What was live before the first commit that is kept, and still is at that one: later ones build on it. What that
    commit removes is needed by no moment, and an export has not got it."""
    number = first.commit
    for step, runs in live.runs.items():
        named |= {run_name(step, run.id): _of_run(step, run, number) for run in runs}
    letters = (file for file in live.dead_letters if file.path not in first.retried)
    named |= {file.path: _Named("dead letters", file.bytes, file.sums, number) for file in letters}


def _of_run(step: str, run: Run, number: int) -> _Named:
    return _Named(step, run.bytes, run.sums, number)


def _small_files(ledger: Ledger, found: Verified, sealed: bool) -> None:
    store = ledger.store
    for name in (f"manifests/{one}" for one in store.list("manifests")):
        affects = "starting, and moments after it"
        _tried(found, name, affects, partial(_decoded, ledger, name, Live))
        _demand_seal(ledger, found, name, affects, sealed)
    for name in snapshot_names(store):
        snapshot = _tried(found, snapshot_file(name), f"snapshot {name}", partial(read_snapshot, store, name))
        _demand_seal(ledger, found, snapshot_file(name), f"snapshot {name}", sealed)
        if snapshot is not None:
            _tried(found, snapshot_file(name), f"snapshot {name}", partial(ledger.at, snapshot.commit))
    for sink in store.list("cursors"):
        _tried(found, f"cursors/{sink}", f"sink {sink}", partial(ledger.cursors.load, sink))
        for name in store.list(f"cursors/{sink}"):
            _demand_seal(ledger, found, f"cursors/{sink}/{name}", f"sink {sink}", sealed)
    for sink in store.list(REJECTED):
        for name in (f"{REJECTED}/{sink}/{one}" for one in store.list(f"{REJECTED}/{sink}")):
            _tried(found, name, f"dead letters of {sink}", partial(read_table, store, name))


def _is_sealed(ledger: Ledger, found: Verified) -> bool:
    """Whether every commit of this ledger has a checksum: it was made by a Hailstorm that writes them."""
    about = _tried(found, LEDGER, "everything", partial(_decoded, ledger, LEDGER, Description))
    sealed = about is not None and about.sealed
    _demand_seal(ledger, found, LEDGER, "everything", sealed)
    return sealed


def _demand_seal(ledger: Ledger, found: Verified, name: str, affects: str, sealed: bool) -> None:
    """A checksum that has lost its name is damage, too, in a ledger in which every such file has one."""
    data = ledger.store.get(name) if sealed else None
    if data is not None and not is_sealed(data):
        found.problems.append(Problem(name, "it has no checksum", affects))


def _decoded(ledger: Ledger, name: str, kind: type[_Struct]) -> _Struct:
    return decode(ledger.store.get(name) or b"", kind, name)


def _tried(found: Verified, name: str, affects: str, read: Callable[[], _Found]) -> _Found | None:
    found.files += 1
    try:
        return read()
    except LedgerError as error:
        problem = Problem(name, error.what, affects)
    except Exception as error:  # whatever damage makes of JSON and of Parquet
        problem = Problem(name, f"{type(error).__name__}: {error}", affects)
    if problem not in found.problems:
        found.problems.append(problem)
    return None


def _wrong_with(ledger: Ledger, name: str, file: _Named) -> str:
    """What is wrong with a file; nothing when it is what was written."""
    try:
        if file.sums is None:
            read_table(ledger.store, name)  # of an older Hailstorm: that it can be read is all that can be said
            return ""
        with ledger.store.open(name) as source:
            data = source.read_buffer()
        whole = is_whole(data, file.sums)
    except FileNotFoundError:
        return "it is missing"
    except LedgerError as error:
        return "it is missing" if error.code == "HS-LED-031" else error.what
    return "" if whole else "its content does not have its checksum"
