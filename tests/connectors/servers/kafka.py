"""A real Kafka for the tests: one broker in KRaft mode, from its jars, on free loopback ports.

    with KafkaServer.start() as server: ...server.servers...

The jars come through the Ivy that ships inside pyspark, once; they are kept in the user's cache folder. There are four
listeners: an open one (`servers`), one that asks for a password (`guarded_servers`, with `USER` and `PASSWORD`), and
one that does so over TLS (`tls_servers`); its certificate is made at the start, and `certificate` is what to trust.
The fourth, at `behind_port`, is for a test's own proxy: whoever comes through it is sent to `proxy_port` from there on.
The server is stopped by its process id, also when the test run is interrupted.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.connectors.servers.install import alone, cache_folder
from tests.connectors.tally import suffered

VERSION = "4.3.0"
USER, PASSWORD = "storm", "hail-and-rain"
_START_SECONDS = 90.0

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},\
GUARDED://127.0.0.1:{guarded},TLS://127.0.0.1:{tls},PROXIED://127.0.0.1:{behind}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},GUARDED://127.0.0.1:{guarded},TLS://127.0.0.1:{tls},\
PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT,TLS:SASL_SSL,\
PROXIED:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.guarded.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.tls.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.tls.ssl.keystore.type=PKCS12
listener.name.tls.ssl.keystore.location={folder}/keys.p12
listener.name.tls.ssl.keystore.password={password}
log.dirs={folder}/data
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
delete.topic.enable=true
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4000000
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=0
num.network.threads=2
num.io.threads=2
"""


def jars() -> Path:
    """The folder with Kafka's jars; fetched when they are not there yet."""
    folder = cache_folder() / f"kafka-{VERSION}"
    with alone():
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
        wanted = ["-dependency", "org.apache.kafka", "kafka_2.13", VERSION, "-confs", "default"]
        where = ["-types", "jar", "bundle", "-retrieve", "lib/[artifact]-[revision].[ext]"]
        command = ["java", "-Xmx256m", "-jar", str(ivy), *wanted, *where]
        done = subprocess.run(command, cwd=fetched, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"Kafka's jars could not be fetched:\n{done.stdout[-4000:]}"
        (Path(fetched) / "lib").rename(folder)  # as a whole, so that what is there is complete


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. All are held at once, so that they differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


@dataclass
class KafkaServer:
    folder: Path
    port: int
    guarded_port: int
    tls_port: int
    behind_port: int
    proxy_port: int
    starts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def guarded_servers(self) -> str:
        return f"127.0.0.1:{self.guarded_port}"

    @property
    def tls_servers(self) -> str:
        return f"127.0.0.1:{self.tls_port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @staticmethod
    @contextmanager
    def start() -> Iterator[KafkaServer]:
        folder = Path(tempfile.mkdtemp(prefix="hailstorm-kafka-"))
        controller, *ports = free_ports(6)
        server = KafkaServer(folder, *ports)
        named = dict(zip(("port", "guarded", "tls", "behind", "proxy"), ports, strict=True))
        (folder / "server.properties").write_text(
            _PROPERTIES.format(**named, controller=controller, folder=folder, user=USER, password=PASSWORD)
        )
        try:
            server._make_certificate()
            server._java("kafka.tools.StorageTool", "format", "-t", "hailstormtestsAAAAAAAA", "-c").wait(60)
            server.go()
            yield server
        finally:
            server.kill()
            shutil.rmtree(folder, ignore_errors=True)

    def go(self) -> None:
        """Start, or start again with the same data; returns when the broker answers."""
        if self.starts:
            suffered("Kafka restarted")
        self.starts += 1
        self.process = self._java("kafka.Kafka")
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{(self.folder / 'output').read_text()[-3000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Shut down as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, with_signal: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(with_signal)
            self.process.wait(60)
        self.process = None

    def _make_certificate(self) -> None:
        """A key and a certificate that vouches for itself, with the tool that every Java has."""
        store = ["-keystore", str(self.folder / "keys.p12"), "-storepass", PASSWORD, "-alias", "kafka"]
        key = ["-storetype", "PKCS12", "-keyalg", "EC", "-dname", "CN=kafka", "-ext", "san=ip:127.0.0.1"]
        for command in (["-genkeypair", *key], ["-exportcert", "-rfc", "-file", str(self.certificate)]):
            subprocess.run(["keytool", *command, *store], check=True, capture_output=True)

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*"]
        command = [*java, main, *arguments, str(self.folder / "server.properties")]
        with open(self.folder / "output", "ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True
