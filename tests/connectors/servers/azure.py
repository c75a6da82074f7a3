"""A server that speaks as Azure's blob storage does, for the tests: Azurite, on a free loopback port, from npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate

import pytest

from tests.connectors.servers.install import alone, cache_folder
from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.process import running

VERSION = "3.35.0"
ACCOUNT, CONTAINER = "hail", "storms"
SECRET = base64.b64encode(b"hail-and-thunder" * 4).decode()


@dataclass(frozen=True)
class AzureServer:
    port: int

    @staticmethod
    @contextmanager
    def start() -> Iterator[AzureServer]:
        (port,) = free_ports(1)
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        options += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        server, accounts = AzureServer(port), {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{SECRET}"}
        with running([_program(), *options], server._makes_container, accounts):
            yield server

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What a process needs to find it, directly or through another port."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
        }

    def _makes_container(self) -> bool:
        """Signed by hand: obstore makes no containers."""
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = "".join(f"{name}:{value}\n" for name, value in sent.items())
        text = "PUT" + "\n" * 12 + lines + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(SECRET), text.encode(), hashlib.sha256)).decode()
        headers = {**sent, "Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers=headers)
            return connection.getresponse().status == 201
        except OSError:
            return False
        finally:
            connection.close()


def _program() -> str:
    """Azurite's path; it is fetched when it is not there, into the folder of what tests have fetched."""
    folder = cache_folder() / f"azurite-{VERSION}"
    program = folder / "node_modules/.bin/azurite-blob"
    with alone():
        if not program.exists():
            npm = shutil.which("npm")
            if npm is None:
                pytest.skip("Azurite comes from npm, and there is no npm")
            words = ["install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", f"azurite@{VERSION}"]
            folder.mkdir(exist_ok=True)
            subprocess.run([npm, *words], check=True, stdout=subprocess.DEVNULL)
    return str(program)
