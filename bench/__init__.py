"""The benches: Hailstorm beside its peers, on the same rows, in the same run.

    python -m bench                 all of them, a table, the picture of the README
    python -m bench small           one of them (`--list` names them)
    python -m bench --quick         fewer rounds and ticks: to see that it works, not to quote

`suite/` has a module a bench, `peers/` what competes, each in a process of its own; `contest.py` lets them take
turns. Those of clusters have a Spark cluster (`cluster.py`) and a server for objects (`object_store.py`) on this
machine. Every run is kept in `results/`. What the figures mean is told in docs/performance.md.
"""
