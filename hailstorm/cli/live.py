"""Progress of a run on the screen: one live line in a terminal, plain lines everywhere else.

`run` and `demo` make a `ProgressDisplay` and give it to the engine, which calls it from its own thread. It writes to
stderr: stdout belongs to the sinks.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, runtime_checkable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import SegmentLines
from rich.spinner import Spinner
from rich.text import Text

from hailstorm.cli.output import err, out
from hailstorm.engine.progress import Progress

RATE_SECONDS = 5.0  # over which rows per second are counted
PLAIN_SECONDS = 1.0  # between two plain lines; a log file is not a screen
WAITING_SECONDS = 60.0  # between two that say that another driver runs; that may be so for weeks
_BUSY = ("standing by", "starting", "delivering")  # phases that have nothing to count


@runtime_checkable
class Board(Protocol):
    """A sink that has something to draw. The console sink prints nothing in a terminal: the screen is ours."""

    def renderable(self) -> RenderableType: ...


@dataclass
class ProgressDisplay:
    """Shows what the engine reports, and above it the boards: what console sinks want a person to see."""

    boards: Sequence[Board] = ()
    console: Console = err
    progress: Progress = field(default_factory=lambda: Progress("starting", "starting"))
    timings: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    journeys: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _begun: float = field(default_factory=time.monotonic)
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _printed: float = float("-inf")
    _live: Live | None = None
    _errors: dict[str, str | None] = field(default_factory=dict)
    _notes: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> ProgressDisplay:
        if self.console.is_terminal:
            # A redirected stdout would send the rows of a pipe to the screen.
            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if sys.stdout.isatty():
            for board in self.boards:
                out.print(board.renderable(), soft_wrap=False)

    def __call__(self, progress: Progress) -> None:
        self._print_notes(progress)
        changed = (progress.phase, progress.message) != (self.progress.phase, self.progress.message)
        self.progress = progress
        self._seen.append((time.monotonic(), progress.total_rows))
        if progress.timings:  # a tick, and not a word in between
            for name, milliseconds in {**progress.timings, "tick": progress.tick_ms}.items():
                self.timings[name].append(milliseconds)
        for journey in progress.journeys:
            for name, milliseconds in {**journey, "arrival to delivery": sum(journey.values())}.items():
                self.journeys[name].append(milliseconds)
        if self._live is None:
            self._print_plain(changed)

    def _print_plain(self, changed: bool) -> None:
        now = time.monotonic()
        self._print_errors()
        wait = WAITING_SECONDS if self.progress.phase == "standing by" else PLAIN_SECONDS
        if not changed and now - self._printed < wait:
            return
        self._printed = now
        self.console.print(f"{datetime.now(UTC):%H:%M:%S}  {self._line().plain}")

    def _print_notes(self, progress: Progress) -> None:
        """What is different from the run before, and where a sink begins when that is not where it ended: said once,
        also in a terminal, and it stays."""
        for note in progress.notes if not self.progress.notes else ():
            self.console.print(f"{datetime.now(UTC):%H:%M:%S}  {note}", markup=False)
        for name, state in progress.sinks.items():
            if state.note is not None and state.note != self._notes.get(name):
                self._notes[name] = state.note
                self.console.print(f"{datetime.now(UTC):%H:%M:%S}  sink {name} {state.note}", markup=False)

    def _print_errors(self) -> None:
        """The whole error of a sink, when it is a new one: not on every line of a log file."""
        errors = {name: state.error for name, state in self.progress.sinks.items()}
        for name, error in errors.items():
            if error is not None and error != self._errors.get(name):
                self.console.print(f"{datetime.now(UTC):%H:%M:%S}  sink {name}: {error}", markup=False)
        self._errors = errors

    def _line(self) -> Text:
        """The progress, with the rate of the last seconds: a tick's own speed says little about a stream."""
        now = time.monotonic()
        while len(self._seen) > 1 and now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        since, rows = self._seen[0] if self._seen else (now, 0)
        rate = (self.progress.total_rows - rows) / (now - since) if now > since else 0.0
        return progress_text(self.progress, rate, now - self._begun, with_errors=self._live is not None)

    def _render(self) -> RenderableType:
        line = self._line()
        line.no_wrap, line.overflow = True, "ellipsis"
        bottom = Spinner("dots", line) if self.progress.phase in _BUSY else line
        if not (self.boards and sys.stdout.isatty()):
            return bottom
        # A screen that is too low cuts the boards, never the line.
        lines = self.console.render_lines(Group(*(board.renderable() for board in self.boards)))
        return Group(SegmentLines(lines[: self.console.height - 2], new_lines=True), bottom)


def progress_text(progress: Progress, rate: float, elapsed: float, with_errors: bool = True) -> Text:
    """The line itself: what matters most is furthest to the left, since a narrow terminal cuts on the right.

    `with_errors` says why a sink does not keep up, and not only that it does not.
    """
    if progress.phase == "standing by":
        return Text(f"{progress.message}, commit {progress.commit:,} ({elapsed:.0f} s)")
    if progress.phase in ("starting", "delivering", "stopped"):
        return Text(f"{progress.message or progress.phase} ({elapsed:.0f} s)")
    parts = [
        f"commit {progress.commit:,}",
        f"{rate:,.0f} rows/s",
        f"tick {progress.tick_ms:,.0f} ms",
        f"lag {progress.lag:,}",
    ]
    if progress.watermark is not None:
        parts.append(f"watermark {progress.watermark.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    parts += sink_texts(progress, with_errors)
    parts.append(f"errors {progress.errors:,}")
    if progress.late:
        parts.append(f"late {progress.late:,}")
    if progress.skipped:
        parts.insert(4, f"OVERLOADED skipped {progress.skipped:,}")
    if progress.phase == "paused":
        parts.insert(0, f"PAUSED {progress.message}".rstrip())
    troubled = any(state.failing or state.stopped for state in progress.sinks.values())
    style = "yellow" if troubled or progress.errors or progress.skipped or progress.phase == "paused" else ""
    return Text("  ".join(parts), style=style)


def sink_texts(progress: Progress, with_errors: bool = True) -> list[str]:
    """One word when all sinks keep up; else each one that does not, and why."""
    troubled = []
    for name, state in progress.sinks.items():
        if state.stopped is not None:
            troubled.append(f"sink {name} STOPPED" + (f": {state.stopped}" if with_errors else ""))
        elif state.failing is not None:
            troubled.append(f"sink {name} retrying" + (f": {state.failing}" if with_errors else ""))
        elif state.behind > 1:  # one behind is the tick that is being delivered
            troubled.append(f"sink {name} {state.behind:,} behind")
        if state.rejected:
            troubled.append(f"sink {name} rejected {state.rejected:,} rows: see hailstorm errors")
    return troubled or (["sinks ok"] if progress.sinks else [])


def profile_rows(
    timings: Mapping[str, list[float]], order: tuple[str, ...], whole: str = "tick"
) -> list[dict[str, str | float]]:
    """Where time goes: median, 99th percentile and share of the whole, part by part."""
    total = sum(timings.get(whole, ())) or 1.0
    rows: list[dict[str, str | float]] = []
    for name in (*order, whole):
        values = sorted(timings.get(name, ()))
        if values:
            rows.append(
                {
                    "part": name,
                    "median ms": round(_quantile(values, 0.5), 1),
                    "p99 ms": round(_quantile(values, 0.99), 1),
                    "share": f"{100 * sum(values) / total:.0f}%",
                }
            )
    return rows


def _quantile(ordered: list[float], q: float) -> float:
    """The smallest value that at least a share `q` of them does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * q) - 1)]
