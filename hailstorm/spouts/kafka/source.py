"""Topics of Kafka as a log: what the driver asks. `kafka_reader` reads the ranges, inside Spark tasks.

`KafkaLog` is the reading half of `hs.Kafka`; `sinks/kafka/` adds the writing half. It opens nothing until it is asked
something, and what it opens stays with the process: a log is a value, and its copies share the connections.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from hailstorm.errors import Location, LogError, TopologyError
from hailstorm.spouts.kafka.ahead import follow, taken_ahead
from hailstorm.spouts.kafka.client import PATIENCE, Cluster, load, load_admin
from hailstorm.spouts.kafka.reader import in_batches, read_range
from hailstorm.spouts.roster import Known, Roster, numbered

Start = str | datetime | Mapping[Any, Any]

_REFRESH = 5.0  # seconds after which new topics and partitions are looked for
_SETTLING = 2.0  # seconds after which a topic that is not listed is believed to be gone


@dataclass(frozen=True)
class _Layout:
    """What is in the cluster: id and number of partitions of each topic."""

    ids: Mapping[str, str]
    partitions: Mapping[str, int]
    at: float


@dataclass(frozen=True)
class KafkaLog:
    """One topic, several (`["a", "b"]`), or all whose whole name fits `pattern`.

    `start` says where a topology begins that has read nothing yet: "earliest", "latest", a time, or offsets
    (`{0: 120}`, with several topics `{"orders": {0: 120}}`); partitions that appear later are read from their
    beginning. `options` are librdkafka's settings, with secrets as `${env:NAME}`. With `group`, committed offsets are
    also written to that consumer group, for other people's dashboards; nothing is read from there. `metadata=True`
    lets the schema have the columns kafka_topic, kafka_partition and kafka_headers.
    """

    topic: str | Sequence[str] | None = None
    _: KW_ONLY
    servers: str
    pattern: str | None = None
    start: Start = "earliest"
    group: str | None = None
    metadata: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    remembered: Mapping[str, str] = field(default_factory=dict, repr=False)
    spout: str = field(default="SPOUT", repr=False, compare=False)  # for messages

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.pattern is None) or self.topic == []:
            what = "Kafka needs a topic, several topics, or a pattern=, and only one of these"
            raise TopologyError(60, what, at=Location.of_caller())
        for name in self.topics:
            if not re.fullmatch(r"[\w.-]{1,249}", name, re.ASCII) or name in (".", ".."):
                hint = "Kafka allows a-z A-Z 0-9 . _ -"
                raise TopologyError(61, f"'{name}' cannot be the name of a topic", at=Location.of_caller(), hint=hint)
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                what = f"pattern={self.pattern!r} is not a regular expression: {error}"
                raise TopologyError(62, what, at=Location.of_caller()) from None
        _moment(self.start)

    # --- the source's protocol

    @property
    def columns(self) -> None:
        return None

    @property
    def has_time(self) -> bool:
        return True

    def earliest(self) -> dict[int, int]:
        return self._offsets("earliest")

    def latest(self) -> dict[int, int]:
        """The last stable offsets: what is in an open transaction is not there yet."""
        return self._offsets("latest")

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        place = self._place(partition)
        taken = taken_ahead(self.cluster, place, start, end) if start < end else None
        if taken is not None:
            return in_batches(taken, *place, self.metadata)
        return read_range(self.cluster, *place, start, end, self.metadata)

    def follow(self, positions: Mapping[int, int], wake: Callable[[], None]) -> dict[int, int]:
        numbers = {self._place(number): number for number in positions}
        found = follow(self.cluster, {place: positions[number] for place, number in numbers.items()}, wake)
        return {numbers[place]: position for place, position in found.items()}

    def size(self, partition: int, start: int, end: int) -> None:
        return None

    def resolve(self, folder: Path) -> Self:
        return self

    def describe(self) -> Mapping[str, Any]:
        """Neither servers nor options: a cluster may move, and topics are told apart by their ids."""
        return {
            "kafka": self.pattern if self.topic is None else list(self.topics),
            "metadata": self.metadata,
            "isolation": "read_uncommitted" if self._uncommitted else "read_committed",
        }

    # --- what the negotiator may ask of a log beyond the protocol

    def beginning(self, first: bool) -> dict[int, int]:
        """`start` counts when a topology starts for the first time. What appears later is read from its beginning."""
        return self._offsets(self.start) if first else self.earliest()

    def roster(self, accept: bool = False) -> dict[str, str]:
        """The topics by number, with their ids. It grows when topics appear.

        Raises LogError when a topic was deleted, or deleted and made again, unless the loss is accepted.
        """
        found = self._layout().ids
        if not accept:
            self._refuse_loss(found)
        return self._remember(self._roster().extended(found)).to_json()

    def remembering(self, roster: Mapping[str, str], spout: str = "") -> Self:
        """This log with the topics numbered as a commit says. Tasks must be given this copy."""
        return replace(self, remembered=dict(roster), spout=spout or self.spout)

    def committed(self, offsets: Mapping[int, int]) -> None:
        """Tell the consumer group how far the ledger is. Called after a commit; the ledger alone counts for us."""
        if self.group is None or not offsets:
            return
        library = load()
        places = [library.TopicPartition(*self._place(p), offset) for p, offset in offsets.items()]
        told = [library.ConsumerGroupTopicPartitions(self.group, places)]
        self.cluster.asked(
            f"consumer group '{self.group}'",
            lambda admin: admin.alter_consumer_group_offsets(told, request_timeout=PATIENCE),
            PATIENCE,
        )

    # --- inside

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic,) if isinstance(self.topic, str) else tuple(self.topic or ())

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.servers, self.options)

    @property
    def _uncommitted(self) -> bool:
        return bool(self.options.get("isolation.level") == "read_uncommitted")

    @property
    def _who(self) -> str:
        named = f"topics like '{self.pattern}'" if self.topic is None else ", ".join(map("'{}'".format, self.topics))
        return f"Kafka ({named} at {self.cluster.cleaned(self.servers)})"

    def _place(self, partition: int) -> tuple[str, int]:
        if not self.remembered and self.topic is None:
            raise LogError(38, f"the topics like '{self.pattern}' have no numbers yet", hint="See `remembering`.")
        roster = self._roster()
        known, own = roster.place(partition)
        if any(later.name == known.name for later in roster.logs[roster.logs.index(known) + 1 :]):
            raise LogError(
                36, f"partition {partition} is of a topic '{known.name}' that was deleted; there is another now"
            )
        return known.name, own

    def _roster(self) -> Roster:
        if self.remembered:
            return Roster.of_json(self.remembered)
        return _rosters.get(self._identity(), Roster(tuple(map(Known, self.topics))))

    def _remember(self, roster: Roster) -> Roster:
        _rosters[self._identity()] = roster
        return roster

    def _identity(self) -> str:
        return repr((self.cluster.identity(), self.topics, self.pattern))

    def _offsets(self, start: Start) -> dict[int, int]:
        library, specs = load(), load_admin().OffsetSpec
        places, moment = self._places(), _moment(start)
        if moment is not None:
            spec = specs.for_timestamp(round(moment.timestamp() * 1000))
        else:
            spec = specs.latest() if start == "latest" else specs.earliest()
        levels = library.IsolationLevel
        level = levels.READ_UNCOMMITTED if self._uncommitted else levels.READ_COMMITTED
        asked = {library.TopicPartition(topic, own): spec for topic, own in places.values()}
        if not asked:
            return {}
        found = self.cluster.offsets(self._who, asked, level, PATIENCE)
        offsets = {number: found[place] for number, place in places.items()}
        if moment is not None and -1 in offsets.values():  # nothing is as young as that
            latest = self._offsets("latest")
            offsets = {number: latest[number] if offset < 0 else offset for number, offset in offsets.items()}
        return offsets if isinstance(start, str | datetime) else self._given(start, places, offsets)

    def _given(
        self, start: Mapping[Any, Any], places: Mapping[int, tuple[str, int]], earliest: Mapping[int, int]
    ) -> dict[int, int]:
        """The offsets that the user gave; partitions that are not named begin at their beginning."""
        wanted = {
            (topic, own): offset
            for topic, offsets in start.items()
            if isinstance(offsets, Mapping)
            for own, offset in offsets.items()
        }
        given = {n: int(wanted.get(place, start.get(place[1], earliest[n]))) for n, place in places.items()}
        latest = self.latest()
        for number, offset in given.items():
            if not earliest[number] <= offset <= latest[number]:
                topic, own = places[number]
                raise LogError(
                    63,
                    f"start= names offset {offset} of partition {own} of topic '{topic}', which is not there",
                    hint=f"It has the offsets {earliest[number]} to {latest[number]} now.",
                )
        return given

    def _places(self) -> dict[int, tuple[str, int]]:
        """Every partition that is there now, by its number."""
        layout = self._layout()
        roster = self._roster()
        self._refuse_loss(layout.ids)
        if self.remembered:
            # New topics wait until they are remembered: the numbers of this copy are those of the tasks.
            ids = {name: id for name, id in layout.ids.items() if Known(name, id) in roster.logs}
        else:
            roster, ids = self._remember(roster.extended(layout.ids)), dict(layout.ids)
        numbers = {name: roster.number(name, id) for name, id in ids.items()}
        return {
            numbered(numbers[name], name, own): (name, own) for name in ids for own in range(layout.partitions[name])
        }

    def _refuse_loss(self, found: Mapping[str, str]) -> None:
        """Raise LogError when a topic is gone, or its name now belongs to another one."""
        roster = self._roster()
        for name in roster.gone(found):
            raise LogError(
                39,
                f"topic '{name}' was deleted since it was last read",
                hint="What it held and nobody had read is lost.\n"
                f"To go on without it, and read it from its beginning when it is made again: --accept {self.spout}\n"
                "To do so whenever a topic is deleted: --on-data-loss continue",
            )
        for name in roster.replaced(found):
            raise LogError(
                36,
                f"topic '{name}' was deleted and made again since it was last read",
                hint="Its offsets begin at 0 again, so what was read of the old topic says nothing about this one.\n"
                "To read the new topic from its beginning and count the old one's rest as lost: "
                f"--accept {self.spout}\n"
                "To do so whenever that happens: --on-data-loss continue",
            )

    def _layout(self) -> _Layout:
        key, now = self._identity(), time.monotonic()
        with _lock:
            known = _layouts.get(key)
        if known is None or now - known.at > _REFRESH:
            known = self._ask(now)
            with _lock:
                _layouts[key] = known
        return known

    def _ask(self, now: float) -> _Layout:
        there = self._listed()
        if self.pattern is None:
            # What was there once is gone; what never was is asked for, and so complained about.
            seen = {known.name for known in self._roster().logs if known.id}
            names = [name for name in self.topics if name in there or name not in seen]
        else:
            names = [name for name in there if re.fullmatch(self.pattern, name) and not name.startswith("__")]
        if not names:
            return _Layout({}, {}, now)
        asked = load().TopicCollection(names)
        found = self.cluster.asked(
            self._who, lambda admin: admin.describe_topics(asked, request_timeout=PATIENCE), PATIENCE
        )
        return _Layout(
            {name: str(found[name].topic_id) for name in names},
            {name: len(found[name].partitions) for name in names},
            now,
        )

    def _listed(self) -> list[str]:
        """The names of all topics. One that seems to be gone is looked for again: a broker may just have started."""
        until = time.monotonic() + _SETTLING
        while True:
            there = self.cluster.topics(self._who, PATIENCE)
            if not self._roster().gone(there) or time.monotonic() > until:
                return there
            time.sleep(0.2)


_lock = threading.Lock()
_layouts: dict[str, _Layout] = {}
# The topics that this process has seen, so that one that is made again is noticed even where no ledger remembers.
_rosters: dict[str, Roster] = {}


def _moment(start: Start) -> datetime | None:
    """The time that `start` names, if it does."""
    if isinstance(start, Mapping) or start in ("earliest", "latest"):
        return None
    try:
        found = datetime.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        hint = 'start is "earliest", "latest", a time such as 2024-05-01T12:00:00Z, or offsets: {0: 120}.'
        what = f"start='{start}' is not a place in a log"
        raise TopologyError(63, what, at=Location.of_caller(), hint=hint) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
