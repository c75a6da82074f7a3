"""Clients of a Kafka cluster: how they are opened, kept, and what their complaints mean.

The Kafka log and the Kafka sink call this. Clients are librdkafka's (the package confluent-kafka, extra `kafka`), which
is imported when the first one is opened. Secrets are put in here and nowhere else; no complaint shows them.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from hailstorm.environment import concealed, revealed, revealed_all, secrets_in, written_secrets
from hailstorm.errors import LogError, TransientLogError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# librdkafka reconnects by itself; only after so many seconds does anybody hear of it. A broker's restart fits in.
PATIENCE = 30.0

_NO_ANSWER = -1001  # librdkafka's OFFSET_INVALID

_DEFAULTS: dict[str, object] = {
    "client.id": "hailstorm",
    "log_level": 2,  # what matters comes as an error and is shown in our words
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 30_000,
}


class Trouble(Enum):
    """What an error of a client means to us. Only UNREACHABLE and BUSY may pass by themselves."""

    UNREACHABLE = "cannot be reached"
    BUSY = "is busy"
    DENIED = "refuses us"
    MISSING = "is not there"
    FENCED = "was taken over by another producer"
    TOO_LARGE = "does not take a record of this size"
    OPTION = "cannot be used with these options"
    OTHER = "failed"


@dataclass
class Complaints:
    """What a client's background threads ran into: the call that times out does not say why.

    They are heard only while the client is polled, so `listen` does so once more.
    """

    last: dict[str, Any] = field(default_factory=dict)
    listen: Callable[[], object] | None = None

    def __call__(self, error: Any) -> None:
        self.last[error.name()] = error

    def telling(self) -> Any:
        """The error that says most; "all brokers down" follows each of them."""
        if self.listen is not None:
            with suppress(load().KafkaException):  # of a client that is at its end: who asks has that error already
                self.listen()
        for name in ("_AUTHENTICATION", "_SSL", "_RESOLVE", "_TRANSPORT"):
            if name in self.last:
                return self.last[name]
        return None


@dataclass(frozen=True)
class Cluster:
    """Where and how to connect. A value: it holds `${env:NAME}`, never the secret itself."""

    servers: str
    options: Mapping[str, Any]

    def settings(self, complaints: Complaints, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """`defaults` give way to the user's options, and these to what is `fixed` because it would be wrong else."""
        address = {"bootstrap.servers": revealed(self.servers), "error_cb": complaints}
        return {**_DEFAULTS, **defaults, **revealed_all(self.options), **address, **fixed}

    def cleaned(self, text: str) -> str:
        named = secrets_in(self.servers, *map(str, self.options.values()))
        return concealed(text, named | written_secrets(self.options))

    def identity(self) -> str:
        """Equal for clusters whose clients can be shared; a hash, because the secrets count and must not be seen."""
        known = (revealed(self.servers), sorted(revealed_all(self.options).items()))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def admin(self) -> tuple[AdminClient, Complaints]:
        """One for all, because it is thread-safe; opened at the first call."""
        with _lock:
            key = (os.getpid(), self.identity())
            if key not in _admins:
                complaints = Complaints()
                with self.understood(f"the Kafka servers {self.servers}", complaints):
                    admin = load_admin().AdminClient(self.settings(complaints, {}, {}))
                complaints.listen = lambda: admin.poll(0.1)
                _admins[key] = (admin, complaints)
            return _admins[key]

    @contextmanager
    def understood(self, who: str, complaints: Complaints) -> Iterator[None]:
        """Errors of the library inside become LogErrors about `who`."""
        try:
            yield
        except load().KafkaException as error:
            raise self.log_error(who, error.args[0], complaints) from None

    def asked(self, who: str, ask: Callable[[AdminClient], Mapping[Any, Any]], patience: float) -> dict[Any, Any]:
        """The answers to an admin request, by what was asked for. Errors are LogErrors about `who`.

        Asks again while a partition changes its leader: the client learns of that only with new metadata.
        """
        admin, complaints = self.admin()
        until = time.monotonic() + patience
        while True:
            heard = dict(complaints.last)
            try:
                return {about: _answer(future, complaints, heard, until) for about, future in ask(admin).items()}
            except load().KafkaException as error:
                trouble, _ = explained(error.args[0])
                if trouble is not Trouble.BUSY or time.monotonic() > until:
                    raise self.log_error(who, error.args[0], complaints) from None
            self.topics(who, patience)
            time.sleep(0.1)

    def topics(self, who: str, patience: float) -> list[str]:
        """The names of all topics. Errors are LogErrors about `who`; a refusal is told as soon as it is heard."""
        admin, complaints = self.admin()
        until, slice_ = time.monotonic() + patience, 1.0
        with self.understood(who, complaints):
            while True:
                heard = dict(complaints.last)
                try:
                    return sorted(admin.list_topics(timeout=slice_).topics)
                except load().KafkaException as error:
                    if explained(error.args[0])[0] is not Trouble.UNREACHABLE or time.monotonic() > until:
                        raise
                refusal = _refusal(complaints, heard)
                if refusal is not None:
                    raise load().KafkaException(refusal)
                # Longer each time: a large cluster may need more than a second to answer.
                slice_ = min(slice_ * 2, max(until - time.monotonic(), 0.1))

    def offsets(self, who: str, asked: dict[Any, Any], isolation: Any, patience: float) -> dict[tuple[str, int], int]:
        """The offsets that `asked` (partition -> OffsetSpec) asks for, by topic and partition. -1: there is none.

        An answer that was lost with its connection comes back as no error and no offset: it is asked for again.
        """
        until = time.monotonic() + patience
        while True:
            found = self.asked(
                who,
                lambda admin: admin.list_offsets(asked, isolation_level=isolation, request_timeout=patience),
                patience,
            )
            offsets = {(place.topic, place.partition): int(answer.offset) for place, answer in found.items()}
            if _NO_ANSWER not in offsets.values():
                return offsets
            if time.monotonic() > until:
                raise TransientLogError(30, f"{who} does not answer where its partitions begin and end")
            time.sleep(0.1)

    def log_error(self, who: str, error: Any, complaints: Complaints) -> LogError:
        trouble, why = explained(error, complaints)
        why = self.cleaned(why)
        what = f"{who} {trouble.value}: {why}"
        match trouble:
            case Trouble.UNREACHABLE | Trouble.BUSY:
                hint = f"Is it running, and is {self.servers} right as seen from this machine?"
                return TransientLogError(30, what, hint=self.cleaned(hint))
            case Trouble.DENIED:
                return LogError(31, what, hint="Check user, password and rights: sasl.* and ssl.* in options=.")
            case Trouble.MISSING:
                return LogError(32, what, hint="Create the topic, or correct its name.")
            case Trouble.OPTION:
                return LogError(33, what, hint="options= takes librdkafka's settings, as in CONFIGURATION.md there.")
        return LogError(34, what)


_lock = threading.Lock()
_admins: dict[tuple[int, str], tuple[AdminClient, Complaints]] = {}

_UNREACHABLE = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_MSG_TIMED_OUT", "_RESOLVE", "_WAIT_COORD", "_STATE"}
_BUSY = {
    "LEADER_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "NOT_LEADER_FOR_PARTITION",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "CONCURRENT_TRANSACTIONS",
    "NETWORK_EXCEPTION",
    "KAFKA_STORAGE_ERROR",
    "THROTTLING_QUOTA_EXCEEDED",
    "_NOENT",  # "no leaders found": the connection broke while the client asked who leads a partition
    "_DESTROY_BROKER",  # the connection that was asked has just been replaced by another one
    "_QUEUE_FULL",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
}
_DENIED = {
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "ILLEGAL_SASL_STATE",
    "UNSUPPORTED_SASL_MECHANISM",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}
_MISSING = {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"}
_FENCED = {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING"}


def explained(error: Any, complaints: Complaints | None = None) -> tuple[Trouble, str]:
    """What a KafkaError means, and its text; a time-out is told by what the background threads met meanwhile."""
    telling = complaints.telling() if complaints is not None else None
    if error.name() in _UNREACHABLE and telling is not None:
        error = telling
    name, text = error.name(), error.str()
    if name in _DENIED:
        return Trouble.DENIED, text
    if name in _FENCED:
        return Trouble.FENCED, text
    if name in _MISSING:
        return Trouble.MISSING, text
    if name in _BUSY:
        return Trouble.BUSY, text
    if name in _UNREACHABLE:
        return Trouble.UNREACHABLE, text
    if name in ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"):
        return Trouble.TOO_LARGE, text
    return (Trouble.OPTION if name == "_INVALID_ARG" else Trouble.OTHER), text


def load() -> Any:
    """The library, or an error that names the extra."""
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        hint = "pip install 'hailstorm[kafka]'"
        raise LogError(35, "Kafka needs a package that is missing", hint=hint) from error


def load_admin() -> Any:
    """The part of the library that asks about topics and groups."""
    load()
    return importlib.import_module("confluent_kafka.admin")


def _answer(future: Any, complaints: Complaints, heard: Mapping[str, Any], until: float) -> Any:
    """The result, or the telling complaint as soon as there is one that no waiting helps."""
    while time.monotonic() < until + 5:
        try:
            return future.result(timeout=0.5)
        except TimeoutError:
            refusal = _refusal(complaints, heard)
            if refusal is not None:
                raise load().KafkaException(refusal) from None
    return future.result(timeout=0)


def _refusal(complaints: Complaints, heard: Mapping[str, Any]) -> Any:
    """A complaint that no waiting helps, if there is one that was not `heard` before we asked."""
    complaint = complaints.telling()
    if complaint is None or complaint is heard.get(complaint.name()):
        return None
    return complaint if explained(complaint)[0] is Trouble.DENIED else None
