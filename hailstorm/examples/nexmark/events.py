"""People, auctions and bids, 1 : 3 : 46, each a pure function of its number: `hs.Rate` logs that never end.

Of every fifty events the first is a person, the next three are auctions, and the others are bids. What an event says is
made of its number by a hash, so a log can be read again, in any order and from anywhere. Half of the bids go to the
newest auctions, and a tenth of the auctions belong to a few sellers: that is where the work is.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import hailstorm as hs
from hailstorm.examples.nexmark.queries import AUCTION, BID, PERSON, SIDE_INPUT

Numbers = npt.NDArray[np.int64]

START = datetime(2026, 1, 1)
_START = 1_767_225_600_000_000  # the same in microseconds
_FIRST_ID = 1000
_ROUND, _AUCTIONS, _BIDS = 50, 3, 46
_CITIES = ("phoenix", "palo alto", "san mateo", "boise", "portland", "bend", "seattle", "kent", "cheyenne")
_STATES = ("az", "ca", "id", "or", "wa", "wy")
_NAMES = ("vicky", "kate", "walter", "saul", "peter", "julie", "john", "luke")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple", "channel-1", "channel-22", "channel-333")


def logs(per_second: float, limit: int | None = None) -> tuple[hs.Rate, hs.Rate, hs.Rate]:
    """The logs of people, auctions and bids, of so many events a second in all; `limit` rounds of fifty, or no end."""

    def log(columns: str, share: int, rows: Any) -> hs.Rate:
        end = None if limit is None else limit * share
        start = START if limit is None else None
        rate = per_second * share / _ROUND
        made = Made(rows, per_second)
        return hs.Rate(rate, rows=made, columns=columns, limit=end, start=start)

    return log(PERSON, 1, people), log(AUCTION, _AUCTIONS, auctions), log(BID, _BIDS, bids)


def side_input(keys: int = 10_000) -> hs.Rate:
    """The side input of q13: a value for each key, all of them there from the beginning."""
    return hs.Rate(keys, rows=_values_of_keys, columns=SIDE_INPUT, limit=keys)


def _values_of_keys(offsets: Numbers, partition: int) -> dict[str, Any]:
    return {"key": offsets, "value": _text("value-", _draw(offsets, 9) % 1000)}


class Made:
    """What `hs.Rate` calls: the rows at some offsets. A class, so that it can travel to the workers."""

    def __init__(self, rows: Any, per_second: float) -> None:
        self._rows, self._per_second = rows, per_second

    def __call__(self, offsets: Numbers, partition: int) -> dict[str, Any]:
        columns: dict[str, Any] = self._rows(offsets, self._per_second)
        return columns


def people(offsets: Numbers, per_second: float) -> dict[str, Any]:
    number = offsets * _ROUND
    name, city, state = (_draw(number, salt) for salt in (1, 2, 3))
    return {
        "id": _FIRST_ID + offsets,
        "name": _one_of(_NAMES, name),
        "email_address": _text("mail-", number),
        "credit_card": _text("", _draw(number, 4) % 10**16),
        "city": _one_of(_CITIES, city),
        "state": _one_of(_STATES, state),
        "date_time": _time(number, per_second),
        "extra": _text("extra-", _draw(number, 5) % 1000),
    }


def auctions(offsets: Numbers, per_second: float) -> dict[str, Any]:
    number = offsets // _AUCTIONS * _ROUND + 1 + offsets % _AUCTIONS
    known = number // _ROUND + 1  # people so far
    hot = _draw(number, 1) % 10 == 0
    seller = np.where(hot, known - 1 - (known - 1) % 20, known - 1 - _draw(number, 2) % np.minimum(known, 500))
    first = _draw(number, 3) % 1000 + 1
    lasting = (_draw(number, 4) % 200 + 1) * int(1_000_000 * _ROUND / per_second)
    return {
        "id": _FIRST_ID + offsets,
        "item_name": _text("item-", _draw(number, 5) % 10_000),
        "description": _text("description-", number),
        "initial_bid": first,
        "reserve": first + _draw(number, 6) % 1000,
        "date_time": _time(number, per_second),
        "expires": _time(number, per_second, lasting),
        "seller": _FIRST_ID + seller,
        "category": 10 + _draw(number, 7) % 5,
        "extra": _text("extra-", _draw(number, 8) % 1000),
    }


def bids(offsets: Numbers, per_second: float) -> dict[str, Any]:
    number = offsets // _BIDS * _ROUND + 1 + _AUCTIONS + offsets % _BIDS
    opened = (number // _ROUND + 1) * _AUCTIONS  # auctions so far
    back = np.where(_draw(number, 1) % 2 == 0, _draw(number, 2) % 3, _draw(number, 3) % np.minimum(opened, 300))
    channel = _draw(number, 4)
    address = _text("https://www.nexmark.com/", _draw(number, 5) % 100)
    return {
        "auction": _FIRST_ID + opened - 1 - back,
        "bidder": _FIRST_ID + _draw(number, 6) % (number // _ROUND + 1),
        "price": np.floor(10 ** (_draw(number, 7) % 700 / 100.0)).astype(np.int64) + _draw(number, 8) % 1000,
        "channel": _one_of(_CHANNELS, channel),
        "url": [f"{url}/a/b/item.htm?query=1&channel_id={n % 9}" for url, n in zip(address, channel, strict=True)],
        "date_time": _time(number, per_second),
        "extra": _text("extra-", number),
    }


def _draw(number: Numbers, salt: int) -> Numbers:
    """A number of 62 bits that looks random: splitmix64."""
    with np.errstate(over="ignore"):
        mixed = (number.astype(np.uint64) + np.uint64(salt * 0x632BE5AB)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(2)).astype(np.int64)


def _time(number: Numbers, per_second: float, later: Numbers | int = 0) -> pa.Array:
    return pa.array(_START + (number * (1_000_000 / per_second)).astype(np.int64) + later).cast(
        pa.timestamp("us", "UTC")
    )


def _one_of(words: tuple[str, ...], number: Numbers) -> list[str]:
    return [words[place] for place in (number % len(words)).tolist()]


def _text(prefix: str, number: Numbers) -> list[str]:
    return [f"{prefix}{value}" for value in number.tolist()]
