"""What driver and resident worker say to each other, as values. The driver sends errands, and from where to follow the
logs; all else is answers."""

from __future__ import annotations

import msgspec

from hailstorm.engine.stages.order import Order, Report


class Errand(msgspec.Struct, frozen=True, tag="errand"):
    """Run the pass with this slot once."""

    slot: str
    order: Order


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """These positions have been read, by spout and partition: look what comes after them. Answered with News at once,
    and once more when there is more, unless an errand comes first."""

    positions: dict[str, dict[int, int]]
    rosters: dict[str, dict[str, str]] = {}


class Here(msgspec.Struct, frozen=True, tag="here"):
    """The first word of a worker: it has its passes, and is ready."""

    process: int


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """It is still at work."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The pass has run. `memory` is what the worker has for itself now, in bytes.

    After it come so many frames more: what the pass has written into the `attached` files, as Arrow's stream.
    """

    reports: list[Report]
    memory: int
    attached: list[str] = []


class News(msgspec.Struct, frozen=True, tag="news"):
    """How far spouts have been read ahead, by partition. A spout that is not named is not followed."""

    ends: dict[str, dict[int, int]]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The pass has failed, and its files are gone. `told` is the error as `stages/failure.py` tells it, or any other
    error's words."""

    told: str


Word = Errand | Follow
Answer = Here | Beat | News | Done | Failed


def encoded(message: Word | Answer) -> bytes:
    return msgspec.json.encode(message)


def as_word(frame: bytes) -> Word:
    word: Word = msgspec.json.decode(frame, type=Word)
    return word


def as_answer(frame: bytes) -> Answer:
    answer: Answer = msgspec.json.decode(frame, type=Answer)
    return answer
