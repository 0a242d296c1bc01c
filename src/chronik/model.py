"""The words that every layer shares: ids and the few constants of Kafka's world."""

from typing import Final, NamedTuple, NewType

NodeId = NewType("NodeId", int)
TopicId = NewType("TopicId", bytes)  # 16 bytes, as on the wire
Offset = NewType("Offset", int)

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1


class TopicPartition(NamedTuple):
    """A partition as clients name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
