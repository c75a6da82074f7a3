"""Compaction: several runs become fewer, in tiers.

Runs of one seq hold different keys and count as one *layer*. Every tick adds a small layer. When `FAN_IN` layers
that follow each other are of one size class, they are merged into one of the next class: so a row is rewritten
once per class, and a lookup meets a few layers per class. Large results are cut by hash into runs of bounded size,
so that merging needs bounded memory, however large the state is. Where machines own ranges of hashes, results are cut
at the borders, too: a machine that needs a run of its range copies nothing of the others'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa

from hailstorm.columns import PANE
from hailstorm.faults import fault
from hailstorm.ledger.arrays import integers, taken
from hailstorm.ledger.cache import OpenRun, RunCache
from hailstorm.ledger.commit import Run, Stamp, StateChange
from hailstorm.ledger.runs import hashes_of, merge_runs, write_run
from hailstorm.ledger.stores.store import Store

FAN_IN = 8
LARGEST_RUN = 1_000_000  # rows
IN_TASKS = (
    2 * LARGEST_RUN
)  # from so many rows on, a merge is worth to be several tasks, where those have other machines


@dataclass(frozen=True)
class Layer:
    """The runs of one seq."""

    runs: tuple[Run, ...]

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    @property
    def size_class(self) -> int:
        return int(math.log(max(self.rows, 1), FAN_IN))


def layers_of(runs: Sequence[Run]) -> list[Layer]:
    """Oldest first."""
    return [Layer(tuple(group)) for _, group in groupby(sorted(runs, key=lambda r: r.seq), key=lambda r: r.seq)]


def layers_to_merge(runs: Sequence[Run]) -> tuple[list[Layer], bool]:
    """The layers that are due to be merged, oldest first, and whether the oldest of all is among them.

    The newest layers are looked at first: a stretch that ends in a tier, which is a first layer of some class and the
    older ones up to the next of a higher class. Smaller layers within a tier are taken along. A tier is full when it
    has FAN_IN layers of its class, or twice as many of any: else ticks of mixed sizes would pile up small layers
    between the large ones.
    """
    layers = layers_of(runs)
    stretch: list[Layer] = []
    tier: list[Layer] = []
    for layer in reversed(layers):
        if not tier or layer.size_class > tier[0].size_class:
            if _is_full(tier):
                break
            tier = []
        tier.append(layer)
        stretch.append(layer)
    if not _is_full(tier):
        return [], False
    return stretch[::-1], len(stretch) == len(layers)


def _is_full(tier: Sequence[Layer]) -> bool:
    return len(tier) >= 2 * FAN_IN or sum(layer.size_class == tier[0].size_class for layer in tier) >= FAN_IN


@dataclass(frozen=True)
class Merge:
    """Runs of one table of state that become fewer. `runs` are newest first, `seq` is that of the newest.

    `whole` says that no older run may hold one of their keys: then tombstones can go. Rows until `past` are over, and
    are dropped: of an agenda those of earlier times, of panes those of lower numbers. `borders` are the hashes at which
    another owner's range begins.
    """

    step: str
    key: tuple[str, ...]
    runs: tuple[Run, ...]
    seq: int
    stamp: Stamp
    whole: bool
    past: int | None = None
    borders: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def ranges(self) -> list[tuple[int, int]]:
        """Ranges of hashes, both ends included, that can be merged without each other: about as many rows in each.

        The runs of a large layer have different hashes, so a range meets few of them. No range has two owners.
        """
        first, last = min(run.first for run in self.runs), max(run.last for run in self.runs)
        count = -(-self.rows // LARGEST_RUN)
        longest = max(layers_of(self.runs), key=lambda layer: len(layer.runs))
        if 2 * len(longest.runs) < count:  # no layer is cut yet: hashes are spread evenly
            starts = [first + (last - first + 1) * number // count for number in range(count)]
        else:
            known, count = sorted(run.first for run in longest.runs), min(count, len(longest.runs))
            starts = [known[len(known) * number // count] for number in range(count)]
        cuts = sorted({first, *(start for start in (*starts, *self.borders) if first < start <= last)})
        return [(low, high - 1) for low, high in pairwise([*cuts, last + 1])]


def due(
    step: str,
    key: Sequence[str],
    runs: Sequence[Run],
    stamp: Stamp,
    everything: bool = False,
    past: int | None = None,
    borders: Sequence[int] = (),
) -> Merge | None:
    """What is due to be merged, or everything. None when there is nothing to do."""
    layers, whole = (layers_of(runs), True) if everything else layers_to_merge(runs)
    if not layers or (everything and len(layers) == 1):
        return None
    merging = tuple(run for layer in reversed(layers) for run in layer.runs)
    return Merge(step, tuple(key), merging, layers[-1].runs[0].seq, stamp, whole, past, tuple(borders))


def compact(
    store: Store,
    cache: RunCache,
    step: str,
    key: Sequence[str],
    runs: Sequence[Run],
    stamp: Stamp,
    stopped: Callable[[], bool] = lambda: False,
    everything: bool = False,
    past: int | None = None,
    elsewhere: Callable[[Merge], list[Run] | None] | None = None,
    borders: Sequence[int] = (),
) -> StateChange | None:
    """Merge what is due, or everything. The change to commit; None when nothing is due or it was stopped half way.

    What is large is merged `elsewhere`, where there is such a place (engine/ticks/merging.py); None says that it could
    not be. No new run has hashes on both sides of a border.
    """
    merge = due(step, key, runs, stamp, everything, past, borders)
    if merge is None:
        return None
    added = elsewhere(merge) if elsewhere is not None and merge.rows >= IN_TASKS else None
    if added is None:
        added = merged(store, cache, merge, stopped)
    fault("during-compaction")
    return None if added is None else StateChange(added=tuple(added), removed=tuple(run.id for run in merge.runs))


def merged(
    store: Store,
    cache: RunCache,
    merge: Merge,
    stopped: Callable[[], bool] = lambda: False,
    between: tuple[int, int] | None = None,
) -> list[Run] | None:
    """The new runs, of all hashes or of a range of them (both ends included). None when it was stopped half way."""
    if between is None:
        opened = [cache.open(merge.step, run, checked=True) for run in merge.runs]
    else:
        low, high = between
        touched = [run for run in merge.runs if run.first <= high and run.last >= low]
        opened = [_cut(cache.open(merge.step, run, checked=True), low, high) for run in touched]
    added = []
    for pieces in hash_ranges(opened, merge.borders) if opened else ():
        if stopped():
            return None
        rows = merge_runs(pieces, merge.key, drop_deleted=merge.whole)
        if merge.past is not None:
            rows = _after(rows, merge.key, merge.past)
        if rows.num_rows:
            run = write_run(store, merge.step, rows, merge.stamp, merge.seq)
            cache.put(merge.step, run.id, rows)
            added.append(run)
    return added


def _after(rows: pa.Table, key: Sequence[str], past: int) -> pa.Table:
    if PANE not in key:
        return rows.slice(int(np.searchsorted(hashes_of(rows), past, side="right")))
    panes = integers(rows.column(PANE).combine_chunks())
    return rows if panes.min(initial=past + 1) > past else taken(rows, np.flatnonzero(panes > past))


def _cut(run: OpenRun, low: int, high: int) -> OpenRun:
    start, end = np.searchsorted(run.hashes, low, side="left"), np.searchsorted(run.hashes, high, side="right")
    return OpenRun.of(run.table.slice(start, end - start))


def hash_ranges(runs: Sequence[OpenRun], borders: Sequence[int] = ()) -> Iterator[list[pa.Table]]:
    """The runs cut at the same hashes, so that each range has a bounded number of rows. Newest first in each.

    Also where they have no rows to speak of, they are cut at the borders.
    """
    total = sum(len(run.hashes) for run in runs)
    count = -(-total // LARGEST_RUN)
    # The longest run's quantiles: hashes are evenly spread, so any large sample of them will do.
    longest = max(runs, key=lambda run: len(run.hashes)).hashes
    even = longest[[len(longest) * i // count for i in range(1, count)]]
    cuts = np.unique(np.concatenate([even, np.array(borders, dtype=np.int64)]))
    places = [[0, *np.searchsorted(run.hashes, cuts, side="left"), len(run.hashes)] for run in runs]
    for i in range(len(cuts) + 1):
        pieces = [run.table.slice(at[i], at[i + 1] - at[i]) for run, at in zip(runs, places, strict=True)]
        yield [piece for piece in pieces if piece.num_rows] or [runs[0].table.slice(0, 0)]
