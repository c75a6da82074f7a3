"""Keys in Redis, changed in one MULTI/EXEC with the cursor.

The cursor's key is watched: when another driver moves it, EXEC does nothing, and the cursor is read again. Redis rolls
nothing back, so everything that could fail inside the transaction is checked before it. Needs the extra `redis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import pyarrow as pa

from hailstorm.environment import concealed, revealed_all, secrets_in
from hailstorm.errors import Location, SinkError, TransientSinkError
from hailstorm.ledger import faults
from hailstorm.sinks.addresses import check_address, public_address, whole_address
from hailstorm.sinks.files import full_disk
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, OLD, Delivery
from hailstorm.sinks.values import json_text, plain_rows, plain_values

if TYPE_CHECKING:
    from redis import Redis as Client

Form = Literal["hash", "json", "stream"]
_SCHEMES = ("redis", "rediss", "unix")
_WAITS = {"socket_connect_timeout": 10, "socket_timeout": 60}  # seconds
_NO_RIGHT = {"AuthenticationError", "AuthenticationWrongNumberOfArgsError", "AuthorizationError", "NoPermissionError"}
# WatchError: another driver has moved the cursor, or the connection broke; either way it must be read again.
_TRANSIENT = {"ConnectionError", "TimeoutError", "ReadOnlyError", "TryAgainError", "MasterDownError", "WatchError"}


@dataclass
class _Open:
    client: Client
    delivery: Delivery
    secrets: frozenset[str]

    @property
    def cursor_key(self) -> str:
        return f"hailstorm:cursor:{self.delivery.topology}/{self.delivery.sink}"


@dataclass(frozen=True)
class Redis:
    """`form` is how a row is kept: a table's as a `hash` (the default) or as `json`, each under `key` and the values of
    its key columns (`counts:rain`); a stream's rows, or a table's changes, as entries of the one `stream` at `key`,
    which is trimmed to about `maxlen` entries when that is given.
    """

    url: str = field(repr=False)
    key: str
    form: Form | None = None
    maxlen: int | None = None
    keeps_cursor: ClassVar[bool] = True
    _session: Session[_Open] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_address(self.url, *_SCHEMES)
        if self.form is not None and self.form not in get_args(Form):
            raise SinkError(
                4,
                f"there is no form '{self.form}'",
                at=Location.of_caller(),
                hint="form is 'hash' or 'json' (one row per key) or 'stream' (every row or change).",
            )

    def open(self, delivery: Delivery) -> None:
        client, secrets = _connect(self.url)
        try:
            with self._clear_errors(secrets):
                client.ping()
        except BaseException:
            client.close()
            raise
        self._session.begin(_Open(client, delivery, secrets))

    def cursor(self) -> int | None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            return _number(session.client.get(session.cursor_key))

    def deliver(self, commit: int, rows: pa.Table) -> None:
        session = self._session.get()
        is_table = KIND in rows.column_names
        form = self.form or ("hash" if is_table else "stream")
        if form != "stream" and not is_table:
            raise SinkError(
                4,
                f"sink '{session.delivery.sink}' has form '{form}', but a stream has no key",
                hint="Make a table of it first (fold), or use form='stream'.",
            )
        pipeline: Any  # redis leaves parts of it without types
        with self._clear_errors(session.secrets), session.client.pipeline(transaction=True) as pipeline:
            pipeline.watch(session.cursor_key)
            if (_number(pipeline.get(session.cursor_key)) or 0) >= commit:
                return
            if form == "stream":
                self._check_stream(pipeline)
            pipeline.multi()
            _WRITERS[form](self, pipeline, rows, session.delivery.key)
            pipeline.set(session.cursor_key, commit)
            faults.fault("during-delivery")
            pipeline.execute()

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.client.close()

    def resolve(self, folder: Path) -> Redis:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "redis", "url": public_address(self.url), "key": self.key, "form": self.form}

    def _check_stream(self, pipeline: Any) -> None:
        found = pipeline.type(self.key)
        if found not in (b"none", b"stream"):
            raise SinkError(3, f"the key '{self.key}' holds a {found.decode()} and no stream", hint="Name another key.")

    @contextmanager
    def _clear_errors(self, secrets: frozenset[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # redis may not be installed, so its errors are known by their module and name.
            if not type(error).__module__.startswith("redis."):
                raise
            place = f"'{self.key}' in {public_address(self.url)}"
            raise _sink_error(error, place, concealed(str(error), secrets)) from error


def _write_hashes(sink: Redis, pipeline: Any, rows: pa.Table, key: tuple[str, ...]) -> None:
    for name, kind, row in _changes(sink.key, rows, key):
        pipeline.delete(name)  # of an update, too: a field that became null must go
        fields = {field: _text(value) for field, value in row.items() if value is not None}
        if kind != "delete" and fields:
            pipeline.hset(name, mapping=fields)


def _write_documents(sink: Redis, pipeline: Any, rows: pa.Table, key: tuple[str, ...]) -> None:
    for name, kind, row in _changes(sink.key, rows, key):
        if kind == "delete":
            pipeline.delete(name)
        else:
            pipeline.set(name, json_text(row))


def _write_entries(sink: Redis, pipeline: Any, rows: pa.Table, key: tuple[str, ...]) -> None:
    rows = rows.drop_columns([OLD]) if OLD in rows.column_names else rows
    for row in plain_rows(rows):
        fields = {field: _text(value) for field, value in row.items() if value is not None}
        # An entry needs a field; a row that is all null has this one.
        pipeline.xadd(sink.key, fields or {"_null": "true"}, maxlen=sink.maxlen, approximate=True)


_WRITERS: dict[Form, Callable[[Redis, Any, pa.Table, tuple[str, ...]], None]] = {
    "hash": _write_hashes,
    "json": _write_documents,
    "stream": _write_entries,
}


def _changes(prefix: str, rows: pa.Table, key: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The key in Redis, the kind, and the row, of each change."""
    shown = rows.drop_columns([name for name in (KIND, OLD) if name in rows.column_names])
    names = [_key_parts(plain_values(rows[name])) for name in key]
    kinds = rows[KIND].to_pylist() if KIND in rows.column_names else []
    for number, (kind, row) in enumerate(zip(kinds, plain_rows(shown), strict=True)):
        yield ":".join([prefix, *(parts[number] for parts in names)]), kind, row


def _key_parts(values: list[Any]) -> list[str]:
    """Two different keys must never be one name: the sign between parts is escaped, and null is no text."""
    texts = (_text(json_text(value) if isinstance(value, bytes) else value) for value in values)
    return [
        "%null" if value is None else str(text).replace("%", "%25").replace(":", "%3A")
        for value, text in zip(values, texts, strict=True)
    ]


def _text(value: Any) -> str | bytes:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | bytes():
            return value
        case float() | int():
            return repr(value)
    return json_text(value)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _connect(url: str) -> tuple[Client, frozenset[str]]:
    """A client, which connects when it is first used, and what no message of it may show."""
    try:
        import redis
        from redis import connection
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise SinkError(
            2, "the Redis sink needs a package that is missing", hint="pip install hailstorm[redis]"
        ) from error
    try:
        # Taken apart first, revealed then: a password may hold letters that mean something in an address.
        parse: Any = connection.parse_url
        options: dict[str, Any] = revealed_all(parse(whole_address(url, *_SCHEMES)))
    except ValueError as error:
        raise SinkError(12, f"{public_address(url)} is not an address of a Redis server") from error
    # Delivery tries again by itself, after it has read the cursor; the client must not, before.
    pool = redis.ConnectionPool(**{**_WAITS, **options, "retry": Retry(NoBackoff(), 0)})
    return redis.Redis(connection_pool=pool), secrets_in(url) | {str(options.get("password") or "")}


def _sink_error(error: Exception, place: str, text: str) -> SinkError:
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _NO_RIGHT:
        return SinkError(
            20,
            f"may not write to {place}: {text}",
            hint="Check user and password in the address. The user needs the rights to read and write these keys and\n"
            "hailstorm:cursor:*, and to use WATCH, MULTI and EXEC.",
        )
    if "OutOfMemoryError" in names:
        return full_disk(place, text)
    if names & _TRANSIENT:
        return TransientSinkError(6, f"cannot write to {place} now: {text}", hint="It is tried again.")
    return SinkError(11, f"{place} does not take the rows: {text}")
