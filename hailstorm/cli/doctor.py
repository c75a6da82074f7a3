"""`hailstorm doctor`: does this machine have what Hailstorm needs, and if not, what to type."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from hailstorm.cli.output import JsonOption, out, print_json_lines
from hailstorm.cli.target import load_app
from hailstorm.errors import UsageError

GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `ok` is None where it would be good to have, but all works without."""

    check: str
    ok: bool | None
    found: str
    fix: str = ""


def doctor(
    app: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="With --master: can executors read its logs?")
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="URL", help="A cluster whose executors to look at.")] = None,
    ledger: Annotated[str | None, typer.Option(metavar="ADDRESS", help="With --master: can they reach it?")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A setting of Spark. May be given several times.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check Java, Python, memory, Spark and write access: what is wrong and what to type.

    With a cluster, every executor is looked at, too: packages, reach of the ledger and of the logs, clock.

    \b
    Examples:
      hailstorm doctor
      hailstorm doctor --json | jq 'select(.ok == false)'
      hailstorm doctor app.py --master spark://host:7077 --ledger s3://bucket/path
    """
    findings = [check() for check in CHECKS]
    findings += [check_extra(extra, packages) for extra, packages in extras().items()]
    if master is not None:
        from hailstorm.cli.run import pairs  # which needs this module itself

        findings += check_executors(master, ledger, app, pairs("--conf", conf))
    if json:
        print_json_lines(map(asdict, findings))
    else:
        for finding in findings:
            mark = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("missing", "yellow")}[finding.ok]
            out.print(Text.assemble((f"{mark[0]:8} ", mark[1]), f"{finding.check:15} {finding.found}"))
            for line in finding.fix.splitlines():
                out.print(f"{'':24} {line}", markup=False)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def check_executors(master: str, ledger: str | None, app: str | None, conf: Mapping[str, str]) -> list[Finding]:
    """One finding for each executor of a cluster. Starts Spark."""
    from hailstorm.engine.run import resolved
    from hailstorm.engine.spark.executors import look_at_executors
    from hailstorm.engine.spark.session import start_session
    from hailstorm.engine.spark.shipping import ship_by_value
    from hailstorm.engine.wishes import check_ledger, check_master

    loaded = None if app is None else load_app(app)
    if ledger is None and loaded is not None:
        ledger = loaded.topology.ledger_address()
    check_ledger(ledger)
    check_master(master, ledger or "s3://any")
    logs = {}
    if loaded is not None:
        ship_by_value(loaded.topology.folder)
        logs = {spout.name: spout.source for spout in resolved(loaded.topology).spouts}
    found = look_at_executors(start_session("hailstorm doctor", None, master, conf), ledger, logs)
    return [
        Finding(f"executor {name}", not wrong, "; ".join(wrong) or "packages, ledger, logs and clock are well")
        for name, wrong in found.items()
    ]


def check_python() -> Finding:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    return Finding(
        "python", sys.version_info >= (3, 11), found, "" if sys.version_info >= (3, 11) else "Use 3.11 or newer."
    )


def check_java() -> Finding:
    """Spark looks in JAVA_HOME first, then on the PATH; so do we."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if home and java is not None and not Path(java).exists():
        fix = "Type: unset JAVA_HOME, to use the java on the PATH; or set it to where Java 17 is."
        return Finding("java", False, f"JAVA_HOME is {home}, which has no bin/java", fix)
    if java is None:
        return Finding("java", False, "not found", java_advice())
    spoken = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    number = re.search(r'version "(\d+)', spoken)
    if number is None or int(number[1]) < 17:
        return Finding("java", False, f"{number[1] if number else 'unknown version'} at {java}", java_advice())
    return Finding("java", True, f"{number[1]} at {java}")


def require_java() -> None:
    """Say what is wrong with Java before Spark fails to start, which it does without a reason."""
    finding = check_java()
    if not finding.ok:
        raise UsageError(15, f"Spark needs Java 17 or newer: {finding.found}", hint=finding.fix)


def java_advice() -> str:
    """Spark needs Java 17 or newer; how to get it depends on the system."""
    sudo = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
    for tool, command in {
        "apt-get": "apt-get install -y openjdk-17-jre-headless",
        "dnf": "dnf install -y java-17-openjdk-headless",
    }.items():
        if shutil.which(tool):
            return f"Type: {sudo}{command}"
    if shutil.which("brew"):
        return "Type: brew install openjdk@17"
    return "Install Java 17 or newer, and put it on the PATH or set JAVA_HOME."


def check_spark() -> Finding:
    try:
        found = version("pyspark")
        importlib.import_module("pyspark.sql")
    except (PackageNotFoundError, ImportError) as error:
        return Finding("spark", False, f"pyspark cannot be imported: {error}", "Type: pip install 'pyspark>=4.3,<4.4'")
    return Finding("spark", True, f"pyspark {found}")


def check_memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIGABYTE
    enough = total >= 6
    advice = "" if enough else "Spark's driver asks for 4 GB: run --conf spark.driver.memory=1g"
    return Finding("memory", True if enough else None, f"{total:.1f} GB", advice)


def check_cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", True, str(cores))


def check_write_access() -> Finding:
    try:
        with tempfile.TemporaryFile(dir="."):
            pass
    except OSError as error:
        return Finding(
            "write access", False, f"{Path.cwd()}: {error.strerror}", "Go to a folder that you may write to."
        )
    return Finding("write access", True, str(Path.cwd()))


def check_disk() -> Finding:
    free = shutil.disk_usage(".").free / GIGABYTE
    advice = "" if free >= 2 else "Free some space, or keep the ledger elsewhere: run --ledger PATH"
    return Finding("disk space", free >= 2, f"{free:.1f} GB free", advice)


def extras() -> dict[str, list[str]]:
    """The packages that each extra brings, as the installed Hailstorm says itself."""
    found: dict[str, list[str]] = {}
    for requirement in requires("hailstorm") or ():
        package = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        if package and extra and extra[1] not in ("all", "dev"):
            found.setdefault(extra[1], []).append(package[0])
    return found


def check_extra(extra: str, packages: list[str]) -> Finding:
    try:
        return Finding(f"extra {extra}", True, ", ".join(f"{package} {version(package)}" for package in packages))
    except PackageNotFoundError as missing:
        fix = f"Type: pip install 'hailstorm[{extra}]'"
        return Finding(f"extra {extra}", None, f"{missing.name} is not installed", fix)


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_java,
    check_spark,
    check_memory,
    check_cores,
    check_write_access,
    check_disk,
)
