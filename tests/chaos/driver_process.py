"""The real command line, with housekeeping that comes often enough to be killed in the middle of it.

Run as a process of its own: `python driver_process.py run app.py ...`. With HAILSTORM_PAUSE the process does not
kill itself at the fault point but stops there, like a machine that freezes, until somebody sends SIGCONT. With
HAILSTORM_FAULT_FILE the fault point is what somebody writes into that file while the run goes on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from hailstorm import faults
from hailstorm.cli import main
from hailstorm.engine.ticks import housekeeping
from hailstorm.ledger import compaction, vacuum


def obey(file: Path) -> None:
    """What `fault` looks for, from the moment at which the file says something."""
    while not (point := file.read_text() if file.exists() else ""):
        time.sleep(0.05)
    os.environ["HAILSTORM_FAULT"] = point


if __name__ == "__main__":
    compaction.FAN_IN, compaction.IN_TASKS = 3, 100
    housekeeping.MANIFEST_EVERY = 4
    vacuum.KEEP_LOOSE, vacuum.PACK, vacuum.MERGE = 4, 8, 3
    if os.environ.get("HAILSTORM_PAUSE"):
        # A module takes no stand-in as far as types go; a fault looks up nothing but SIGKILL in it.
        faults.signal = SimpleNamespace(SIGKILL=signal.SIGSTOP)  # type: ignore[assignment]
    if file := os.environ.get("HAILSTORM_FAULT_FILE"):
        threading.Thread(target=obey, args=(Path(file),), daemon=True).start()
    main()
