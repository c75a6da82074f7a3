"""`hs.Kafka`: topics as a log, and a topic as a sink.

As a sink it writes every commit in one transaction together with the commit's number, so that a `read_committed`
consumer sees every row once, and the rows of a key in the order of commits. The changes of a table are records by key:
the new row, or a tombstone. `spouts/kafka/source.py` is the reading half.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow.compute as pc

from hailstorm.errors import SinkError
from hailstorm.sinks.kafka.producer import Transactions
from hailstorm.sinks.kafka.rows import Records, Shape, records
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Rejected
from hailstorm.spouts.kafka.source import KafkaLog


@dataclass(frozen=True)
class Kafka(KafkaLog):
    """Beside what `KafkaLog` says, for the sink: `key` names the columns that become the record's key (a table's
    are known), `headers` maps names of headers to columns, `partition` names a column with the partition's number.
    `cursor_topic` is where all sinks of a cluster keep how far they are; it is made when it is missing.
    """

    key: str | Sequence[str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: str | None = None
    cursor_topic: str = "hailstorm_cursors"
    keeps_cursor: ClassVar[bool] = True
    forgets: ClassVar[bool] = False
    _session: Session[Transactions] = field(default_factory=Session, init=False, repr=False, compare=False)

    def open(self, delivery: Delivery) -> None:
        if not isinstance(self.topic, str):
            raise SinkError(14, f"sink '{delivery.sink}' needs one topic to write to, not several and no pattern")
        self._shape.check(delivery)
        transactions = Transactions(self.cluster, self.topic, self.cursor_topic, delivery)
        try:
            transactions.open()
        except BaseException:
            transactions.close()
            raise
        self._session.begin(transactions)

    def cursor(self) -> Cursor | None:
        return self._session.get().cursor

    def deliver(self, parcel: Parcel) -> None:
        self.deliver_together([parcel])

    def deliver_together(self, parcels: Sequence[Parcel]) -> None:
        session = self._session.get()
        new = [parcel for parcel in parcels if not session.delivery.has_got(session.cursor, parcel)]
        if new:
            session.write(new[-1].commit, itertools.chain.from_iterable(self._records(session, one) for one in new))

    def _records(self, session: Transactions, parcel: Parcel) -> Iterator[Records]:
        """What to write, piece by piece; rows of which there is no record are rejected at the end."""
        rejected: list[Rejected] = []
        for first, rows in parcel.numbered():
            if self.partition is not None:
                session.look_for_partition(pc.max(rows[self.partition]).as_py())
            found = records(rows, session.delivery, self._shape, session.largest, session.partitions)
            rejected += [Rejected(first + one.row, one.reason) for one in found.rejected]
            yield found
        if rejected:
            session.delivery.reject(parcel.commit, rejected)

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.close()

    def describe(self) -> Mapping[str, Any]:
        sink = {"key": list(self._shape.key), "headers": dict(self.headers), "partition": self.partition}
        return {**super().describe(), **{name: value for name, value in sink.items() if value}}

    @property
    def _shape(self) -> Shape:
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key or ())
        return Shape(key, self.headers, self.partition)
