"""The real command line with little patience: what takes an hour in a ledger takes seconds here.

Run as a process of its own: `python quick_process.py run app.py ...`.
"""

from __future__ import annotations

from hailstorm.cli import main
from hailstorm.ledger import history_limit, vacuum
from hailstorm.ledger.delta import publishing

if __name__ == "__main__":
    vacuum.KEEP_LOOSE, vacuum.PACK, vacuum.SWEEP_SECONDS = 5, 20, 2.0
    history_limit.LOOK_SECONDS = 1.0
    publishing.KEEP_SECONDS = 2.0
    main()
