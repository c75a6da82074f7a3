"""What happens to Postgres during a delivery: a cut connection, a restart, a zombie, kill -9."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks.postgres import sink as postgres
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.sink import Parcel
from tests.connectors.delivering import Outgoing, board, delivering
from tests.connectors.servers.postgres import PostgresServer
from tests.connectors.servers.proxy import Proxy
from tests.connectors.sink_contract import changes, counts_delivery, got, random_commits, stream, stream_delivery


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.database()


# Connections that break


def test_a_connection_cut_anywhere_in_a_delivery_loses_and_doubles_nothing(
    postgres_server: PostgresServer, url: str, tmp_path: Path
) -> None:
    outgoing, (commits, oracle) = Outgoing(tmp_path / "ledger"), random_commits(seed=4, count=24)
    with Proxy.to(postgres_server.port) as proxy:
        sink = board(Postgres(url.replace(str(postgres_server.port), str(proxy.port)), "counts"))
        for number, rows in enumerate(commits):
            outgoing.commit(rows)
            # Other places each time: in the login, the COPY, the upsert, the cursor, the COMMIT.
            proxy.cut_after(120 + 97 * number)
            assert outgoing.deliver(sink)["board"].cursor == number + 1
        assert proxy.cuts >= 15
    found = postgres_server.query(url, "SELECT word, n FROM counts ORDER BY word")
    assert found == sorted((row["word"], row["n"]) for row in oracle)


def test_a_lost_answer_to_the_commit_is_found_out_by_the_cursor(
    postgres_server: PostgresServer, url: str, tmp_path: Path
) -> None:
    outgoing = Outgoing(tmp_path / "ledger")
    outgoing.commit(stream(("rain", 1)))
    outgoing.commit(stream(("hail", 2)))
    with Proxy.to(postgres_server.port) as proxy:
        proxy.mute_after_commit = True
        sink = board(Postgres(url.replace(str(postgres_server.port), str(proxy.port)), "words"), key=())
        state = outgoing.deliver(sink)["board"]
        assert proxy.cuts >= 1
    assert (state.cursor, state.stopped) == (2, None)
    assert postgres_server.query(url, "SELECT word, n FROM words ORDER BY n") == [("rain", 1), ("hail", 2)]


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
def test_the_server_restarts_in_the_middle_of_a_transaction(
    postgres_server: PostgresServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    outgoing, restarts = Outgoing(tmp_path / "ledger"), list[str]()
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n)))

    def restart(point: str) -> None:
        if not restarts:
            restarts.append(point)
            postgres_server.restart(how)

    monkeypatch.setattr(postgres.faults, "fault", lambda point: restart(point) if point == "during-delivery" else None)
    state = outgoing.deliver(board(Postgres(url, "words"), key=()))["board"]
    assert restarts == ["during-delivery"]
    assert (state.cursor, state.stopped) == (4, None)
    assert postgres_server.query(url, "SELECT n FROM words ORDER BY n") == [(0,), (1,), (2,), (3,)]


def test_while_the_server_is_down_the_outbox_grows_and_then_empties(
    postgres_server: PostgresServer, url: str, tmp_path: Path
) -> None:
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(Postgres(url, "words"), key=())
    outgoing.commit(stream(("word", 0)))
    outgoing.deliver(sink)
    outgoing.commit(stream(("word", 1)))
    with delivering(outgoing.folder, sink) as deliverer:
        assert deliverer.wait(30, 2)
        postgres_server.stop()
        try:
            deliverer.notify(outgoing.commit(stream(("word", 2))))
            # The deliverer has its own view of the ledger, as the negotiator's would be told of the commit.
            deliverer._couriers["board"].outbox._ledger.head = outgoing.ledger.head  # type: ignore[attr-defined]
            assert not deliverer.wait(1, 3)
            assert "HS-SNK-006" in str(deliverer.states()["board"].failing)
        finally:
            postgres_server.run()
        assert deliverer.wait(60, 3)
    assert postgres_server.query(url, "SELECT n FROM words ORDER BY n") == [(0,), (1,), (2,)]


# Zombies


def test_a_zombie_that_wakes_up_after_another_took_over_changes_nothing(
    postgres_server: PostgresServer, url: str
) -> None:
    zombie, heir = Postgres(url, "counts"), Postgres(url, "counts")
    zombie.open(counts_delivery())
    zombie.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
    heir.open(counts_delivery())
    heir.deliver(Parcel.of(2, changes(("update", "rain", 2))))
    heir.deliver(Parcel.of(3, changes(("update", "rain", 3))))
    zombie.deliver(Parcel.of(2, changes(("update", "rain", 2))))
    assert got(zombie) == got(heir) == 3
    zombie.close()
    heir.close()
    assert postgres_server.query(url, "SELECT * FROM counts") == [("rain", 3)]


def test_two_drivers_in_the_same_moment_wait_for_each_other(
    postgres_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, heir = Postgres(url, "words"), Postgres(url, "words")
    inside, go_on = threading.Event(), threading.Event()

    def sleep(point: str) -> None:
        if threading.current_thread().name == "zombie":
            inside.set()
            go_on.wait(30)

    monkeypatch.setattr(postgres.faults, "fault", sleep)
    for sink in (zombie, heir):
        sink.open(stream_delivery("board"))
        sink.deliver(Parcel.of(1, stream(("hail", 1))))
    failed: list[BaseException] = []

    def deliver(sink: Postgres) -> None:
        try:
            sink.deliver(Parcel.of(2, stream(("rain", 1))))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=deliver, args=[zombie], name="zombie")
    thread.start()
    assert inside.wait(30), "it sleeps in the middle of its transaction"
    heirs = threading.Thread(target=deliver, args=[heir])
    heirs.start()
    heirs.join(0.3)
    assert heirs.is_alive(), "it waits for the lock on the cursor"
    go_on.set()
    for one in (thread, heirs):
        one.join(30)
    assert postgres_server.query(url, "SELECT * FROM words") == [("hail", 1), ("rain", 1)]
    assert (got(heir), failed) == (2, [])
    zombie.close()
    heir.close()


def test_a_zombie_that_sleeps_in_a_transaction_is_waited_for_only_so_long(
    postgres_server: PostgresServer, url: str
) -> None:
    heir = Postgres(url, "words")
    heir.open(stream_delivery("board"))
    heir._session.get().connection.execute("SET lock_timeout = '200ms'")
    import psycopg

    with psycopg.connect(url) as sleeping:
        sleeping.execute("SELECT * FROM hailstorm_cursors FOR UPDATE")
        with pytest.raises(SinkError) as caught:
            heir.deliver(Parcel.of(1, stream(("rain", 1))))
    assert (caught.value.code, type(caught.value)) == ("HS-SNK-006", TransientSinkError)
    heir.deliver(Parcel.of(1, stream(("rain", 1))))
    assert got(heir) == 1
    limit = heir._session.get().connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert limit == ("1min",), "after which the server itself ends the zombie's transaction"
    heir.close()


# The delivery modes, killed at the worst moment

POINTS = [f"{when}-delivery:{pass_}" for when in ("before", "during", "after") for pass_ in (1, 2, 3)]


@pytest.mark.chaos
@pytest.mark.parametrize("fault", POINTS)
@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once"])
def test_killed_at_any_point_of_delivery_every_row_is_there_once(
    postgres_server: PostgresServer, url: str, tmp_path: Path, mode: str, fault: str
) -> None:
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(Postgres(url, "words"), mode, key=())
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n), (f"word {n}", n)))
    outgoing.deliver_killed(fault, sink)
    outgoing.deliver(sink)
    expected = [(n,) for n in range(4) for _ in range(2)]
    assert postgres_server.query(url, "SELECT n FROM words ORDER BY n") == expected
    assert postgres_server.query(url, "SELECT commit_number FROM hailstorm_cursors") == [(4,)]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("fault", "arrived"),
    [
        ("before-delivery:2", [0, 1, 2, 3]),
        ("during-delivery:1", [1, 2, 3]),  # after the cursor, before the rows
        ("during-delivery:2", [1, 2, 3]),  # the sink's own point: in the transaction
        ("during-delivery:3", [0, 2, 3]),
        ("after-delivery:2", [0, 1, 2, 3]),
    ],
)
def test_at_most_once_may_lose_the_commit_that_was_under_way_and_doubles_nothing(
    postgres_server: PostgresServer, url: str, tmp_path: Path, fault: str, arrived: list[int]
) -> None:
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(Postgres(url, "words"), "at-most-once", key=())
    for n in range(4):
        outgoing.commit(stream((f"word {n}", n)))
    outgoing.deliver_killed(fault, sink)
    outgoing.deliver(sink)
    assert postgres_server.query(url, "SELECT n FROM words ORDER BY n") == [(n,) for n in arrived]
