"""The Kafka reader with a consumer that fetches again: a record is given once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from hailstorm.spouts.kafka import reader
from hailstorm.spouts.kafka.client import Cluster


@dataclass(frozen=True)
class Message:
    number: int
    is_end: bool = False

    def offset(self) -> int:
        return self.number

    def error(self) -> Message | None:
        return self if self.is_end else None

    def name(self) -> str:
        return "_PARTITION_EOF"

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self.number

    def __len__(self) -> int:
        return 1


@dataclass
class Consumer:
    """Gives what it was given, list by list; None is a silence, and a negative number an end of partition."""

    answers: list[list[int] | None]
    waiting: list[Message] = field(default_factory=list)

    def poll(self, timeout: float) -> Message | None:
        if not self.waiting:
            numbers = self.answers.pop(0)
            if numbers is None:
                return None
            self.waiting = [Message(abs(number), is_end=number < 0) for number in numbers]
        return self.waiting.pop(0)

    def consume(self, count: int, timeout: float) -> list[Message]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def assign(self, places: Any) -> None: ...

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return 0, 100

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "answers",
    [
        [[0, 1, 2], None, [1, 2, 3, 4]],  # the same again after a silence
        [[0, 1, 2, 0, 1, 2, 3, 4]],  # within one list
        [[0, 1], [0, 1], [2, 3, 4]],  # a whole list
        [[0, 1, 2, 3, 4, -5]],  # with the end of the partition behind them
        [[0, 1, -2, 2, 3, -4], [4]],  # an end that was passed since
        [[0, 1, 2], None, [3, 2, 3, 4, 4, 9]],  # out of order, and beyond the end
    ],
)
def test_what_is_fetched_again_is_given_once(answers: list[list[int] | None], monkeypatch: pytest.MonkeyPatch) -> None:
    library = type(
        "Library", (), {"Message": Message, "TopicPartition": lambda *place: place, "KafkaException": OSError}
    )
    monkeypatch.setattr(reader, "load", lambda: library)
    monkeypatch.setattr(reader, "_SILENCE", -1.0)
    made = reader._Reader(Cluster("nowhere:9092", {}), "t", 0, consumer=Consumer(answers))
    monkeypatch.setattr(reader, "_borrowed", lambda *_: made)
    monkeypatch.setattr(reader, "_give_back", lambda _: None)
    batches = list(reader.read_range(made.cluster, "t", 0, 0, 5, False))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [0, 1, 2, 3, 4]
