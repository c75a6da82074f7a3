"""The store over the wire, as S3 and Azure speak it: where a server throttles, cuts and forgets to answer, nothing is
lost or doubled; and no key of ours is in anything that a person reads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

import hailstorm as hs
from hailstorm.errors import FencedError, LedgerError
from hailstorm.ledger.copying import copy_ledger
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.stores import cache_folder, open_store
from hailstorm.ledger.stores import objects as module
from hailstorm.ledger.stores.objects import ObjectStore
from tests.connectors.servers import azure as azurite
from tests.connectors.servers.azure import CONTAINER, AzureServer
from tests.connectors.servers.s3 import BUCKET, SECRET, S3Server, UnkindProxy, known_here

pytest.importorskip("obstore")

_places = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """A server, and what its requests look like."""

    server: S3Server | AzureServer
    bucket: str  # in front of every address
    part: str  # in a request that brings the second part of a file
    last: tuple[str, str]  # the request that makes a file of its parts: its method, and what is in it


@pytest.fixture(scope="module")
def s3(s3_server: S3Server) -> Place:
    return Place(s3_server, f"s3://{BUCKET}", "partNumber=2", ("POST", "uploadId="))


@pytest.fixture(scope="module")
def azure() -> Iterator[Place]:
    with AzureServer.start() as server:
        yield Place(server, f"az://{CONTAINER}", "comp=block&", ("PUT", "comp=blocklist"))


@pytest.fixture(params=["s3", "azure"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(place: Place, tmp_path: Path) -> Iterator[UnkindProxy]:
    with UnkindProxy.to(place.server.port) as proxy, known_here(place.server.environment(proxy.port), tmp_path):
        yield proxy


@pytest.fixture
def address(place: Place) -> str:
    return f"{place.bucket}/storm {next(_places)}/ledger"


@pytest.fixture
def store(proxy: UnkindProxy, address: str) -> ObjectStore:
    return ObjectStore.at(address)


def once(proxy: UnkindProxy, kind: str, method: str, times: int = 1) -> None:
    """The next request of this method suffers."""
    left = [kind] * times
    proxy.fault = lambda verb, path: left.pop() if left and verb == method else None


def test_the_sizes_of_many_files_take_few_requests(store: ObjectStore, proxy: UnkindProxy) -> None:
    names = [f"state/counts/{number:020d}-a.parquet" for number in range(60)]
    for number, name in enumerate(names):
        store.put(name, b"x" * number)
    store.put("outbox/board/1.parquet", b"abc")
    wanted = [
        *names[20:],
        "state/counts/00000000000000000099-a.parquet",
        "outbox/board/1.parquet",
        "outbox/board/2.parquet",
    ]
    proxy.seen.clear()
    found = store.sizes(wanted)
    assert found == {
        **{name: number for number, name in enumerate(names) if number >= 20},
        "state/counts/00000000000000000099-a.parquet": None,
        "outbox/board/1.parquet": 3,
        "outbox/board/2.parquet": None,
    }
    assert sorted(method for method, _ in proxy.seen) == ["GET", "HEAD", "HEAD"]
    assert store.sizes([]) == {}


def test_files_come_and_go(store: ObjectStore) -> None:
    assert (store.list(""), store.get("a"), store.size("a")) == ([], None, None)
    store.put("state/ünï cöde/a.parquet", b"abc")
    store.put("state/b.parquet", b"d")
    assert {(file.name, file.bytes) for file in store.files("state")} == {
        ("state/ünï cöde/a.parquet", 3),
        ("state/b.parquet", 1),
    }
    assert (store.list("state"), store.list("sta")) == (["b.parquet", "ünï cöde"], [])
    store.link("state/b.parquet", "delta/b.parquet")
    store.delete("state/b.parquet")
    store.delete("state/b.parquet")
    store.delete_folder("state")
    assert [file.name for file in store.files("")] == ["delta/b.parquet"]


def test_of_many_writers_exactly_one_creates_a_file(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(5):
            name = f"commits/{number}"
            won = list(pool.map(store.put_if_absent, [name] * 8, [b"%d" % writer for writer in range(8)]))
            assert won.count(True) == 1
            assert store.get(name) == b"%d" % won.index(True)


def test_a_large_file_goes_in_parts_and_comes_back_in_parts(
    store: ObjectStore, proxy: UnkindProxy, place: Place
) -> None:
    data = bytes(range(256)) * (12 << 12)  # 12 MiB
    assert store.write("state/large.parquet", lambda sink: sink.write(data)) == len(data)
    assert any(place.part in path for _, path in proxy.seen)
    proxy.seen.clear()
    with store.open("state/large.parquet") as source:
        assert source.read_at(100, 7 << 20) == data[7 << 20 :][:100]
    assert len(proxy.seen) == 2, "one question for the size, and one for the part"
    assert store.get("state/large.parquet") == data


@pytest.mark.parametrize("kind", ["503", "cut", "lost", "503 after", "late", "half"])
def test_what_fails_in_passing_is_asked_again(store: ObjectStore, proxy: UnkindProxy, kind: str) -> None:
    for method, act in (
        ("PUT", lambda: store.put("a/b", b"x")),
        ("PUT", lambda: store.write("a/c", lambda sink: sink.write(b"y"))),
        ("GET", lambda: store.get("a/b")),
        ("GET", lambda: store.open("a/b", whole=True)),
        ("GET", lambda: store.read_range("a/b", 0, 1)),
        ("GET", lambda: store.list("a")),
        ("GET", lambda: list(store.files("a"))),
        ("GET", lambda: store.get("not there")),
        ("HEAD", lambda: store.size("a/b")),
        ("DELETE", lambda: store.delete("a/c")),
    ):
        once(proxy, kind, method, times=1 if kind == "late" else 2)
        act()
    assert (store.get("a/b"), store.list("a")) == (b"x", ["b"])


def test_a_listing_that_breaks_off_is_whole_all_the_same(
    store: ObjectStore, proxy: UnkindProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own pages are of a thousand files; here they are of ten."""
    names = [f"state/{number:03d}" for number in range(35)]
    for name in names:
        store.put(name, b"x")
    obstore = pytest.importorskip("obstore")
    pages, listings = obstore.list, itertools.count(1)

    def breaking(*words: object, **options: object) -> Iterator[object]:
        return _breaking(pages(*words, chunk_size=10, **options), next(listings))

    monkeypatch.setattr(obstore, "list", breaking)
    assert [file.name for file in store.files("state")] == names
    assert store.sizes(names) == dict.fromkeys(names, 1)
    assert next(listings) > 3, "it has broken off, and each listing comes a bit further"


def _breaking(pages: Iterator[object], many: int) -> Iterator[object]:
    """So many pages, and then no more of them."""
    yield from itertools.islice(pages, many)
    if next(pages, None) is not None:
        raise pytest.importorskip("obstore").exceptions.GenericError("error decoding response body")


@pytest.mark.parametrize("kind", ["503", "cut", "lost", "503 after", "half"])
def test_a_large_file_is_there_also_when_the_last_answer_to_it_was_lost(
    store: ObjectStore, proxy: UnkindProxy, place: Place, kind: str
) -> None:
    left, (method, part) = [kind], place.last
    proxy.fault = lambda verb, path: left.pop() if left and verb == method and part in path else None
    data = bytes(12 << 20)
    assert store.write("state/large.parquet", lambda sink: sink.write(data)) == len(data)
    assert not left and store.size("state/large.parquet") == len(data)


def test_a_server_that_says_nothing_is_asked_again(
    address: str, proxy: UnkindProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENT", 0.3)
    store = ObjectStore.at(address)
    for act in (lambda: store.put("a/b", b"x"), lambda: store.put_if_absent("a/c", b"y"), lambda: store.get("a/b")):
        proxy.seen.clear()
        proxy.fault = lambda verb, path: "silent" if len(proxy.seen) < 2 else None
        act()
        assert len(proxy.seen) >= 2, "not only because it was cut off in the end"
    proxy.fault = lambda verb, path: None
    assert (store.get("a/b"), store.get("a/c")) == (b"x", b"y")


@pytest.mark.parametrize("kind", ["503", "cut", "lost", "503 after"])
def test_a_file_whose_answer_was_lost_is_still_ours(store: ObjectStore, proxy: UnkindProxy, kind: str) -> None:
    once(proxy, kind, "PUT", times=2)
    assert store.put_if_absent("commits/1.json", b"ours")
    once(proxy, kind, "PUT", times=2)
    assert not store.put_if_absent("commits/1.json", b"theirs")
    assert store.get("commits/1.json") == b"ours"


@pytest.mark.parametrize("kind", ["503", "cut", "lost", "503 after"])
def test_a_commit_whose_answer_was_lost_happened_once(address: str, proxy: UnkindProxy, kind: str) -> None:
    ledger, other = Ledger(address, create=True), Ledger(address)
    once(proxy, kind, "PUT", times=3)
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC)))
    assert (ledger.head.commit, ledger.newest().commit) == (1, 1)
    once(proxy, kind, "PUT")
    with pytest.raises(FencedError):
        other.commit(next_commit(other.head, "tick", other.epoch, datetime.now(UTC)))


def test_a_store_that_stays_away_is_an_error_that_says_so(
    address: str, proxy: UnkindProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.5)
    store = ObjectStore.at(address)
    proxy.fault = lambda method, path: "503"
    for act in (lambda: store.get("a"), lambda: store.put_if_absent("a", b""), lambda: store.put("a", b"")):
        with pytest.raises(OSError, match="does not answer as it should: 503 SlowDown"):
            act()
    proxy.fault = lambda method, path: "cut"
    with pytest.raises(OSError, match="cannot be reached"):
        store.get("a")


def test_what_a_store_refuses_is_told_without_keys(
    place: Place, proxy: UnkindProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.5)
    address = place.bucket.partition("://")[0] + "://no-such-bucket/ledger"
    nowhere = ObjectStore.at(address)
    for act in (lambda: nowhere.list(""), lambda: nowhere.put("a", b""), lambda: nowhere.put_if_absent("a", b"")):
        with pytest.raises(OSError) as told:
            act()
        assert "no-such-bucket" in str(told.value)
        words = (SECRET, azurite.SECRET, "AWS4", "SharedKey", "Signature", "http", "RequestId")
        assert not any(word in str(told.value) for word in words)
        assert told.value.__cause__ is None and told.value.__suppress_context__
    with pytest.raises(LedgerError, match=rf"'{address}' cannot be opened"):
        Ledger(address, create=True)


def test_who_is_nobody_is_told_so() -> None:
    asked = ValueError("Error performing PUT http://169.254.169.254/latest/api/token: 403")
    assert module._said(asked).startswith("there are no credentials in the environment")


def test_a_ledger_is_copied_there_and_back(proxy: UnkindProxy, address: str, tmp_path: Path) -> None:
    chance = random.Random(5)
    proxy.fault = lambda method, path: chance.choice(["503", "cut", "lost", None, None, None, None, None])
    ledger = Ledger(tmp_path / "near", create=True)
    for _ in range(5):
        ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC)))
    assert copy_ledger(ledger, address).commit == 5
    assert hs.open_ledger(address).live().commit == 5, "and is opened there as people open it"
    ledger.commit(next_commit(ledger.head, "tick", ledger.epoch, datetime.now(UTC)))
    assert copy_ledger(ledger, address).files == 1
    assert copy_ledger(Ledger(address), str(tmp_path / "back")).commit == 6
    back = Ledger(tmp_path / "back")
    assert (back.id, back.head, list(back.commits())) == (ledger.id, ledger.head, list(ledger.commits()))


def test_a_ledger_finds_its_copies_again_and_shares_them_with_nobody(proxy: UnkindProxy, address: str) -> None:
    first, second = Ledger(address, create=True), Ledger(f"{address}-2", create=True)
    assert Ledger(address).cache.folder == first.cache.folder != second.cache.folder
    assert cache_folder(f"{address}-copy", first.id) != first.cache.folder
    assert open_store(address) is open_store(address + "/"), "one set of connections for each process"
