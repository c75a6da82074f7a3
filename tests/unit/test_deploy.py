"""What is in deploy/ parses, and every command in it, and in its page, is one that the command line takes."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hailstorm.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs/how-to/deploy.md"


def taken(words: list[str]) -> None:
    """The command line takes these words: parsed as ever, and nothing is done."""
    at = next(place for place, word in enumerate(words) if word.rpartition("/")[2] == "hailstorm")
    command: Any = typer.main.get_command(app)
    for place, word in enumerate(words[at + 1 :], at + 1):
        command = command.commands[word]
        if not hasattr(command, "commands"):
            command.make_context(word, words[place + 1 :])
            return
    raise AssertionError(f"no command in {words}")


def instructions() -> Iterator[tuple[str, str]]:
    """Of the Dockerfile: what to do, and with what."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            what, _, rest = line.strip().partition(" ")
            yield what, rest.strip()


def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(DEPLOY / "hailstorm.service")
    return read


def manifests() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_the_image_has_what_it_names() -> None:
    said = list(instructions())
    assert said[0][0] == "FROM"
    assert {what for what, _ in said} <= {
        "FROM",
        "RUN",
        "COPY",
        "ARG",
        "ENV",
        "USER",
        "WORKDIR",
        "VOLUME",
        "ENTRYPOINT",
        "CMD",
    }
    for what, rest in said:
        if what == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources if "$" not in source), rest
        if what in ("VOLUME", "ENTRYPOINT", "CMD"):
            json.loads(rest)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r'"/src\[([\w,]+)\]"', " ".join(rest for _, rest in said))
    assert set(named.split(",")) <= set(extras)
    taken(json.loads(dict(said)["CMD"]))


def test_the_unit_runs_a_command_that_there_is() -> None:
    service = unit()["Service"]
    taken(shlex.split(service["ExecStart"]))
    assert int(service["TimeoutStopSec"]) > 60, "a stop delivers for a minute"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    text = (DEPLOY / "hailstorm.service").read_text()
    command = unit()["Service"]["ExecStart"].split()[0]
    copy = tmp_path / "hailstorm.service"
    copy.write_text(text.replace(command, "/bin/true").replace("User=storm", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "hailstorm.service" not in done.stderr, done.stderr


def test_the_manifest_is_whole_and_runs_a_command_that_there_is() -> None:
    account, deployment = manifests()
    assert (account["kind"], deployment["kind"]) == ("ServiceAccount", "Deployment")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
    (driver,) = pod["spec"]["containers"]
    taken(driver["args"])
    assert {mount["name"] for mount in driver["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}
    mounted = {mount["mountPath"] for mount in driver["volumeMounts"]}
    assert mounted == set(json.loads(dict(instructions())["VOLUME"])), "where the image expects a disk"
    assert pod["spec"]["terminationGracePeriodSeconds"] > 60


def commands() -> list[str]:
    text = PAGE.read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [line for line in lines if re.search(r"(^|\s)hailstorm (run|doctor|status)\b", line)]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_page_is_taken(line: str) -> None:
    taken(shlex.split(line))


def test_the_page_names_every_file_and_no_other() -> None:
    named = set(re.findall(r"\]\(\.\./\.\./deploy/([\w.]+)\)", PAGE.read_text()))
    assert named == {path.name for path in DEPLOY.iterdir()}
