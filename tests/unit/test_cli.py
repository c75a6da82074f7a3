"""The command line as a whole: help, exit codes, new, doctor."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hailstorm.cli import doctor
from hailstorm.cli.app import app
from hailstorm.errors import UsageError
from hailstorm.spouts import Log

COMMANDS = ["run", "demo", "new", "check", "graph", "status", "commits", "state", "errors", "doctor"]
LOG_COMMANDS = [["log", "append"], ["log", "read"], ["log", "info"]]


def hailstorm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hailstorm", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("command", [*[[name] for name in COMMANDS], *LOG_COMMANDS], ids=" ".join)
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"hailstorm {' '.join(command)}" in result.stdout.split("Examples:")[1]


def test_the_help_lists_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert all(f" {name} " in result.stdout for name in [*COMMANDS, "log"])


def test_help_is_there_at_once_because_neither_spark_nor_arrow_is_imported() -> None:
    code = (
        "import sys, hailstorm.cli.app\n"
        "slow = {m.split('.')[0] for m in sys.modules} & {'pyspark', 'pyarrow', 'pandas', 'numpy', 'duckdb'}\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_version_is_shown() -> None:
    assert hailstorm("--version").stdout.startswith("hailstorm ")


def test_an_error_has_the_house_shape_on_stderr_and_exit_code_1(tmp_path: Path) -> None:
    result = hailstorm("graph", str(tmp_path / "none.py"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("HS-CLI-001  there is no app file")
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in hailstorm("graph", str(tmp_path / "none.py"), HAILSTORM_DEBUG="1").stderr


@pytest.mark.parametrize("arguments", [["run"], ["frobnicate"], ["run", "x.py", "--conf", "nonsense"]])
def test_wrong_usage_has_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_new_makes_a_project_that_is_python(tmp_path: Path) -> None:
    folder = tmp_path / "My Shop 2"
    assert CliRunner().invoke(app, ["new", str(folder)]).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "README.md", "app.py", "test_app.py"]
    for file in ("app.py", "test_app.py"):
        ast.parse((folder / file).read_text())
    assert 'hs.Topology("my_shop_2")' in (folder / "app.py").read_text()


def test_new_touches_no_folder_that_has_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    result = CliRunner().invoke(app, ["new", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_demo_that_does_not_exist_is_refused_with_a_suggestion() -> None:
    result = CliRunner().invoke(app, ["demo", "trendin"])
    assert isinstance(result.exception, UsageError)
    assert result.exception.hint == "Did you mean 'trending'?"


def test_a_demo_deletes_only_what_a_demo_made(tmp_path: Path) -> None:
    (tmp_path / "trending").mkdir()
    (tmp_path / "trending/precious.txt").write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--folder", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert (tmp_path / "trending/precious.txt").exists()


def test_doctor_finds_this_machine_in_order() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {row["check"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert findings["python"]["ok"] is True
    assert set(findings) >= {"python", "java", "spark", "memory", "cores", "write access", "disk space"}
    assert {"extra duckdb", "extra testing"} <= set(findings)


def test_doctor_without_java_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor.check_java()
    assert (finding.ok, finding.found) == (False, "not found")
    assert "Java 17" in finding.fix
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


def test_a_run_without_java_says_so_before_spark_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"Spark needs Java 17 or newer: JAVA_HOME is .*\n  Type: unset JAVA_HOME"):
        doctor.require_java()


def test_doctor_refuses_a_java_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = doctor.check_java()
    assert (finding.ok, finding.found) == (False, f"11 at {java}")


def test_a_partition_that_a_log_has_not_is_said(tmp_path: Path) -> None:
    Log(tmp_path / "log").create(2).append([{"a": 1}])
    read = CliRunner().invoke(app, ["log", "read", str(tmp_path / "log"), "--partition", "9"])
    assert (read.exit_code, read.stdout) == (0, "")
    assert "the log has no partition 9: it has 0, 1" in read.stderr
