"""Rows as JSON to a service, with an idempotency key for every row.

There is no transaction with a service, so the ledger keeps the cursor, and a crash posts the last commit again: with
the same keys, `topology/sink/commit/row`, by which the service knows what it has got. A request that the service
refuses because of its content is taken apart until the bad rows are alone; they become dead letters. Needs the extra
`webhook`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pyarrow as pa

from hailstorm.columns import KIND, OLD
from hailstorm.environment import concealed, revealed, revealed_all, secrets_in
from hailstorm.errors import Location, SinkError, TransientSinkError
from hailstorm.sinks.addresses import check_address, public_host, secrets_of_path, whole_address
from hailstorm.sinks.json_rows import json_rows, json_text, json_values
from hailstorm.sinks.rejecting import rejected_rows
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Rejected

if TYPE_CHECKING:
    import httpx

# Later may help: a timeout, the same key still at work, too early, too many requests; and everything from 500 on.
_TRANSIENT = {408, 409, 425, 429}
# About the content, and so about some row: bad request, too large, unprocessable.
_OF_A_ROW = {400, 413, 422}
_SCHEMES = ("https", "http")
_SHOWN = 200  # letters of an answer


@dataclass
class _Open:
    client: httpx.Client
    url: str
    delivery: Delivery
    secrets: frozenset[str]


@dataclass(frozen=True)
class _Entry:
    """One row of a request: its idempotency key, and `{"key", "kind", "row", "old"}` as JSON."""

    key: str
    document: str


@dataclass(frozen=True)
class Webhook:
    """POSTs `{"topology", "sink", "commit", "rows": [{"key", "kind", "row", "old"}]}`, at most `batch` rows at a time.

    `${env:NAME}` in the address and the headers is put in when the sink is opened. `timeout` is in seconds.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    batch: int = 100
    timeout: float = 30.0
    keeps_cursor: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    _session: Session[_Open] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_address(self.url, *_SCHEMES)
        if self.batch < 1 or self.timeout <= 0:
            raise SinkError(4, "a Webhook needs batch= of at least 1 and a positive timeout=", at=Location.of_caller())

    def open(self, delivery: Delivery) -> None:
        try:
            import httpx
        except ImportError as error:
            raise SinkError(
                2, "the Webhook sink needs a package that is missing", hint="pip install 'hailstorm[webhook]'"
            ) from error
        headers = {name: str(value) for name, value in revealed_all(self.headers).items()}
        url = revealed(whole_address(self.url, *_SCHEMES))
        secrets = secrets_in(self.url, *self.headers.values()) | set(headers.values()) | secrets_of_path(url)
        client = httpx.Client(headers={**headers, "Content-Type": "application/json"}, timeout=self.timeout)
        self._session.begin(_Open(client, url, delivery, secrets))

    def cursor(self) -> Cursor | None:
        return None

    def deliver(self, parcel: Parcel) -> None:
        session = self._session.get()
        prefix = f"{session.delivery.owner}/{parcel.commit}"
        most = session.delivery.most_rejected(parcel.commit, parcel.rows)
        rejected: list[Rejected] = []
        for first, rows in parcel.numbered():
            entries = _entries(rows, prefix, first)
            for start in range(0, len(entries), self.batch):
                post = partial(self._post, session, parcel.commit, entries, start)
                found = rejected_rows(min(self.batch, len(entries) - start), post, most - len(rejected))
                rejected += [Rejected(first + start + one.row, one.reason) for one in found]
        if rejected:
            session.delivery.reject(parcel.commit, rejected)

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.client.close()

    def resolve(self, folder: Path) -> Webhook:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {
            "sink": "webhook",
            "url": public_host(self.url),
            # Another path is another target; which one, nobody needs to read.
            "path": hashlib.sha256(self.url.encode()).hexdigest(),
            "headers": sorted(self.headers),
            "batch": self.batch,
        }

    def _post(self, session: _Open, commit: int, entries: list[_Entry], base: int, start: int, stop: int) -> str | None:
        """Post the rows [start, stop) after `base`; the reason when the service does not take them as they are."""
        start, stop = base + start, base + stop
        about = {"topology": session.delivery.topology, "sink": session.delivery.sink, "commit": commit}
        # Another range is another request, so it has another key: services remember what they answered to a key.
        key = entries[start].key + (f"-{stop - 1}" if stop - start > 1 else "")
        body = {**about, "rows": [msgspec.Raw(entry.document.encode()) for entry in entries[start:stop]]}
        with self._clear_errors(session):
            answer = session.client.post(
                session.url,
                content=json_text(body),
                headers={"Idempotency-Key": key},
            )
        if answer.is_success:
            return None
        said = f"{answer.status_code} {answer.reason_phrase}: {answer.text[:_SHOWN]}".rstrip(": ")
        reason = concealed(said, session.secrets)
        if answer.status_code in _OF_A_ROW:
            return reason
        place = public_host(self.url)
        if answer.status_code in _TRANSIENT or answer.is_server_error:
            raise TransientSinkError(6, f"{place} cannot take rows now: {reason}", hint="It is tried again.")
        raise SinkError(
            22,
            f"{place} refuses the request: {reason}",
            hint="Check the address and the headers; redirects are not followed. The rows wait in the outbox.",
        )

    @contextmanager
    def _clear_errors(self, session: _Open) -> Iterator[None]:
        import httpx

        place = public_host(self.url)
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SinkError(12, f"{place} is not an address that can be posted to") from error
        except httpx.TransportError as error:
            reason = concealed(str(error) or type(error).__name__, session.secrets)
            raise TransientSinkError(
                6, f"{place} cannot be reached now: {reason}", hint="It is tried again."
            ) from error


def _entries(rows: pa.Table, prefix: str, first: int) -> list[_Entry]:
    count = rows.num_rows
    keys = [f"{prefix}/{number}" for number in range(first, first + count)]
    kinds = rows[KIND] if KIND in rows.column_names else pa.repeat("insert", count)
    old = json_values(rows[OLD]) if OLD in rows.column_names else pa.repeat("null", count)
    row = json_rows(rows.drop_columns([name for name in (KIND, OLD) if name in rows.column_names]))
    head = json_rows(pa.table({"key": pa.array(keys, pa.string()), "kind": kinds}))
    parts = zip(keys, head.to_pylist(), row.to_pylist(), old.to_pylist(), strict=True)
    return [_Entry(key, f'{start[:-1]},"row":{now},"old":{before}}}') for key, start, now, before in parts]
