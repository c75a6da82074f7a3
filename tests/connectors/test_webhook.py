"""Webhook passes the contract of all sinks, against a service that knows rows by their idempotency keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.errors import SinkError, TransientSinkError, UsageError
from hailstorm.sinks.sink import Delivery, Parcel, Rejected
from hailstorm.sinks.webhook import Webhook
from tests.connectors.delivering import Outgoing, board
from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.receiver import Receiver, Request
from tests.connectors.sink_contract import (
    COUNTS,
    Harness,
    Json,
    SinkContract,
    after_changes,
    changes,
    counts_delivery,
    stream,
    stream_delivery,
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver.start() as started:
        yield started


@dataclass
class WebhookHarness:
    receiver: Receiver
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Webhook:
        return Webhook(self.receiver.url, headers={"X-Target": target.encode().hex()}, batch=2)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        seen: dict[str, tuple[str, Json]] = {}
        for request in self.receiver.requests:
            if request.headers["X-Target"] == target.encode().hex():
                for row in request.body["rows"]:
                    seen.setdefault(row["key"], (row["kind"], row["row"]))
        return after_changes(seen.values(), key)


class TestWebhook(SinkContract):
    is_a_log = True
    has_owner = False

    @pytest.fixture
    def harness(self, receiver: Receiver) -> Harness:
        return WebhookHarness(receiver)


def error_of(action: Callable[[], Any]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        action()
    return caught.value


def opened(
    url: str, key: tuple[str, ...] = (), letters: dict[int, list[Rejected]] | None = None, **options: Any
) -> Webhook:
    sink = Webhook(url, **options)
    kept = {} if letters is None else letters
    sink.open(
        Delivery(
            "trending",
            "board",
            "ledger",
            COUNTS,
            key,
            True,
            reject=lambda commit, rows: kept.update({commit: list(rows)}),
        )
    )
    return sink


def test_a_batch_has_a_key_and_so_has_every_row(receiver: Receiver) -> None:
    sink = opened(receiver.url, batch=2)
    sink.deliver(Parcel.of(12, stream(("rain", 1), ("hail", 2), ("snow", 3))))
    sink.close()
    assert [request.key for request in receiver.requests] == ["trending/board/12/0-1", "trending/board/12/2"]
    assert receiver.requests[0].body == {
        "topology": "trending",
        "sink": "board",
        "commit": 12,
        "rows": [
            {"key": "trending/board/12/0", "kind": "insert", "row": {"word": "rain", "n": 1}, "old": None},
            {"key": "trending/board/12/1", "kind": "insert", "row": {"word": "hail", "n": 2}, "old": None},
        ],
    }


def test_a_commit_without_rows_posts_nothing(receiver: Receiver) -> None:
    sink = opened(receiver.url)
    sink.deliver(Parcel.of(1, changes()))
    sink.close()
    assert receiver.requests == []


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_row_that_the_service_refuses_is_found_and_is_a_dead_letter(receiver: Receiver, status: int) -> None:
    def answer(request: Request) -> tuple[int, str]:
        bad = any(row["row"]["n"] in (3, 11) for row in request.body["rows"])
        return (status, "no such n") if bad else (200, "")

    receiver.answer = answer
    letters: dict[int, list[Rejected]] = {}
    sink = opened(receiver.url, letters=letters, batch=8)
    sink.deliver(Parcel.of(1, stream(*((f"word {n}", n) for n in range(20)))))
    sink.close()
    assert [letter.row for letter in letters[1]] == [3, 11]
    assert str(status) in letters[1][0].reason
    assert letters[1][0].reason.endswith("no such n")
    assert sorted(row["row"]["n"] for row in receiver.rows.values()) == [n for n in range(20) if n not in (3, 11)]
    assert len({request.key for request in receiver.requests}) == len(receiver.requests), "another range, another key"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
def test_what_may_pass_is_tried_again(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda request: (status, "later")
    sink = opened(receiver.url)
    error = error_of(lambda: sink.deliver(Parcel.of(1, stream(("rain", 1)))))
    assert (error.code, type(error)) == ("HS-SNK-006", TransientSinkError)
    sink.close()


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_what_is_wrong_with_the_request_stops_the_sink(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda request: (status, "go away")
    sink = opened(receiver.url)
    error = error_of(lambda: sink.deliver(Parcel.of(1, stream(("rain", 1)))))
    assert (error.code, type(error)) == ("HS-SNK-022", SinkError)
    sink.close()


def test_a_service_that_is_down_or_slow_is_waited_for(receiver: Receiver) -> None:
    (port,) = free_ports(1)
    down = opened(f"http://127.0.0.1:{port}")
    assert type(error_of(lambda: down.deliver(Parcel.of(1, stream(("rain", 1)))))) is TransientSinkError
    down.close()
    receiver.answer = lambda request: (time.sleep(0.5), (200, ""))[1]
    slow = opened(receiver.url, timeout=0.1)
    error = error_of(lambda: slow.deliver(Parcel.of(1, stream(("rain", 1)))))
    assert (error.code, type(error)) == ("HS-SNK-006", TransientSinkError)
    slow.close()


def test_secrets_come_from_the_environment_and_are_shown_nowhere(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOOK_TOKEN", raising=False)
    sink = Webhook(
        receiver.url + "/${env:HOOK_PATH}?key=also-secret", headers={"Authorization": "Bearer ${env:HOOK_TOKEN}"}
    )
    monkeypatch.setenv("HOOK_PATH", "hidden-path")
    with pytest.raises(UsageError, match="HOOK_TOKEN"):
        sink.open(counts_delivery())
    monkeypatch.setenv("HOOK_TOKEN", "hail-and-rain")
    receiver.answer = lambda request: (401, f"{request.headers['Authorization']} is not known at hidden-path")
    sink.open(stream_delivery("board"))
    error = error_of(lambda: sink.deliver(Parcel.of(1, stream(("rain", 1)))))
    assert receiver.requests[0].headers["Authorization"] == "Bearer hail-and-rain"
    sink.close()
    shown = str(error) + repr(sink) + repr(sink.describe())
    for secret in ("hail-and-rain", "hidden-path", "also-secret"):
        assert secret not in shown


@pytest.mark.parametrize("options", [{"url": "ftp://localhost"}, {"url": "http://localhost", "batch": 0}])
def test_what_cannot_work_is_refused_at_once(options: Any) -> None:
    assert error_of(lambda: Webhook(**options)).code in ("HS-SNK-012", "HS-SNK-004")


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("mode", "fault", "received", "repeated"),
    [
        # Killed after the service got commit 2 and before the ledger knew: it comes again, with the same keys.
        ("exactly-once", "during-delivery:2", [0, 1, 2, 3], [1]),
        ("exactly-once", "after-delivery:2", [0, 1, 2, 3], []),
        # The cursor is stored once for all four commits, so all that were sent come again.
        ("at-least-once", "during-delivery:3", [0, 1, 2, 3], [0, 1, 2]),
        # The cursor is stored before: the commit that was under way is given up, and nothing is repeated.
        ("at-most-once", "during-delivery:2", [0, 2, 3], []),
    ],
)
def test_the_delivery_modes_promise_what_they_say_when_killed(
    receiver: Receiver, tmp_path: Path, mode: str, fault: str, received: list[int], repeated: list[int]
) -> None:
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(Webhook(receiver.url), mode, key=())
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n)))
    outgoing.deliver_killed(fault, sink)
    outgoing.deliver(sink)
    sent = [row["row"]["n"] for request in receiver.requests for row in request.body["rows"]]
    assert sorted(row["row"]["n"] for row in receiver.rows.values()) == received, "by key, every row once"
    assert sorted(sent) == sorted(received + repeated)


SECRET_PATH = "/services/T024BE7LD/B01QX3ZKVHM/xoxsecrettoken"


def test_the_path_of_a_webhook_is_a_secret(receiver: Receiver) -> None:
    root = receiver.url.rstrip("/").partition("://")[2].partition("/")[0]
    url = f"http://{root}{SECRET_PATH}"
    receiver.answer = lambda request: (404, f"no such page: {SECRET_PATH}, token xoxsecrettoken")
    sink = opened(url)
    told = [
        repr(sink),
        str(sink.describe()),
        error_of(lambda: sink.deliver(Parcel.of(1, stream(("rain", 1))))).render(),
    ]
    sink.close()
    gone = opened(f"http://127.0.0.1:9{SECRET_PATH}")
    told.append(error_of(lambda: gone.deliver(Parcel.of(1, stream(("rain", 1))))).render())
    gone.close()
    assert not [text for text in told if "xoxsecret" in text or "T024" in text]
    assert f"http://{root}/***" in told[2]
    assert Webhook(url).describe() != Webhook(url + "2").describe()  # another path is another target
