"""The environment that Spark's Kafka connector lives in: made once, in the user's cache folder, for the benches alone.

The connector has no release for the Spark that Hailstorm runs on. So its peers are scripts that the interpreter of a
virtual environment with an older Spark runs; its jars come through the Ivy that ships inside pyspark. Which versions
work together was tried out: not every one can be had.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyspark

SPARK = "4.2.0"
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
_DONE = "complete"  # a file that is there when everything else is


@dataclass(frozen=True)
class Outside:
    python: Path
    jars: tuple[Path, ...]

    @property
    def versions(self) -> dict[str, str]:
        """A note for the results."""
        return {"Spark's side": ", ".join([f"pyspark {SPARK}", *(f"{name} {version}" for _, name, version in JARS)])}


def outside(say: Callable[[str], None]) -> Outside:
    """The environment; made when it is not there yet, which takes a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hailstorm"
    folder = cache / f"bench-spark-{SPARK}"
    if not (folder / _DONE).exists():
        say(f"making an environment with Spark {SPARK} and its Kafka connector in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        _make_venv(folder / "venv")
        _fetch_jars(folder / "jars")
        (folder / _DONE).touch()
    return Outside(folder / "venv" / "bin" / "python", tuple(sorted((folder / "jars").glob("*.jar"))))


def _make_venv(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"pyspark=={SPARK}"], check=True, stdout=subprocess.DEVNULL)


def _fetch_jars(folder: Path) -> None:
    """Each alone: what they ask for is in Spark already, or in this list with the version that works."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
        for organisation, name, version in JARS:
            wanted = ["-dependency", organisation, name, version, "-confs", "default", "-notransitive"]
            where = ["-types", "jar", "bundle", "-retrieve", "lib/[artifact]-[revision].[ext]"]
            command = ["java", "-Xmx256m", "-jar", str(ivy), *wanted, *where]
            subprocess.run(command, cwd=fetched, check=True, stdout=subprocess.DEVNULL)
        for jar in (Path(fetched) / "lib").iterdir():
            jar.replace(folder / jar.name)
