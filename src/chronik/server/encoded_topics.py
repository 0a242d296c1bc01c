"""Topics as Metadata answers show them, encoded once for each version that clients ask in.

A client that asks for all topics gets thousands of them, most of which did not change since the
last client asked. A topic of the image is immutable, so that what was encoded from it holds as
long as the image has that same object and the same brokers are online. While no topic changes at
all, the whole list is one piece of bytes, however many clients wait for it.

Partitions are alike, too: of nine thousand with three replicas on three brokers only some dozens
differ. So the first answer after a start costs little more than the names.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from chronik.metadata.image import Image, Topic
from chronik.metadata.records import NO_LEADER, PartitionRecord
from chronik.protocol.apis import METADATA
from chronik.protocol.codec import encode
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FORMS_MAX: Final = 6  # versions and flags that are kept: one for each kind of client at work
SLICE_PARTITIONS: Final = 1_000  # encoded in one turn of the loop: 2 ms, or 5 if none are alike
ALIKE_MAX: Final = 10_000  # kinds of partition that are remembered: a megabyte

_Form = tuple[int, int, frozenset[int]]  # version, operations, brokers that are online


class Joined:
    """The bytes of many elements in one piece, as the codec takes a list of encoded ones."""

    __slots__ = ("_count", "_data")

    def __init__(self, elements: list[bytes]) -> None:
        self._count = len(elements)
        self._data = b"".join(elements)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return iter((self._data,) if self._count else ())


class _Encoded:
    """What is encoded in one form."""

    __slots__ = ("_flexible", "_form", "_joined", "_joined_of", "_known", "_partitions")

    def __init__(self, form: _Form) -> None:
        self._form = form
        self._flexible = METADATA.is_flexible(form[0])
        self._known: dict[bytes, tuple[Topic, bytes]] = {}
        self._partitions: dict[tuple[Any, ...], bytes] = {}
        self._joined: Joined | None = None
        self._joined_of: object = None  # the topics of the image that they are

    def prepare(self, image: Image) -> bool:
        if self._joined_of is image.topics:
            return True
        known = self._known
        left = SLICE_PARTITIONS
        for topic in image.topics.values():
            entry = known.get(topic.id)
            if entry is not None and entry[0] is topic:
                continue
            if left <= 0:
                return False
            left -= len(topic.partitions)
            known[topic.id] = (topic, self._topic(topic))
        return True

    def _topic(self, topic: Topic) -> bytes:
        version, operations, online_ids = self._form
        partitions = [self._partition(each) for each in topic.partitions]
        described = described_topic(topic, operations, online_ids, partitions)
        return encode(described, version, self._flexible)

    def _partition(self, partition: PartitionRecord) -> bytes:
        key = (
            partition.partition,
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
        )
        found = self._partitions.get(key)
        if found is None:
            if len(self._partitions) >= ALIKE_MAX:
                self._partitions.clear()
            version, _, online_ids = self._form
            found = encode(described_partition(partition, online_ids), version, self._flexible)
            self._partitions[key] = found
        return found

    def joined(self, image: Image) -> Joined:
        if self._joined is None or self._joined_of is not image.topics:
            known = self._known
            if len(known) > len(image.topics):
                for topic_id in [each for each in known if each not in image.topic_names]:
                    del known[topic_id]
            self._joined = Joined([known[topic.id][1] for topic in image.topics.values()])
            self._joined_of = image.topics
        return self._joined


class EncodedTopics:
    """The encoded topics of an image, by form."""

    def __init__(self) -> None:
        self._forms: OrderedDict[_Form, _Encoded] = OrderedDict()

    def prepare(self, image: Image, version: int, operations: int) -> bool:
        """Encode some of what is missing; True once nothing is."""
        return self._form(image, version, operations).prepare(image)

    def topics(self, image: Image, version: int, operations: int) -> list[MetadataResponseTopic]:
        """All topics, once they are prepared."""
        joined = self._form(image, version, operations).joined(image)
        return cast(list[MetadataResponseTopic], joined)

    def _form(self, image: Image, version: int, operations: int) -> _Encoded:
        form = (version, operations, image.online_ids)
        encoded = self._forms.get(form)
        if encoded is None:
            encoded = self._forms[form] = _Encoded(form)
            if len(self._forms) > FORMS_MAX:
                self._forms.popitem(last=False)
        self._forms.move_to_end(form)
        return encoded


def described_topic(
    topic: Topic,
    operations: int,
    online_ids: frozenset[int],
    partitions: list[bytes] | None = None,
) -> MetadataResponseTopic:
    """A topic as Metadata shows it; its partitions may be encoded already."""
    described: Sequence[object] = partitions or [
        described_partition(each, online_ids) for each in topic.partitions
    ]
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=cast(Sequence[MetadataResponsePartition], described),
        topic_authorized_operations=operations,
    )


def described_partition(
    partition: PartitionRecord, online_ids: frozenset[int]
) -> MetadataResponsePartition:
    """A partition as Metadata shows it."""
    return MetadataResponsePartition(
        error_code=leader_error(partition),
        partition_index=partition.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=[each for each in partition.replicas if each not in online_ids],
    )


def leader_error(partition: PartitionRecord) -> ErrorCode:
    """Whether there is anybody to write to and read from."""
    is_led = partition.leader != NO_LEADER
    return ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE
