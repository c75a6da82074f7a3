"""The queries, each a function that adds its steps to a topology and gives the step with the result.

`Events` has the three streams; a query that needs the newest row of each person or auction asks for the table. Result
columns are those of the query, next to what makes a row one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import hailstorm as hs
from hailstorm.algebra.monoid import AnyMonoid
from hailstorm.spouts.source import Source
from hailstorm.topology.stream import Stream
from hailstorm.topology.table import Table

PERSON = (
    "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP, extra STRING"
)
AUCTION = (
    "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, date_time TIMESTAMP, "
    "expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING"
)
SIDE_INPUT = "key BIGINT, value STRING"
BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP, extra STRING"
# A bid has no number of its own.
BID_KEY = ("auction", "bidder", "date_time", "extra", "price")
_BANDS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
_TEN_SECONDS = "timestamp_seconds(floor(unix_seconds(date_time) / 10) * 10 {})"


@dataclass
class Events:
    """The events of one topology: a stream comes to be when a query asks for it.

    `side_log` has keys and values, for q13.
    """

    storm: hs.Topology
    person_log: Source
    auction_log: Source
    bid_log: Source
    side_log: Source | None = None
    lateness: str = "4 seconds"

    @cached_property
    def person(self) -> Stream:
        return self._stream("person", self.person_log, PERSON)

    @cached_property
    def auction(self) -> Stream:
        return self._stream("auction", self.auction_log, AUCTION)

    @cached_property
    def bid(self) -> Stream:
        return self._stream("bid", self.bid_log, BID)

    @cached_property
    def arrivals(self) -> Stream:
        """The bids by the time at which they came: without `event_time` it is the log's own."""
        return self.storm.spout("bid_arrivals", self.bid_log, schema=BID)

    @cached_property
    def side_input(self) -> Table:
        assert self.side_log is not None, "q13 joins bids with a side input: Events(..., side_log=)"
        return self.storm.table("side_input", self.side_log, schema=SIDE_INPUT, key="key")

    def _stream(self, name: str, log: Source, schema: str) -> Stream:
        return self.storm.spout(name, log, schema=schema, event_time="date_time", lateness=self.lateness)

    @cached_property
    def people(self) -> Table:
        return self.person.table("people", key="id")

    @cached_property
    def auctions(self) -> Table:
        return self.auction.table("auctions", key="id")

    @cached_property
    def bids(self) -> Table:
        return self.bid.table("bids", key=BID_KEY)

    @cached_property
    def valid(self) -> Table:
        """Bids with their auction, which was open at the time."""
        joined = self.bids.join("of_auction", self.auctions, on={"auction": "id"}, suffix="_auction")
        return joined.where("valid", "date_time BETWEEN date_time_auction AND expires")

    @cached_property
    def closing(self) -> Table:
        """The highest valid bid of each auction."""
        return self.valid.fold("closing", by=["auction", "category"], final=hs.max("price"))

    @cached_property
    def counts(self) -> Table:
        """How many bids each auction has."""
        return self.bid.fold("counts", by="auction", n=hs.count())


def q0(events: Events) -> Stream:
    """Every bid."""
    return events.bid.select("q0", auction="auction", bidder="bidder", price="price", date_time="date_time")


def q1(events: Events) -> Stream:
    """Prices in euros."""
    euros = "CAST(price AS DECIMAL(19, 0)) * 0.908"
    return events.bid.select("q1", auction="auction", bidder="bidder", price=euros, date_time="date_time")


def q2(events: Events) -> Stream:
    """Bids on some auctions."""
    some = events.bid.where("some", "auction IN (1007, 1020, 2001, 2019, 2087)")
    return some.select("q2", auction="auction", price="price")


def q3(events: Events) -> Stream:
    """Who sells in category 10, in three states."""
    tens = events.auctions.where("tens", "category = 10")
    sold = tens.join("sold", events.people, on={"seller": "id"}, suffix="_seller")
    here = sold.where("here", "state IN ('or', 'id', 'ca')")
    return here.select("q3", name="name", city="city", state="state")


def q4(events: Events) -> Stream:
    """The average closing price of each category."""
    return events.closing.fold("q4", by="category", avg=hs.mean("final"))


def q5(events: Events) -> Stream:
    """The auctions with the most bids in the last ten seconds, every two."""
    hot = events.bid.window("10 seconds", every="2 seconds").fold("hot", by="auction", num=hs.count())
    most = hot.fold("most", by=["window_start", "window_end"], most=hs.max("num"))
    both = hot.join("hot_and_most", most, on=["window_start", "window_end"])
    return both.where("q5", "num = most")


class RunningMeans(hs.Monoid):
    """The mean of each price and the ten before it, in the order of time."""

    state = "ARRAY<STRUCT<at: TIMESTAMP, price: BIGINT>>"
    value = "ARRAY<DOUBLE>"

    def zero(self) -> list[dict[str, Any]]:
        return []

    def lift(self, at: datetime, price: int) -> list[dict[str, Any]]:
        return [{"at": at, "price": price}]

    def merge(self, one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted([*one, *other], key=lambda bid: (bid["at"], bid["price"]))

    def present(self, state: list[dict[str, int]]) -> list[float]:
        prices = [bid["price"] for bid in state]
        groups = [prices[max(0, place - 10) : place + 1] for place in range(len(prices))]
        return [sum(group) / len(group) for group in groups]


def q6(events: Events) -> Stream:
    """For each seller, the running mean of the lowest bids."""
    lowest = events.valid.fold("lowest", by=["auction", "seller"], bid=hs.min("struct(price, date_time)"))
    return lowest.fold("q6", by="seller", means=RunningMeans("bid.date_time", "bid.price"))


def q7(events: Events) -> Stream:
    """The highest bid of each ten seconds."""
    best = events.bid.window("10 seconds").fold("best", highest=hs.max("price"))
    placed = events.bids.select("placed", window_start=_TEN_SECONDS.format(""), window_end=_TEN_SECONDS.format("+ 10"))
    return placed.join("with_best", best, on=["window_start", "window_end"]).where("q7", "price = highest")


def q8(events: Events) -> Stream:
    """People who opened an auction within ten seconds of coming."""
    sellers = events.auction.window("10 seconds").fold("sellers", by="seller", opened=hs.count())
    came = events.people.select(
        "came", name="name", starttime=_TEN_SECONDS.format(""), endtime=_TEN_SECONDS.format("+ 10")
    )
    on = {"id": "seller", "starttime": "window_start", "endtime": "window_end"}
    return came.join("q8", sellers, on=on)


def q9(events: Events) -> Stream:
    """The winning bid of each auction."""
    best = "struct(price, -unix_micros(date_time) AS earlier, bidder, date_time AS bid_date_time)"
    winning = events.valid.fold("winning", by="auction", won=hs.max(best))
    flat = winning.select("won", bidder="won.bidder", price="won.price", bid_date_time="won.bid_date_time")
    return events.auctions.join("q9", flat, on={"id": "auction"})


def q10(events: Events) -> Stream:
    """Every bid with its date and time as text."""
    return events.bid.select(
        "q10",
        auction="auction",
        bidder="bidder",
        price="price",
        date_time="date_time",
        date="date_format(date_time, 'yyyy-MM-dd')",
        time="date_format(date_time, 'hh:mm')",
    )


def q11(events: Events) -> Stream:
    """How many bids each bidder makes in a session."""
    return events.bid.session("10 seconds").fold("q11", by="bidder", bids=hs.count())


def q12(events: Events) -> Stream:
    """How many bids each bidder makes in ten seconds of the clock on the wall.

    That is the time at which the log got them: a clock that is read while rows are processed would give other windows
    in a replay.
    """
    return events.arrivals.window("10 seconds").fold("q12", by="bidder", bids=hs.count())


def q13(events: Events) -> Stream:
    """Bids with what a side input says of them."""
    own = {name: name for name in ("auction", "bidder", "price", "date_time")}
    keyed = events.bid.select("keyed", columns={**own, "key": "auction % 10000"})
    return keyed.lookup("q13", events.side_input, on="key", how="inner")


def q14(events: Events) -> Stream:
    """Bids in a range of prices, with the time of day, and a count of letters."""
    euros = "CAST(price AS DECIMAL(19, 0)) * 0.908"
    dear = events.bid.where("dear", f"{euros} > 1000000 AND {euros} < 50000000")
    hour = "hour(date_time)"
    night = f"WHEN {hour} <= 6 OR {hour} >= 20 THEN 'nightTime'"
    day = f"CASE WHEN {hour} BETWEEN 8 AND 18 THEN 'dayTime' {night} ELSE 'otherTime' END"
    return dear.select(
        "q14",
        auction="auction",
        bidder="bidder",
        price=euros,
        bidTimeType=day,
        date_time="date_time",
        c_counts="length(extra) - length(replace(extra, 'c', ''))",
    )


def _in_bands(what: str, monoid: Callable[[str], AnyMonoid], column: str) -> dict[str, AnyMonoid]:
    bands = {f"{band}_{what}": monoid(f"IF({where}, {column}, NULL)") for band, where in _BANDS.items()}
    return {f"total_{what}": monoid(column), **bands}


def _everything() -> dict[str, AnyMonoid]:
    return {
        **_in_bands("bids", hs.count, "price"),
        **_in_bands("bidders", hs.count_distinct, "bidder"),
        **_in_bands("auctions", hs.count_distinct, "auction"),
    }


_WITH_DAY = {
    "day": "date_format(date_time, 'yyyy-MM-dd')",
    "minute": "date_format(date_time, 'hh:MM')",
    **{name: name for name in ("auction", "bidder", "price", "channel")},
}


def q15(events: Events) -> Stream:
    """Bids, bidders and auctions of each day, in three bands of price."""
    return events.bid.select("dated_15", columns=_WITH_DAY).fold("q15", by="day", columns=_everything())


def q16(events: Events) -> Stream:
    """The same by channel and day."""
    dated = events.bid.select("dated_16", columns=_WITH_DAY)
    return dated.fold("q16", by=["channel", "day"], columns={"minute": hs.max("minute"), **_everything()})


def q17(events: Events) -> Stream:
    """Each auction's day: bids in bands, and their prices."""
    prices = {
        "min_price": hs.min("price"),
        "max_price": hs.max("price"),
        "avg_price": hs.mean("price"),
        "sum_price": hs.sum("price"),
    }
    dated = events.bid.select("dated_17", columns=_WITH_DAY)
    return dated.fold("q17", by=["auction", "day"], columns={**_in_bands("bids", hs.count, "price"), **prices})


def q18(events: Events) -> Stream:
    """The last bid of each bidder on each auction; of equal ones the first by its key."""
    return events.bids.top("q18", 1, by="date_time", per=["bidder", "auction"])


def q19(events: Events) -> Stream:
    """The ten dearest bids of each auction."""
    return events.bids.top("q19", 10, by="price", per="auction")


def q20(events: Events) -> Stream:
    """Bids with their auction, of one category."""
    joined = events.bids.join("expanded", events.auctions, on={"auction": "id"}, suffix="_auction")
    return joined.where("q20", "category = 10")


def q21(events: Events) -> Stream:
    """Bids with the number of their channel."""
    known = " ".join(f"WHEN '{name}' THEN '{n}'" for n, name in enumerate(("apple", "google", "facebook", "baidu")))
    in_url = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
    number = f"CASE lower(channel) {known} ELSE {in_url} END"
    told = events.bid.select(
        "told", auction="auction", bidder="bidder", price="price", channel="channel", channel_id=number
    )
    return told.where("q21", "channel_id IS NOT NULL")


def q22(events: Events) -> Stream:
    """Bids with the folders of their address."""
    parts = {f"dir{place}": f"split_part(url, '/', {place + 3})" for place in (1, 2, 3)}
    own = {name: name for name in ("auction", "bidder", "price", "channel")}
    return events.bid.select("q22", columns={**own, **parts})


def q101(events: Events) -> Stream:
    """Every auction with its highest bid so far."""
    highest = events.bid.fold("highest", by="auction", current_highest_bid=hs.max("price"))
    return events.auctions.join("q101", highest, on={"id": "auction"}, how="left")


def _counted(events: Events, name: str, how: str = "inner") -> Table:
    return events.auctions.join(name, events.counts, on={"id": "auction"}, how=how)


def q102(events: Events) -> Stream:
    """Auctions with at least the average number of bids."""
    counted = _counted(events, "counted_102").select("average_of", item_name="item_name", n="n", one="1")
    mean = events.counts.select("ones", n="n", one="1").fold("mean", by="one", bids=hs.sum("n"), auctions=hs.count())
    return counted.join("with_mean", mean, on="one").where("q102", "n >= bids DIV auctions")


def q103(events: Events) -> Stream:
    """Auctions with at least twenty bids."""
    return _counted(events, "counted_103").where("q103", "n >= 20")


def q104(events: Events) -> Stream:
    """Auctions that are not among those with fewer than twenty bids."""
    return _counted(events, "counted_104", "left").where("q104", "n IS NULL OR n >= 20")


def q105(events: Events) -> Stream:
    """The thousand auctions with the most bids."""
    return _counted(events, "counted_105").top("q105", 1000, by="n")


def q106(events: Events) -> Stream:
    """The least closing price."""
    return events.closing.fold("q106", min_final=hs.min("final"))


QUERIES: dict[str, Callable[[Events], Stream]] = {
    query.__name__: query
    for query in (
        *(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
        *(q101, q102, q103, q104, q105, q106),
    )
}
