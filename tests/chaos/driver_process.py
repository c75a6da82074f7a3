"""The real command line, with housekeeping that comes often enough to be killed in the middle of it.

Run as a process of its own: `python driver_process.py run app.py ...`. With HAILSTORM_PAUSE the process does not
kill itself at the fault point but stops there, like a machine that freezes, until somebody sends SIGCONT.
"""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

from hailstorm import faults
from hailstorm.cli import main
from hailstorm.engine.ticks import housekeeping
from hailstorm.ledger import compaction, vacuum

if __name__ == "__main__":
    compaction.FAN_IN, compaction.IN_TASKS = 3, 100
    housekeeping.MANIFEST_EVERY = 4
    vacuum.KEEP_LOOSE, vacuum.PACK, vacuum.MERGE = 4, 8, 3
    if os.environ.get("HAILSTORM_PAUSE"):
        # A module takes no stand-in as far as types go; a fault looks up nothing but SIGKILL in it.
        faults.signal = SimpleNamespace(SIGKILL=signal.SIGSTOP)  # type: ignore[assignment]
    main()
