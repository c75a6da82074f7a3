"""A process that does nothing but commit and clean up, to be killed while it does: `vacuum_process.py LEDGER TICKS`.

The ledger, compaction and vacuum are the real ones; there is no Spark. Tick number t gives key t % KEYS the value t, a
row to each sink, and, now and then, a dead letter. Half a minute passes between two ticks, by a clock of its own.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from hailstorm.ledger import compaction, vacuum
from hailstorm.ledger.commit import StateChange, StepShape
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.runs import write_rows, write_run
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import read_retention

STEP, SPOUT, SINKS, KEYS = "values", "ticks", ("slow", "slower"), 7
SHAPE = StepShape(kind="fold", key=("k",), values=("t",), fingerprint="f", tables={STEP: ("k",)})
RETENTION = read_retention("1 minute, 10 minutes: 2 minutes, rest: 1 hour")
LETTER_EVERY = 10
_SECONDS = 30.0


def main(root: Path, ticks: int) -> None:
    ledger = Ledger(root, create=True)
    work = Vacuum(ledger, RETENTION, now=lambda: _now(ledger))
    if not ledger.head.commit:
        ledger.commit(next_commit(ledger.head, "evolve", ledger.epoch, datetime.now(UTC), steps={STEP: SHAPE}))
    for _ in range(ticks):
        _tick(ledger)
        _compact(ledger)
        while work.work():
            pass
    while work.work(whole=True):
        pass


def _tick(ledger: Ledger) -> None:
    number = ledger.head.clock.get(SPOUT, {}).get("0", 0) + 1
    rows = pa.table({"_hash": pa.array([number % KEYS]), "k": [number % KEYS], "t": [number], "_deleted": [False]})
    run = write_run(ledger.store, STEP, rows, ledger.stamp)
    row = pa.table({"t": [number]})
    letters = (write_rows(ledger.store, "errors", row, ledger.stamp),) if number % LETTER_EVERY == 0 else ()
    ledger.commit(
        next_commit(
            ledger.head,
            "tick",
            ledger.epoch,
            datetime.fromtimestamp(_now(ledger) + _SECONDS, UTC),
            end={SPOUT: {"0": number}},
            state={STEP: StateChange(added=(run,))},
            outbox={sink: (write_rows(ledger.store, f"outbox/{sink}", row, ledger.stamp),) for sink in SINKS},
            dead_letters=letters,
            rows=1,
        )
    )


def _compact(ledger: Ledger) -> None:
    runs = ledger.head.runs[STEP]
    change = compaction.compact(ledger.store, ledger.cache, STEP, ("k",), runs, ledger.stamp)
    if change is not None:
        now = datetime.fromtimestamp(_now(ledger), UTC)
        ledger.commit(next_commit(ledger.head, "compact", ledger.epoch, now, state={STEP: change}))
        ledger.cache.remove_all_but({STEP: {run.id for run in ledger.head.runs[STEP]}})


def _now(ledger: Ledger) -> float:
    return datetime.fromisoformat(ledger.head.at).timestamp()


if __name__ == "__main__":
    compaction.FAN_IN = 3
    vacuum.KEEP_LOOSE, vacuum.PACK, vacuum.MERGE, vacuum.SWEEP_SECONDS = 4, 8, 3, 60.0
    main(Path(sys.argv[1]), int(sys.argv[2]))
