"""Resting: a run that has nothing to do hears of an append at once, and costs next to nothing until then."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import hailstorm as hs
from hailstorm.clock.clock import Clock
from hailstorm.engine.ticks import resting as module
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.plans import Plans
from hailstorm.engine.ticks.resting import Resting
from hailstorm.ledger.live import Live
from hailstorm.spouts.watching import Watcher, file_system

FOR_EVER = 600.0  # a test that waits for this has failed
POSITION = Clock({"rows": {0: 0}})


class Run:
    """The loop's half of resting: it looks, and rests when there is nothing new."""

    def __init__(self, *logs: hs.Log) -> None:
        self.storm = hs.Topology("resting")
        for number, log in enumerate(logs):
            self.storm.spout(f"rows{number}", log, schema="n INT").where(f"some{number}", "n > 0")
        self.logs = Logs(self.storm, Live())
        self.resting = Resting(self.logs, Plans(None, self.storm, self.logs), eager=False)  # type: ignore[arg-type]
        self.stop = threading.Event()

    def look(self) -> dict[str, dict[int, int]]:
        found = self.logs.look(Clock({}), self.resting.quiet()).ends.offsets
        return {spout: dict(row) for spout, row in found.items()}

    def rest(self) -> None:
        self.resting.rest(self.stop, None, POSITION)


@pytest.fixture
def log(tmp_path: Path) -> hs.Log:
    return hs.Log(tmp_path / "log").create(2)


@pytest.fixture
def run(log: hs.Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """It watches, and has looked since. From here on only news ends its rests."""
    made = Run(log)
    monkeypatch.setattr(module, "idle_wait", lambda *args: 0.0)
    monkeypatch.setattr(module, "TOLD_SECONDS", 0.0)
    for _ in range(2):
        made.look()
        made.rest()
    monkeypatch.setattr(module, "idle_wait", lambda *args: FOR_EVER)
    monkeypatch.setattr(module, "TOLD_SECONDS", FOR_EVER)
    yield made
    made.resting.end()


def ends_with(run: Run, happens: object = None) -> bool:
    """Whether a rest ends by itself, by what has happened before or happens meanwhile."""
    resting = threading.Thread(target=run.rest, daemon=True)
    resting.start()
    if callable(happens):
        happens()
    resting.join(60)
    return not resting.is_alive()


def test_an_append_wakes_a_run_that_rests(run: Run, log: hs.Log) -> None:
    assert ends_with(run, lambda: log.append([{"n": 1}], partition=1))
    assert run.look() == {"rows0": {0: 0, 1: 1}}


def test_what_came_between_the_look_and_the_rest_is_not_missed(run: Run, log: hs.Log) -> None:
    log.append([{"n": 1}], partition=0)
    assert ends_with(run)
    assert run.look() == {"rows0": {0: 1, 1: 0}}


def test_a_new_partition_wakes_it_and_is_watched(run: Run, log: hs.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends_with(run, lambda: log.create(3))
    with monkeypatch.context() as at_once:
        at_once.setattr(module, "idle_wait", lambda *args: 0.0)
        run.rest()  # from here on the new folder is watched, and the next look is after that
    assert run.look() == {"rows0": {0: 0, 1: 0, 2: 0}}
    assert ends_with(run, lambda: log.append([{"n": 1}], partition=2))
    assert run.look() == {"rows0": {0: 0, 1: 0, 2: 1}}


def test_a_log_that_is_removed_wakes_it(run: Run, log: hs.Log) -> None:
    assert ends_with(run, lambda: shutil.rmtree(log.path))


def test_logs_into_which_nothing_has_come_are_not_asked(run: Run, log: hs.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    latest = hs.Log.latest
    monkeypatch.setattr(hs.Log, "latest", lambda self: asked.append(self.path) or latest(self))
    monkeypatch.setattr("hailstorm.engine.ticks.logs._FRESH", FOR_EVER)
    assert run.look() == run.look() == {"rows0": {0: 0, 1: 0}}
    assert not asked
    log.append([{"n": 1}], partition=0)
    assert run.look() == run.look() == {"rows0": {0: 1, 1: 0}}
    assert len(asked) == 1


def test_a_log_that_is_not_there_yet_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_SECONDS", FOR_EVER)
    run = Run(hs.Log(tmp_path / "later"))
    assert ends_with(run), "nobody tells that it is made"
    run.resting.end()


def test_where_nobody_tells_it_looks_again_after_a_while(log: hs.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Watcher:
        raise OSError("this system has no inotify")

    monkeypatch.setattr(module, "Watcher", refuse)
    monkeypatch.setattr(module, "TOLD_SECONDS", FOR_EVER)
    run = Run(log)
    run.look()
    for _ in range(3):
        assert ends_with(run)
    log.append([{"n": 1}], partition=0)
    assert run.look() == {"rows0": {0: 1, 1: 0}}


def test_a_folder_that_others_may_write_to_is_not_watched(log: hs.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hailstorm.spouts.watching.file_system", lambda folder: "nfs4")
    monkeypatch.setattr(module, "TOLD_SECONDS", FOR_EVER)
    run = Run(log)
    for _ in range(3):
        assert ends_with(run)
        assert not run.resting.quiet()
    run.resting.end()


class Worker:
    """A resident worker that can follow all logs, but none that is gone."""

    def __init__(self) -> None:
        self.heard: dict[str, dict[int, int]] = {}
        self.waits: list[float] = []

    def follow(self, positions: dict[str, dict[int, int]], rosters: dict[str, dict[str, str]]) -> None:
        self.heard = {spout: row for spout, row in positions.items() if min(row) >= 10_000}

    def wait(self, seconds: float, others: tuple[Watcher, ...]) -> None:
        self.waits.append(seconds)


def test_a_log_that_was_made_again_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hs.Kafka, "latest", lambda self: {10_000: 3})  # and partition 0 is of the topic before
    monkeypatch.setattr(hs.Kafka, "roster", lambda self, *args: {"0": "clicks:old", "1": "clicks:new"})
    monkeypatch.setattr(Plans, "newer_rosters", lambda self, way: {})
    run, worker = Run(hs.Kafka("clicks", servers="nowhere:9092")), Worker()
    position = Clock({"rows0": {0: 5, 10_000: 3}})
    for _ in range(2):
        run.logs.look(position, run.resting.heard(worker))  # type: ignore[arg-type]
        run.resting.rest(run.stop, worker, position)  # type: ignore[arg-type]
    assert worker.heard == {"rows0": {10_000: 3}}
    assert worker.waits[-1] == module.TOLD_SECONDS, "it waits to be told"


def test_after_a_tick_in_another_way_the_worker_is_told_where_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said that there is more, once, and waits for nobody since: a record would wait for the next look."""
    ends = {10_000: 3}
    monkeypatch.setattr(hs.Kafka, "latest", lambda self: dict(ends))
    monkeypatch.setattr(hs.Kafka, "roster", lambda self, *args: {"0": "gone:", "1": "clicks:new"})
    monkeypatch.setattr(Plans, "newer_rosters", lambda self, way: {})
    run, worker = Run(hs.Kafka("clicks", servers="nowhere:9092")), Worker()

    def looked(offset: int) -> int | None:
        position = Clock({"rows0": {10_000: offset}})
        return run.logs.look(position, run.resting.heard(worker)).ends.offset("rows0", 10_000)  # type: ignore[arg-type]

    def rest(offset: int) -> None:
        run.resting.rest(run.stop, worker, Clock({"rows0": {10_000: offset}}))  # type: ignore[arg-type]

    assert looked(3) == 3
    rest(3)
    ends[10_000] = 5
    assert looked(3) == 3, "nobody has told of more"
    run.resting.pass_by()
    run.resting.over()
    assert looked(4) == 5, "nobody tells: it is asked"
    rest(5)
    assert worker.heard == {"rows0": {10_000: 5}}
    assert looked(5) == 5
    rest(5)
    assert worker.waits[-1] == module.TOLD_SECONDS


def test_what_a_worker_tells_between_the_look_and_the_rest_is_not_slept_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once, and the driver may have taken it while it saw whether the worker is there."""
    monkeypatch.setattr(hs.Kafka, "latest", lambda self: {10_000: 3})
    monkeypatch.setattr(hs.Kafka, "roster", lambda self, *args: {"0": "gone:", "1": "clicks:new"})
    monkeypatch.setattr(Plans, "newer_rosters", lambda self, way: {})
    run, worker = Run(hs.Kafka("clicks", servers="nowhere:9092")), Worker()
    position = Clock({"rows0": {10_000: 3}})
    for news in ({"rows0": {10_000: 3}}, {"rows0": {10_000: 4}}):
        run.logs.look(position, run.resting.heard(worker))  # type: ignore[arg-type]
        worker.heard = news
        run.resting.rest(run.stop, worker, position)  # type: ignore[arg-type]
    assert worker.waits == []
    ends = run.logs.look(position, run.resting.heard(worker)).ends  # type: ignore[arg-type]
    assert ends.offset("rows0", 10_000) == 4


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        r"28 27 0:40 / /mnt/our\040logs rw - nfs4 server:/logs rw" + "\n"
        "29 27 0:41 / /mnt/twice rw - ext4 /dev/vdb rw\n"
        "30 29 0:42 / /mnt/twice rw - tmpfs none rw\n"
    )
    kinds = [file_system(Path(place), mounts) for place in ("/mnt/our logs/clicks", "/mnt/other", "/mnt/twice/x")]
    assert kinds == ["nfs4", "ext4", "tmpfs"]
    assert file_system(Path("/"), tmp_path / "none") == ""


def test_a_run_that_has_ended_watches_no_more(run: Run) -> None:
    watcher = run.resting._watcher
    assert watcher is not None
    assert is_inotify(watcher.fileno())
    run.resting.end()
    assert not is_inotify(watcher.fileno())
    assert not run.resting.quiet()


def is_inotify(descriptor: int) -> bool:
    """Whether it is one that watches. Another thread may have got the number of one that was closed."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").endswith("inotify")
    except FileNotFoundError:
        return False
