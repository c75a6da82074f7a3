"""Keys in Redis, changed in one MULTI/EXEC with the cursor.

The cursor's key is watched: when another driver moves it, EXEC does nothing, and the cursor is read again. Redis rolls
nothing back, so everything that could fail inside the transaction is checked before it. Needs the extra `redis`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import pyarrow as pa

from hailstorm import faults
from hailstorm.columns import KIND, OLD
from hailstorm.environment import concealed, revealed_all, secrets_in
from hailstorm.errors import Location, SinkError, TransientSinkError
from hailstorm.sinks.addresses import check_address, public_address, whole_address
from hailstorm.sinks.files import full_disk
from hailstorm.sinks.json_rows import bare_values, json_rows, json_text
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, old_cursor
from hailstorm.sinks.tables import growth
from hailstorm.sinks.texts import texts

if TYPE_CHECKING:
    from redis import Redis as Client

Form = Literal["hash", "json", "stream"]
_OWNERS = "hailstorm:owners"  # which sink writes below which key
_AT_ONCE = 1_000
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

    form: Form

    @property
    def cursor_key(self) -> str:
        return f"hailstorm:cursor:{self.delivery.owner}"


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
    forgets: ClassVar[bool] = False
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
        form: Form = self.form or ("hash" if delivery.is_table else "stream")
        if form != "stream" and not delivery.is_table:
            raise SinkError(
                4,
                f"sink '{delivery.sink}' has form '{form}', but a stream has no key",
                hint="Make a table of it first (fold), or use form='stream'.",
            )
        client, secrets = _connect(self.url)
        session = _Open(client, delivery, secrets, form)
        try:
            with self._clear_errors(secrets):
                client.ping()
                self._refuse_other_owner(session, client)
                self._refuse_lost_rows(session)
        except BaseException:
            client.close()
            raise
        self._session.begin(session)

    def cursor(self) -> Cursor | None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            cursor, _ = self._stored(session, session.client)
            return cursor

    def deliver(self, parcel: Parcel) -> None:
        session = self._session.get()
        delivery = session.delivery
        pipeline: Any  # redis leaves parts of it without types
        with self._clear_errors(session.secrets), session.client.pipeline(transaction=True) as pipeline:
            pipeline.watch(session.cursor_key, _OWNERS)
            cursor, row_count = self._stored(session, pipeline)
            if delivery.has_got(cursor, parcel):
                return
            self._refuse_other_owner(session, pipeline)
            if session.form == "stream":
                self._check_stream(pipeline)
            # What another program has under such names stays, unless somebody said that all is ours.
            is_ours = cursor is not None or delivery.takes_over
            replaces = parcel.whole and session.form != "stream" and is_ours
            written = list(self._own_keys(pipeline, delivery)) if replaces else []
            pipeline.multi()
            for start in range(0, len(written), _AT_ONCE):
                pipeline.delete(*written[start : start + _AT_ONCE])
            row_count = 0 if parcel.whole else row_count
            for rows in parcel.pieces():
                _WRITERS[session.form](self, pipeline, rows, delivery.key)
                row_count += 0 if session.form == "stream" else growth(rows)
            stored = {"ledger": delivery.ledger, "commit": parcel.commit, "rows": row_count}
            pipeline.set(session.cursor_key, json_text(stored))
            pipeline.hset(_OWNERS, self.key, delivery.owner)
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

    def _stored(self, session: _Open, client: Any) -> tuple[Cursor | None, int]:
        """The cursor, and how many rows there must be, at least."""
        found = client.get(session.cursor_key)
        if found is None:
            return None, 0
        if found.isdigit():
            raise old_cursor(public_address(self.url))
        stored = json.loads(found)
        return Cursor(stored["ledger"], stored["commit"]), stored.get("rows", 0)

    def _refuse_lost_rows(self, session: _Open) -> None:
        """Rows can be gone without their cursor: somebody has deleted them, or the server has evicted them."""
        client, delivery = session.client, session.delivery
        _, row_count = self._stored(session, client)
        hidden = 1 if session.form == "hash" else 0  # a row that is all null has no key; there is one at most
        if row_count <= hidden or delivery.takes_over:
            return
        if next(self._own_keys(client, delivery), None) is None:
            raise delivery.lost_rows(f"the table at '{self.key}'", "is empty")

    def _refuse_other_owner(self, session: _Open, client: Any) -> None:
        owner = client.hget(_OWNERS, self.key)
        if owner is not None:
            session.delivery.refuse_other_owner(owner.decode(), f"the keys below '{self.key}'")

    def _own_keys(self, client: Any, delivery: Delivery) -> Iterator[bytes]:
        """The keys of the rows that are there: as many parts as the key has columns, and below no other sink's key."""
        if not delivery.key:
            yield from [self.key.encode()] if client.exists(self.key) else []
            return
        others = [name.decode() for name in client.hkeys(_OWNERS) if name.decode() != self.key]
        below = tuple(f"{name}:" for name in others if name.startswith(f"{self.key}:"))
        for name in client.scan_iter(match=_literally(f"{self.key}:") + "*", count=_AT_ONCE):
            rest = name[len(self.key.encode()) + 1 :]
            if rest.count(b":") == len(delivery.key) - 1 and not name.decode(errors="replace").startswith(below):
                yield name

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
    shown = _shown(rows)
    for name, kind, fields in zip(_names(sink.key, rows, key), rows[KIND].to_pylist(), _fields(shown), strict=True):
        pipeline.delete(name)  # of an update, too: a field that became null must go
        if kind != "delete" and fields:
            pipeline.hset(name, mapping=fields)


def _write_documents(sink: Redis, pipeline: Any, rows: pa.Table, key: tuple[str, ...]) -> None:
    documents = json_rows(_shown(rows)).to_pylist()
    for name, kind, document in zip(_names(sink.key, rows, key), rows[KIND].to_pylist(), documents, strict=True):
        if kind == "delete":
            pipeline.delete(name)
        else:
            pipeline.set(name, document)


def _write_entries(sink: Redis, pipeline: Any, rows: pa.Table, key: tuple[str, ...]) -> None:
    for fields in _fields(rows.drop_columns([OLD]) if OLD in rows.column_names else rows):
        # An entry needs a field; a row that is all null has this one.
        pipeline.xadd(sink.key, fields or {"_null": b"true"}, maxlen=sink.maxlen, approximate=True)


_WRITERS: dict[Form, Callable[[Redis, Any, pa.Table, tuple[str, ...]], None]] = {
    "hash": _write_hashes,
    "json": _write_documents,
    "stream": _write_entries,
}


def _shown(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in (KIND, OLD) if name in rows.column_names])


def _fields(rows: pa.Table) -> list[dict[str, bytes]]:
    """The columns of each row that are not null."""
    columns = [bare_values(column).to_pylist() for column in rows.columns]
    return [
        {name: value for name, value in zip(rows.column_names, row, strict=True) if value is not None}
        for row in zip(*columns, strict=True)
    ]


def _names(prefix: str, rows: pa.Table, key: tuple[str, ...]) -> list[str]:
    """The keys in Redis. Two different keys must never be one name: the sign between parts is escaped, and null is no
    text."""
    columns = [_key_texts(rows[name]) for name in key]
    parts = [
        ["%null" if text is None else text.replace("%", "%25").replace(":", "%3A") for text in column]
        for column in columns
    ]
    return [":".join([prefix, *row]) for row in zip(*parts, strict=True)] if key else [prefix] * rows.num_rows


def _key_texts(column: pa.ChunkedArray) -> list[str | None]:
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    written = texts(column.combine_chunks()) if is_bytes else bare_values(column).cast(pa.large_string())
    return list(written.to_pylist())


def _literally(text: str) -> str:
    """A pattern that only the text itself matches."""
    return "".join(f"\\{sign}" if sign in "*?[]^-\\" else sign for sign in text)


def _connect(url: str) -> tuple[Client, frozenset[str]]:
    """A client, which connects when it is first used, and what no message of it may show."""
    try:
        import redis
        from redis import connection
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise SinkError(
            2, "the Redis sink needs a package that is missing", hint="pip install 'hailstorm[redis]'"
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
            "hailstorm:*, and to use WATCH, MULTI and EXEC.",
        )
    if "OutOfMemoryError" in names:
        return full_disk(place, text)
    if names & _TRANSIENT:
        return TransientSinkError(6, f"cannot write to {place} now: {text}", hint="It is tried again.")
    return SinkError(11, f"{place} does not take the rows: {text}")
