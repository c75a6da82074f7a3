"""Compaction: several runs become fewer, in tiers.

Runs of one seq hold different keys and count as one *layer*. Every tick adds a small layer. When `FAN_IN` layers
that follow each other are of one size class, they are merged into one of the next class: so a row is rewritten
once per class, and a lookup meets a few layers per class. Large results are cut by hash into runs of bounded size,
so that merging needs bounded memory, however large the state is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from hailstorm.faults import fault
from hailstorm.ledger.cache import OpenRun, RunCache
from hailstorm.ledger.commit import Run, Stamp, StateChange
from hailstorm.ledger.runs import hashes_of, merge_runs, write_run
from hailstorm.ledger.stores.store import Store

FAN_IN = 8
LARGEST_RUN = 1_000_000  # rows


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
) -> StateChange | None:
    """Merge what is due, or everything. The change to commit; None when nothing is due or it was stopped half way.

    Of an agenda, entries until `past` have been handled, and are dropped.
    """
    layers, whole = (layers_of(runs), True) if everything else layers_to_merge(runs)
    if not layers or (everything and len(layers) == 1):
        return None
    merging = [run for layer in layers for run in layer.runs]
    seq = layers[-1].runs[0].seq
    opened = [cache.open(step, run) for layer in reversed(layers) for run in layer.runs]
    added = []
    for pieces in hash_ranges(opened):
        if stopped():
            return None
        rows = merge_runs(pieces, key, drop_deleted=whole)
        if past is not None:
            rows = rows.slice(int(np.searchsorted(hashes_of(rows), past, side="right")))
        if rows.num_rows:
            run = write_run(store, step, rows, stamp, seq)
            cache.put(step, run.id, rows)
            added.append(run)
    fault("during-compaction")
    return StateChange(added=tuple(added), removed=tuple(run.id for run in merging))


def hash_ranges(runs: Sequence[OpenRun]) -> Iterator[list[pa.Table]]:
    """The runs cut at the same hashes, so that each range has a bounded number of rows. Newest first in each."""
    total = sum(len(run.hashes) for run in runs)
    count = -(-total // LARGEST_RUN)
    # The longest run's quantiles: hashes are evenly spread, so any large sample of them will do.
    longest = max(runs, key=lambda run: len(run.hashes)).hashes
    cuts = np.unique(longest[[len(longest) * i // count for i in range(1, count)]]) if count > 1 else longest[:0]
    places = [[0, *np.searchsorted(run.hashes, cuts, side="left"), len(run.hashes)] for run in runs]
    for i in range(len(cuts) + 1):
        pieces = [run.table.slice(at[i], at[i + 1] - at[i]) for run, at in zip(runs, places, strict=True)]
        yield [piece for piece in pieces if piece.num_rows] or [runs[0].table.slice(0, 0)]
