"""A schema registry (Confluent's HTTP interface): from the id in a record to the schema that wrote it.

Asked from inside tasks, once per schema and process: what an id names never changes. An id that nobody knows makes a
bad record; a registry that does not answer makes the tick fail, so that no good record becomes a dead letter.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hailstorm.environment import concealed, revealed, secrets_in
from hailstorm.errors import LogError, TransientLogError
from hailstorm.spouts.decode.format import missing_package

_TRIES = 3
_TIMEOUT = 10.0
_UNKNOWN_FOR = 30.0  # seconds; a registry may learn an id later, and must not be asked for every bad record

_lock = threading.Lock()
_known: dict[tuple[str, str], Any] = {}
_unknown: dict[tuple[str, str], float] = {}


@dataclass(frozen=True)
class Written:
    """A schema as the registry has it, and the schemas that it refers to: name -> text, each after its own."""

    kind: str  # AVRO, PROTOBUF or JSON
    text: str
    references: tuple[tuple[str, str], ...]


def written(registry: str, id: int) -> Written:
    """The schema with this id. Raises LookupError when the registry does not know it."""
    found = _asked(registry, f"/schemas/ids/{id}")
    if found is None:
        raise LookupError(f"the registry has no schema with the id {id}")
    references = dict(_references(registry, found))
    return Written(found.get("schemaType") or "AVRO", found["schema"], tuple(references.items()))


def _references(registry: str, schema: dict[str, Any]) -> list[tuple[str, str]]:
    """What a schema refers to, in an order in which each comes after what it refers to itself."""
    found: list[tuple[str, str]] = []
    for reference in schema.get("references") or ():
        subject, version = quote(reference["subject"], safe=""), reference["version"]
        inner = _asked(registry, f"/subjects/{subject}/versions/{version}")
        if inner is None:
            raise LookupError(f"the registry has no version {version} of '{reference['subject']}'")
        found += [*_references(registry, inner), (reference["name"], inner["schema"])]
    return found


def _asked(registry: str, path: str) -> Any:
    key = (registry, path)
    with _lock:
        if key in _known:
            return _known[key]
        if time.monotonic() - _unknown.get(key, -_UNKNOWN_FOR) < _UNKNOWN_FOR:
            return None
    answer = _fetched(registry, path)
    with _lock:
        if answer is None:
            _unknown[key] = time.monotonic()
        else:
            _known[key] = answer
    return answer


def _fetched(registry: str, path: str) -> Any:
    """The answer as JSON, or None when it is not there. Everything else is an error of the registry."""
    try:
        import httpx
    except ImportError as error:
        raise missing_package("a schema registry", "avro") from error
    place = concealed(registry, secrets_in(registry))
    for attempt in range(1, _TRIES + 1):
        try:
            response = httpx.get(revealed(registry).rstrip("/") + path, timeout=_TIMEOUT)
        except httpx.HTTPError as error:
            why = concealed(str(error) or type(error).__name__, secrets_in(registry))
        else:
            if response.status_code == 404:
                return None
            if response.status_code in (401, 403):
                hint = "Write the address as https://user:${env:PASSWORD}@host"
                raise LogError(41, f"the schema registry {place} refuses us ({response.status_code})", hint=hint)
            if response.is_success:
                return response.json()
            why = f"it answers {response.status_code}"
        if attempt < _TRIES:
            time.sleep(0.2 * attempt)
    raise TransientLogError(40, f"the schema registry {place} cannot be used: {why}")
