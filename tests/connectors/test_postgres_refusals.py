"""What Postgres refuses: an address, a user without rights, a table of other columns, single rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from hailstorm.columns import KIND
from hailstorm.errors import SinkError, TransientSinkError, UsageError
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.sink import Delivery, Parcel, Rejected
from tests.connectors.delivering import Outgoing, board
from tests.connectors.servers.kafka import free_ports
from tests.connectors.servers.postgres import PASSWORD, PostgresServer
from tests.connectors.sink_contract import COUNTS, changes, counts_delivery, got, stream


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.database()


def error_of(action: Callable[[], Any]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        action()
    return caught.value


def keeping(letters: dict[int, list[Rejected]], key: tuple[str, ...] = ("word",)) -> Delivery:
    """A delivery whose dead letters go into a dict."""
    return Delivery(
        "trending",
        "board",
        "ledger",
        COUNTS,
        key,
        bool(key),
        reject=lambda commit, rows: letters.update({commit: list(rows)}),
    )


# Before the first row


@pytest.mark.parametrize("url", ["mysql://localhost/db", "host=localhost password=hail", "http://[", ""])
def test_an_address_of_something_else_is_refused_without_repeating_it(url: str) -> None:
    error = error_of(lambda: Postgres(url, "counts"))
    assert error.code == "HS-SNK-012"
    assert "postgresql://" in error.what
    assert "hail" not in error.what + error.hint


def test_a_table_with_a_dot_in_its_name_is_an_error_that_shows_schema() -> None:
    error = error_of(lambda: Postgres("postgresql://localhost/db", "analytics.counts"))
    assert error.code == "HS-SNK-004"
    assert "table='counts', schema='analytics'" in error.hint
    assert error.at is not None and error.at.file == __file__


def test_names_that_postgres_would_cut_off_are_refused() -> None:
    longest = "ü" * 31
    assert Postgres("postgresql://localhost/db", longest).table == longest
    error = error_of(lambda: Postgres("postgresql://localhost/db", longest + "xy"))
    assert (error.code, "64 bytes" in error.what) == ("HS-SNK-024", True)
    schema = pa.schema([("n", pa.int64()), ("x" * 64, pa.int64())])
    sink = Postgres("postgresql://localhost:1/db", "counts")
    error = error_of(lambda: sink.open(Delivery("trending", "board", "ledger", schema, (), False)))
    assert (error.code, "x" * 64 in error.what) == ("HS-SNK-024", True)


def test_a_schema_holds_the_table_and_what_is_kept_beside_it(url: str, postgres_server: PostgresServer) -> None:
    postgres_server.query(url, "CREATE TABLE counts (other text)")
    sink = Postgres(url, "counts", schema='my "schema"')
    error = error_of(lambda: sink.open(counts_delivery()))
    assert (error.code, 'CREATE SCHEMA "my ""schema"""' in error.hint) == ("HS-SNK-001", True)
    postgres_server.query(url, 'CREATE SCHEMA "my ""schema"""')
    for commit, change in enumerate((("insert", "rain", 1), ("update", "rain", 2)), 1):
        again = Postgres(url, "counts", schema='my "schema"')
        again.open(counts_delivery())
        again.deliver(Parcel.of(commit, changes(change)))
        again.close()
    assert postgres_server.query(url, 'SELECT word, n FROM "my ""schema""".counts') == [("rain", 2)]
    assert postgres_server.query(url, "SELECT to_regclass('public.hailstorm_cursors')") == [(None,)]
    assert again.describe()["schema"] == 'my "schema"'


@pytest.mark.parametrize(
    "options", [{}, {"table": "a", "tables": {"b": None}}, {"tables": {"b": None}, "mode": "append"}]
)
def test_either_one_table_or_several(options: Any) -> None:
    assert error_of(lambda: Postgres("postgresql://localhost/db", **options)).code == "HS-SNK-004"


def test_a_server_that_is_down_at_the_start_is_waited_for() -> None:
    (port,) = free_ports(1)
    sink = Postgres(f"postgresql://storm:{PASSWORD}@127.0.0.1:{port}/db", "counts")
    error = error_of(lambda: sink.open(counts_delivery()))
    assert (error.code, type(error)) == ("HS-SNK-006", TransientSinkError)
    assert PASSWORD not in str(error)
    assert "refused" in str(error)


def test_a_wrong_password_stops_the_sink_and_is_not_shown(postgres_server: PostgresServer) -> None:
    sink = Postgres(postgres_server.url(password="not-the-password"), "counts")
    error = error_of(lambda: sink.open(counts_delivery()))
    assert (error.code, type(error)) == ("HS-SNK-020", SinkError)
    assert "not-the-password" not in str(error) + repr(sink.describe())
    assert "authentication failed" in error.what


def test_a_database_that_does_not_exist_stops_the_sink(postgres_server: PostgresServer) -> None:
    error = error_of(lambda: Postgres(postgres_server.url("nowhere"), "counts").open(counts_delivery()))
    assert (error.code, type(error)) == ("HS-SNK-020", SinkError)
    assert '"nowhere" does not exist' in error.what


def test_a_password_comes_from_the_environment_whatever_is_in_it(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "p@ss:w/rd? %20#&"
    postgres_server.query("postgres", f"CREATE ROLE guest LOGIN SUPERUSER PASSWORD '{secret}'")
    address = postgres_server.url(user="guest", password="${env:GUEST_PASSWORD}")
    sink = Postgres(address, "by_guest")
    with pytest.raises(UsageError, match="GUEST_PASSWORD"):
        sink.open(counts_delivery())
    monkeypatch.setenv("GUEST_PASSWORD", secret)
    sink.open(counts_delivery())
    sink.close()
    assert secret not in repr(sink) + repr(sink.describe())
    monkeypatch.setenv("GUEST_PASSWORD", "another")
    assert "another" not in str(error_of(lambda: sink.open(counts_delivery())))


def test_a_user_without_rights_is_told_which_are_needed(postgres_server: PostgresServer, url: str) -> None:
    postgres_server.query(url, "CREATE TABLE counts (word text PRIMARY KEY, n bigint)")
    postgres_server.query(url, "CREATE ROLE reader LOGIN PASSWORD 'reads'")
    reader = url.replace(f"storm:{PASSWORD}", "reader:reads")
    error = error_of(lambda: Postgres(reader, "counts").open(counts_delivery()))
    assert (error.code, type(error)) == ("HS-SNK-020", SinkError)
    assert "permission denied" in error.what
    assert "INSERT" in error.hint


def test_a_user_who_may_only_write_needs_no_right_to_create(postgres_server: PostgresServer, url: str) -> None:
    first = Postgres(url, "counts")
    first.open(counts_delivery())
    first.close()
    postgres_server.query(url, "CREATE ROLE writer LOGIN PASSWORD 'writes'")
    postgres_server.query(
        url, "GRANT SELECT, INSERT, UPDATE, DELETE ON counts, hailstorm_cursors, hailstorm_tables TO writer"
    )
    sink = Postgres(url.replace(f"storm:{PASSWORD}", "writer:writes"), "counts")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
    sink.close()
    assert postgres_server.query(url, "SELECT * FROM counts") == [("rain", 1)]


def test_a_table_with_other_columns_is_refused_and_left_alone(postgres_server: PostgresServer, url: str) -> None:
    postgres_server.query(url, "CREATE TABLE counts (word text, n integer, extra date)")
    error = error_of(lambda: Postgres(url, "counts").open(counts_delivery()))
    assert error.code == "HS-SNK-003"
    assert "different: n is integer and should be bigint" in error.hint
    assert "not in the topology: extra date" in error.hint
    assert postgres_server.query(url, "SELECT to_regclass('hailstorm_cursors')") == [(None,)]


def test_a_table_of_ones_own_may_have_columns_that_fill_themselves(postgres_server: PostgresServer, url: str) -> None:
    postgres_server.query(
        url,
        "CREATE TABLE counts (id bigserial, word varchar(20) PRIMARY KEY, n bigint, at timestamptz DEFAULT now())",
    )
    sink = Postgres(url, "counts")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
    sink.deliver(Parcel.of(2, changes(("update", "rain", 2))))
    sink.close()
    assert postgres_server.query(url, "SELECT id, word, n, at IS NULL FROM counts") == [(1, "rain", 2, False)]
    indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'counts'"
    assert postgres_server.query(url, indexes) == [(1,)], "its primary key serves"


# Rows that are refused

RULES = {
    "check": ("CHECK (n < 100)", 100, "violates check constraint"),
    "not null": ("CHECK (n IS NOT NULL)", None, "violates check constraint"),
    "unique": ("UNIQUE (n)", 1, "already exists"),
    "deferred": ("UNIQUE (n) DEFERRABLE INITIALLY DEFERRED", 1, "already exists"),
}


@pytest.mark.parametrize(("rule", "bad", "reason"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("mode", [None, "append"])
def test_a_row_that_breaks_a_rule_is_a_dead_letter_and_the_others_arrive(
    postgres_server: PostgresServer, url: str, mode: Any, rule: str, bad: int | None, reason: str
) -> None:
    kind = ', "_kind" text' if mode else ""
    postgres_server.query(url, f"CREATE TABLE counts (word text, n bigint{kind}, {rule})")
    sink, letters = Postgres(url, "counts", mode), dict[int, list[Rejected]]()
    sink.open(keeping(letters))
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "hail", 2))))
    sink.deliver(
        Parcel.of(2, changes(("insert", "snow", 3), ("insert", "bad", bad), ("insert", "fog", 4), ("insert", "ice", 5)))
    )
    assert got(sink) == 2
    sink.deliver(Parcel.of(3, changes(("update", "snow", 6))))
    sink.close()
    assert list(letters) == [2]
    ((row, why),) = [(letter.row, letter.reason) for letter in letters[2]]
    assert row == 1
    assert reason in why
    last = "SELECT DISTINCT ON (word) word, n FROM counts ORDER BY word, n DESC"
    found = postgres_server.query(url, last)
    assert found == [("fog", 4), ("hail", 2), ("ice", 5), ("rain", 1), ("snow", 6)]


def test_a_trigger_that_raises_refuses_its_row_only(postgres_server: PostgresServer, url: str) -> None:
    postgres_server.query(url, "CREATE TABLE counts (word text PRIMARY KEY, n bigint)")
    postgres_server.query(
        url,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.n > 9 THEN RAISE EXCEPTION 'too much %', NEW.n; END IF; RETURN NEW; END $$",
    )
    postgres_server.query(url, "CREATE TRIGGER one BEFORE INSERT ON counts FOR EACH ROW EXECUTE FUNCTION refuse()")
    sink, letters = Postgres(url, "counts"), dict[int, list[Rejected]]()
    sink.open(keeping(letters))
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "hail", 10))))
    sink.close()
    assert letters == {1: [Rejected(1, "too much 10")]}
    assert postgres_server.query(url, "SELECT * FROM counts") == [("rain", 1)]


def test_a_text_that_postgres_cannot_hold_is_a_dead_letter_and_not_changed(
    postgres_server: PostgresServer, url: str
) -> None:
    sink, letters = Postgres(url, "words"), dict[int, list[Rejected]]()
    sink.open(keeping(letters, key=()))
    sink.deliver(Parcel.of(1, stream(("ra\0in", 1), ("hail", 2))))
    sink.close()
    assert [letter.row for letter in letters[1]] == [0]
    assert "0x00" in letters[1][0].reason
    assert postgres_server.query(url, "SELECT * FROM words") == [("hail", 2)]


def test_many_rows_with_few_bad_ones_between_them(postgres_server: PostgresServer, url: str) -> None:
    postgres_server.query(url, "CREATE TABLE words (word text, n bigint CHECK (n % 997 <> 5))")
    sink, letters = Postgres(url, "words"), dict[int, list[Rejected]]()
    sink.open(keeping(letters, key=()))
    sink.deliver(Parcel.of(1, stream(*((f"word {n}", n) for n in range(5000)))))
    sink.close()
    bad = [n for n in range(5000) if n % 997 == 5]
    assert [letter.row for letter in letters[1]] == bad
    assert postgres_server.query(url, "SELECT count(*), sum(n) FROM words") == [
        (5000 - len(bad), sum(range(5000)) - sum(bad))
    ]


def test_a_refused_row_stops_neither_its_sink_nor_others(
    postgres_server: PostgresServer, url: str, tmp_path: Path
) -> None:
    postgres_server.query(url, "CREATE TABLE picky (word text PRIMARY KEY, n bigint CHECK (n < 100))")
    outgoing = Outgoing(tmp_path / "ledger")
    outgoing.commit(changes(("insert", "rain", 1), ("insert", "hail", 100)))
    outgoing.commit(changes(("update", "rain", 2)))
    states = outgoing.deliver(board(Postgres(url, "picky")))
    assert (states["board"].stopped, states["board"].rejected) == (None, 1)
    assert postgres_server.query(url, "SELECT * FROM picky") == [("rain", 2)]
    (letter,) = outgoing.letters()
    assert letter["step"] == "board"
    assert b'"hail"' in letter["raw"]
    assert "violates check constraint" in letter["reason"]


def test_a_target_that_refuses_everything_stops_its_sink(
    postgres_server: PostgresServer, url: str, tmp_path: Path
) -> None:
    postgres_server.query(url, "CREATE TABLE picky (word text PRIMARY KEY, n bigint CHECK (n < 0))")
    outgoing = Outgoing(tmp_path / "ledger")
    outgoing.commit(changes(*(("insert", f"word {n}", n) for n in range(300))))
    states = outgoing.deliver(board(Postgres(url, "picky")))
    assert "HS-SNK-013" in str(states["board"].stopped)
    assert outgoing.letters() == []
    postgres_server.query(url, "ALTER TABLE picky DROP CONSTRAINT picky_n_check")
    assert outgoing.deliver(board(Postgres(url, "picky")))["board"].cursor == 1
    assert postgres_server.query(url, "SELECT count(*) FROM picky") == [(300,)]


# Several tables


def test_one_sink_keeps_the_newest_row_and_all_changes_in_one_transaction(
    postgres_server: PostgresServer, url: str
) -> None:
    sink = Postgres(url, tables={"now": "upsert", "history": "append"})
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "hail", 1))))
    sink.deliver(Parcel.of(2, changes(("update", "rain", 2), ("delete", "hail", None))))
    sink.deliver(Parcel.of(2, changes(("update", "rain", 2), ("delete", "hail", None))))
    sink.close()
    assert postgres_server.query(url, "SELECT * FROM now") == [("rain", 2)]
    history = postgres_server.query(url, "SELECT word, n, _kind FROM history ORDER BY word, n NULLS LAST")
    assert history == [("hail", 1, "insert"), ("hail", None, "delete"), ("rain", 1, "insert"), ("rain", 2, "update")]


def test_a_column_routes_rows_to_tables_and_a_stranger_is_a_dead_letter(
    postgres_server: PostgresServer, url: str
) -> None:
    sink, letters = Postgres(url, tables={"rain": None, "hail": None}, route="word"), dict[int, list[Rejected]]()
    sink.open(keeping(letters, key=()))
    sink.deliver(Parcel.of(1, stream(("rain", 1), ("hail", 2), ("rain", 3))))
    sink.deliver(Parcel.of(2, stream(("snow", 4), (None, 5), ("hail", 6))))
    sink.close()
    assert postgres_server.query(url, "SELECT * FROM rain ORDER BY n") == [(1,), (3,)]
    assert postgres_server.query(url, "SELECT * FROM hail ORDER BY n") == [(2,), (6,)]
    assert [(letter.row, letter.reason) for letter in letters[2]] == [
        (0, "column 'word' is 'snow', which is none of the sink's tables"),
        (1, "column 'word' is None, which is none of the sink's tables"),
    ]


def test_a_table_is_routed_by_its_key_only(url: str) -> None:
    sink = Postgres(url, tables={"one": None}, route="n")
    error = error_of(lambda: sink.open(counts_delivery()))
    assert (error.code, "no STRING column of its key" in error.what) == ("HS-SNK-004", True)


def test_a_key_with_nulls_in_some_columns_is_deleted_by_the_index(postgres_server: PostgresServer, url: str) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("n", pa.float64())])
    rows = [("x", 1), ("x", None), (None, 1), (None, None), ("y", 2)]
    sink = Postgres(url, "pairs")
    sink.open(Delivery("trending", "pairs", "ledger", schema, ("a", "b"), True))

    def of(kind: str, keys: list[Any], value: float | None) -> pa.Table:
        columns = {"a": [a for a, _ in keys], "b": [b for _, b in keys], "n": [value] * len(keys)}
        typed = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
        return pa.table({**typed, KIND: [kind] * len(keys)})

    sink.deliver(Parcel.of(1, of("insert", rows, 1.5)))
    sink.deliver(Parcel.of(2, of("update", rows, 2.5)))
    assert postgres_server.query(url, "SELECT count(*), sum(n) FROM pairs") == [(5, 12.5)]
    sink.deliver(Parcel.of(3, of("delete", rows[:4], None)))
    sink.close()
    assert postgres_server.query(url, "SELECT a, b FROM pairs") == [("y", 2)]


def test_a_password_written_into_the_address_is_not_described(url: str) -> None:
    sink = Postgres(url + "?options=" + quote("-c search_path=public"), "counts")
    assert PASSWORD not in repr(sink.describe())
    assert sink.describe()["url"].startswith("postgresql://storm@127.0.0.1")
