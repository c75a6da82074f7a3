"""Which topics a Kafka log reads, and how their partitions are numbered.

A clock knows partitions by one number. Partition p of the log's topic number t is `t * 10_000 + p`, so the partitions
of the first topic, and of a log with one topic, have the numbers that Kafka gives them. Which topic has which number
is the roster. It only grows, and the ledger remembers it together with Kafka's own ids of the topics: so a topic
that was deleted and made again is seen to be another one, and is never read at the old one's offsets.
docs/decisions/0030-kafka.md says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hailstorm.errors import LogError

MOST_PARTITIONS = 10_000  # of one topic


@dataclass(frozen=True)
class Topic:
    """A topic as a roster knows it. The id is Kafka's, made with the topic; empty when nobody has asked yet."""

    name: str
    id: str = ""


@dataclass(frozen=True)
class Roster:
    """The topics of a log by number. Numbers are never given twice."""

    topics: tuple[Topic, ...] = ()

    @staticmethod
    def of_json(known: Mapping[str, str]) -> Roster:
        """From `{"0": "orders:4x2…"}`, as a commit holds it. A topic's name has no colon."""
        texts = (known[str(number)].partition(":") for number in range(len(known)))
        return Roster(tuple(Topic(name, id) for name, _, id in texts))

    def to_json(self) -> dict[str, str]:
        return {str(number): f"{topic.name}:{topic.id}" for number, topic in enumerate(self.topics)}

    def extended(self, found: Mapping[str, str], accept_loss: bool = False) -> Roster:
        """With the topics that are there now (name -> id) and have no number yet, in their order.

        Raises LogError when a topic is gone, or its name now belongs to another one. With `accept_loss` what it still
        held is lost, and a number waits for the topic that may get its name.
        """
        topics = list(self.topics)
        for name in self.gone(found):
            if not accept_loss:
                raise LogError(
                    39,
                    f"topic '{name}' was deleted since it was last read",
                    hint="What it held and nobody had read is lost.\n"
                    "To go on without it, and read it from its beginning when it is made again: "
                    "--on-data-loss continue",
                )
            topics.append(Topic(name))
        for name, id in found.items():
            same_name = [number for number, topic in enumerate(topics) if topic.name == name]
            if any(topics[number].id == id for number in same_name):
                continue
            unseen = [number for number in same_name if not topics[number].id]
            if unseen:
                topics[unseen[0]] = Topic(name, id)
            elif same_name and not accept_loss:
                raise LogError(
                    36,
                    f"topic '{name}' was deleted and made again since it was last read",
                    hint="Its offsets begin anew, so what was read of the old topic says nothing about this one.\n"
                    "To read the new topic from its beginning and count the old one's rest as lost: "
                    "--on-data-loss continue",
                )
            else:
                topics.append(Topic(name, id))
        return Roster(tuple(topics))

    def gone(self, found: Collection[str]) -> list[str]:
        """The names of topics that were read and are not there now, except where that has been accepted."""
        newest = {topic.name: topic.id for topic in self.topics}
        return [name for name, id in newest.items() if id and name not in found]

    def number(self, name: str, id: str) -> int:
        return self.topics.index(Topic(name, id))

    def place(self, partition: int) -> tuple[str, int]:
        """The topic and its own partition, of a partition of the log."""
        number, own = divmod(partition, MOST_PARTITIONS)
        if number >= len(self.topics) or partition < 0:
            raise LogError(13, f"this Kafka log has no partition {partition}: it has {len(self.topics)} topics")
        return self.topics[number].name, own


def numbered(number: int, topic: str, partition: int) -> int:
    if partition >= MOST_PARTITIONS:
        raise LogError(37, f"topic '{topic}' has more than {MOST_PARTITIONS} partitions, more than a clock can name")
    return number * MOST_PARTITIONS + partition
