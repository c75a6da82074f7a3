"""Kafka over TLS with a password, as log and as sink: it works, and the password is nowhere to be found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from hailstorm.cli.app import app
from hailstorm.errors import LogError, SinkError, TransientLogError
from hailstorm.sinks.kafka.sink import Kafka
from hailstorm.sinks.sink import Delivery, Parcel
from hailstorm.spouts.kafka import reader as kafka_reader
from tests.connectors.kafka_topics import Topics
from tests.connectors.log_contract import some
from tests.connectors.servers.kafka import PASSWORD, USER
from tests.connectors.sink_contract import COUNTS, stream
from tests.jvm import quick

WRONG = "not-the-password"

APP = """
import hailstorm as hs

options = {{"security.protocol": "SASL_SSL", "ssl.ca.location": "{certificate}", "sasl.mechanism": "PLAIN",
            "sasl.username": "{user}", "sasl.password": "${{env:KAFKA_PASSWORD}}"}}
storm = hs.Topology("secret")
words = storm.spout("words", hs.Kafka("{source}", servers="{servers}", options=options), schema="word STRING")
counts = words.fold("counts", by="word", n=hs.count())
counts.sink("out", hs.Kafka("{target}", servers="{servers}", options=options, cursor_topic="{cursors}"))
"""


def encrypted(topics: Topics, topic: str, password: str = "${env:KAFKA_PASSWORD}", **more: str) -> Kafka:
    options = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(topics.server.certificate), **more}
    sasl = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": password}
    return Kafka(topic, servers=topics.server.tls_servers, options={**options, **sasl}, cursor_topic="tls-cursors")


def test_a_topic_is_written_and_read_over_tls(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    topic = topics.new("tls")
    both = encrypted(topics, topic)
    both.open(Delivery(topic, "out", "ledger", COUNTS, (), False))
    both.deliver(Parcel.of(1, stream(("rain", 1))))
    both.close()
    topics.write(topic, some(3))
    topics.settle(topic)
    found = [value for batch in both.read(0, 0, both.latest()[0]) for value in batch.column("value").to_pylist()]
    assert json.loads(found[0]) == {"word": "rain", "n": 1}
    assert found[1:] == some(3)


@pytest.mark.parametrize(
    ("password", "more", "says"),
    [
        (WRONG, {}, "uthentication failed"),
        (PASSWORD, {"ssl.ca.location": "/etc/hostname"}, "ssl.ca.location"),
        (PASSWORD, {"ssl.ca.location": "probe"}, "certificate"),
    ],
)
def test_what_tls_or_the_broker_refuses_is_told_and_shows_no_secret(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, password: str, more: dict[str, str], says: str
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", password)
    monkeypatch.setattr(kafka_reader, "PATIENCE", 2.0)
    refused = encrypted(topics, topics.new("tls"), **more)
    delivery = Delivery("tls", "out", "ledger", COUNTS, (), False)
    for ask in (refused.latest, lambda: list(refused.read(0, 0, 1)), lambda: refused.open(delivery)):
        with pytest.raises((LogError, SinkError), match=says) as caught:
            ask()
        assert not isinstance(caught.value, TransientLogError)
        assert password not in str(caught.value)


def hailstorm(folder: Path, password: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([os.getcwd(), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "hailstorm", *arguments],
        cwd=folder,
        env={**os.environ, **quick(), "PYTHONPATH": path, "KAFKA_PASSWORD": password, "TMPDIR": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_password_is_in_no_file_and_in_no_output(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name: topics.new(name) for name in ("source", "target")}
    names["cursors"] = topics.new("cursors", cleanup_policy="compact")
    certificate, servers = topics.server.certificate, topics.server.tls_servers
    (tmp_path / "app.py").write_text(APP.format(user=USER, certificate=certificate, servers=servers, **names))
    (tmp_path / "tmp").mkdir()
    topics.write(names["source"], [b'{"word": "rain"}'] * 3 + [b"not json"])
    run = ("run", "app.py", "--until", "caught-up", "--master", "local[1]")

    refused = hailstorm(tmp_path, WRONG, *run)
    assert refused.returncode == 1, refused.stderr
    assert "HS-LOG-031" in refused.stderr and "sasl.*" in refused.stderr
    ran = hailstorm(tmp_path, PASSWORD, *run)
    assert ran.returncode == 0, ran.stderr
    topics.write(names["source"], [b'{"word": "late"}'] * 2)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)  # these need no process of their own
    commands = (["graph"], ["check"], ["status", "--json"])
    told = [CliRunner().invoke(app, [*command, str(tmp_path / "app.py")]) for command in commands]
    assert [one.exit_code for one in told] == [0, 0, 0], [one.output for one in told]
    assert json.loads(told[-1].stdout)["lag"] == {"words": {"0": 2}}
    # The lag is asked of the broker; who has the wrong password is told so, and sees the rest.
    monkeypatch.setenv("KAFKA_PASSWORD", WRONG)
    told.append(CliRunner().invoke(app, ["status", str(tmp_path / "app.py")]))
    assert "refuses us" in told[-1].stderr

    [message] = topics.read(names["target"])
    assert json.loads(message.value() or b"") == {"word": "rain", "n": 3}
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert any("spark" in file.name and file.suffix == ".log" for file in files), sorted(files)
    for secret in (PASSWORD, WRONG):
        assert not [file for file, content in files.items() if secret.encode() in content]
        assert not [one for one in (refused, ran, *told) if secret in one.stdout + one.stderr]
