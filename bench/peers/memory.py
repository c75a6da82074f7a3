"""The memory of this process and of the Python workers below it, and the CPU time of any such family.

Only anonymous memory counts: pages of memory-mapped files belong to the page cache, which the system takes back
whenever it wants. Of the JVM between them only the heap in use counts, which it tells itself: what it has reserved
says how busy it was once, and not what it holds.
"""

from __future__ import annotations

import os
from pathlib import Path


def python_memory_mb() -> float:
    statuses = [status_of(pid) for pid in family(os.getpid())]
    # A process that has ended but was not waited for has no memory any more, and no such line.
    sizes = [status.get("RssAnon", "0 kB") for status in statuses if status.get("Name", "java") != "java"]
    return sum(int(size.split()[0]) for size in sizes) / 1024


def family(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command is in brackets and may hold anything; the parent is the second word after it.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    family, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        family.append(pid)
        waiting += children.get(pid, [])
    return family


def cpu_seconds(root: int) -> float:
    """What a process and its descendants have used, and those of them that have ended and were waited for."""
    return sum(_cpu_of(pid) for pid in family(root))


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def status_of(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
