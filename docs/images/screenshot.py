"""Makes demo.svg, the picture in the README, from a real run: `.venv/bin/python docs/images/screenshot.py`."""

from __future__ import annotations

import io
import os
import re
import signal
import tempfile
import threading
from pathlib import Path

from rich.console import Console

from hailstorm.cli import demo
from hailstorm.cli.live import ProgressDisplay
from hailstorm.cli.output import err
from hailstorm.cli.run import run_watched
from hailstorm.cli.target import load_app
from hailstorm.engine.progress import Progress

COMMITS = 40  # by then ticks are warm, and the words have changed places
QUICK = 40.0  # milliseconds: what a resident tick takes, when nothing else keeps the machine
PATIENCE = 2_000  # commits


class Camera(ProgressDisplay):
    """Draws what a terminal would show at one moment, and ends the run: after a resident tick, as most are."""

    picture: Console | None = None

    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        settled = progress.commit >= COMMITS and progress.way == "resident" and 0 < progress.tick_ms <= QUICK
        if progress.commit >= PATIENCE:
            os.kill(os.getpid(), signal.SIGINT)
        elif settled and self.picture is None:
            self.picture = Console(record=True, width=110, file=io.StringIO(), highlight=False)
            self.picture.print("[bold]$ make demo[/bold]")
            for board in self.boards:
                self.picture.print(board.renderable())
            self.picture.print(self._line())
            os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Camera(console=err) as camera:
        app = load_app(str(demo._fresh_copy("trending", Path(folder) / "trending")))
        app.module.feed(demo._log(app), demo.FIRST_ROWS, seed=0)
        stop = threading.Event()
        feeder = threading.Thread(target=demo._feed, args=(app, stop))
        feeder.start()
        try:
            run_watched(app.topology, camera)
        finally:
            stop.set()
            feeder.join()
    assert camera.picture is not None, f"no resident tick of at most {QUICK} ms: is the machine busy?"
    picture = camera.picture.export_svg(title="hailstorm demo")
    # Rich asks a web server for a font; the reader's own will do.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    Path(__file__).with_name("demo.svg").write_text(picture)


if __name__ == "__main__":
    main()
