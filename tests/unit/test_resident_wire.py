"""The wire to a resident worker: whole frames or none, nobody without the secret, and no endless waiting."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Iterator

import pytest

from hailstorm.engine.resident import wire as wires
from hailstorm.engine.resident.messages import Beat, Done, Errand, Failed, Here, as_answer, as_word, encoded
from hailstorm.engine.resident.wire import HungUp, Wire
from hailstorm.engine.resident.worker import Address, Residence, own_memory
from hailstorm.engine.stages.order import Order, Report

SECRET = b"s" * 32


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def greeted(left: socket.socket, right: socket.socket) -> tuple[Wire, Wire]:
    driver, worker = Wire(left, 1.0), Wire(right, None)
    thread = threading.Thread(target=worker.introduce, args=(SECRET,))
    thread.start()
    driver.admit(SECRET)
    thread.join()
    return driver, worker


def test_frames_arrive_whole_and_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    driver, worker = greeted(*ends)
    frames = [b"", b"hail", b"x" * 3_000_000, b"storm"]
    thread = threading.Thread(target=lambda: [driver.send(frame) for frame in frames])
    thread.start()
    assert [worker.receive() for _ in frames] == frames
    thread.join()


def test_a_frame_that_comes_in_pieces_is_waited_for(ends: tuple[socket.socket, socket.socket]) -> None:
    driver, _ = greeted(*ends)
    threading.Timer(0.1, ends[1].sendall, [b"il"]).start()
    ends[1].sendall(b"\0\0\0\4ha")
    assert driver.receive() == b"hail"


def test_a_length_that_is_too_large_ends_the_wire_before_anything_is_read(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    driver, worker = greeted(*ends)
    ends[1].sendall(b"\xff\xff\xff\xff")
    with pytest.raises(HungUp, match="too large to be true"):
        driver.receive()
    with pytest.raises(HungUp, match="too large to be sent"):
        worker.send(bytes(wires.LARGEST_FRAME + 1))


def test_before_the_greeting_only_small_frames_are_taken(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].sendall(b"\0\1\0\0")
    with pytest.raises(HungUp, match="too large to be true"):
        Wire(ends[0], 1.0).admit(SECRET)


def test_silence_and_the_end_are_noticed(ends: tuple[socket.socket, socket.socket]) -> None:
    driver, _ = greeted(*ends)
    driver._connection.settimeout(0.05)
    with pytest.raises(HungUp, match="silent"):
        driver.receive()
    assert not driver.has_news(0)
    ends[1].close()
    assert driver.has_news(1.0)
    with pytest.raises(HungUp, match="hung up"):
        driver.receive()


def test_nobody_is_admitted_without_the_secret(ends: tuple[socket.socket, socket.socket]) -> None:
    def introduce() -> None:
        with pytest.raises(HungUp):
            Wire(ends[1], 1.0).introduce(b"another")

    thread = threading.Thread(target=introduce)
    thread.start()
    with pytest.raises(HungUp, match="secret"):
        Wire(ends[0], 1.0).admit(SECRET)
    ends[0].close()
    thread.join()


def test_a_worker_works_for_nobody_who_does_not_know_the_secret(ends: tuple[socket.socket, socket.socket]) -> None:
    def pretend() -> None:
        driver = Wire(ends[0], 1.0)
        driver.send(b"n" * 32)
        answer = driver.receive()
        driver.send(answer[:32])  # its own proof, sent back

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(HungUp, match="secret"):
        Wire(ends[1], 1.0).introduce(SECRET)
    thread.join()


def test_the_secret_is_in_no_text_of_a_worker() -> None:
    assert "sss" not in repr(Residence(Address("/tmp/socket"), SECRET, {}))


def test_messages_survive_the_way() -> None:
    order = Order(ledger="l", cache="c", scratch="s", seq=3, epoch=1, now=5, excluded={"a": {0: {17: "bad"}}})
    assert as_word(encoded(Errand("pass#1", order))) == Errand("pass#1", order)
    for answer in (Here(7), Beat(), Done([Report("pass#1/0", again={5: "why"})], 9), Failed("told")):
        assert as_answer(encoded(answer)) == answer


def test_a_worker_knows_its_memory_without_the_maps_that_it_shares() -> None:
    before = own_memory()
    # Pages from the system: malloc may have room for so much in what earlier tests have left.
    with mmap.mmap(-1, 50_000_000, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(b"x" * 50_000_000)
        assert own_memory() - before > 40_000_000
