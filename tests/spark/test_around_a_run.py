"""What a run finds around it: logs, ledgers and disks that are not as they must be."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.run import run_topology
from hailstorm.errors import HailstormError, LedgerError, LedgerInUseError, LogError
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver
from tests.spark.test_bad_input import numbers


def small(log: Path) -> hs.Topology:
    storm = hs.Topology("small")
    storm.spout("rows", hs.Log(log), schema="k STRING, n INT").fold("n", n=hs.count())
    return storm


def test_a_log_folder_that_does_not_exist_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="nowhere") as error:
        run_topology(small(tmp_path / "nowhere"), ledger=tmp_path / "ledger", until="caught-up")
    assert "log append" in error.value.hint


def test_a_ledger_that_is_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    Log(tmp_path / "log").create(1)
    (tmp_path / "ledger").write_text("precious")
    with pytest.raises(LedgerError, match="is a file"):
        run_topology(small(tmp_path / "log"), ledger=tmp_path / "ledger", until="caught-up")
    assert (tmp_path / "ledger").read_text() == "precious"


def test_a_ledger_in_use_is_refused_with_the_name_of_the_other_run(spark: SparkSession, tmp_path: Path) -> None:
    Log(tmp_path / "log").create(1)
    Ledger(tmp_path / "ledger", create=True)
    holder = """
        import sys, time
        from pathlib import Path
        from hailstorm.ledger.lease import Lease
        from hailstorm.ledger.stores.local import LocalStore
        Lease(LocalStore(Path(sys.argv[1]))).take()
        print("taken", flush=True)
        time.sleep(60)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(holder), str(tmp_path / "ledger")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        try:
            with pytest.raises(LedgerInUseError, match=f"process {other.pid}"):
                run_topology(small(tmp_path / "log"), ledger=tmp_path / "ledger", until="caught-up")
        finally:
            other.kill()


def test_a_log_that_lost_records_before_they_were_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "log").create(1)
    storm = small(tmp_path / "log")
    log.append([{"n": 1}] * 5)
    negotiator = Negotiator(spark, storm, Ledger(tmp_path / "ledger", create=True), ways=(1,))
    negotiator.start()
    try:
        assert negotiator.tick()
        log.append([{"n": 1}] * 20)
        log.retain(records=3)
        with pytest.raises(HailstormError, match="HS-LOG"):
            negotiator.tick()
    finally:
        negotiator.fail()


# A full disk


def test_a_full_disk_while_a_tick_writes_is_a_clear_error_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The ledger is on a disk of one megabyte; the tick needs more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]).returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        log = Log(tmp_path / "log").create(1)
        storm = hs.Topology("full")
        storm.spout("rows", log, schema="k STRING").fold("by_k", by="k", n=hs.count())
        negotiator = Negotiator(spark, storm, Ledger(disk / "ledger", create=True), ways=(1,))
        negotiator.start()
        log.append([{"k": "small"}])
        assert negotiator.tick()
        log.append([{"k": os.urandom(1_000).hex()} for _ in range(1_000)])
        with pytest.raises(HailstormError, match="No space left") as error:
            negotiator.tick()
        assert "make room" in error.value.hint.lower()
        negotiator.fail()
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        again = Negotiator(spark, storm, Ledger(disk / "ledger"), ways=(1,))
        again.start()
        assert again.tick()
        again.stop()
        assert open_ledger(disk / "ledger").state("by_k").arrow().num_rows == 1_001
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_full_at_the_commit_is_a_clear_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: LocalStore, name: str, data: bytes, unsynced: Sequence[str] = ()) -> bool:
        raise OSError(28, "No space left on device")

    with Driver(numbers(), spark) as driver:
        driver.feed("rows", [{"n": 1}])
        with monkeypatch.context() as patch, pytest.raises(LedgerError, match="cannot be written: No space left"):
            patch.setattr(LocalStore, "put_if_absent", full)
            driver.advance()
        driver._negotiator.fail()
        driver._open()
        driver.advance()
        assert driver.table("n") == [{"n": 1}]
