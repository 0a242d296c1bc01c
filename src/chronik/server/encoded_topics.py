"""Topics as Metadata answers show them, encoded once for each version that clients ask in.

A client that asks for all topics gets thousands of them, most of which did not change since the
last client asked. A topic of the image is immutable, so that what was encoded from it holds as
long as the image has that same object and the same brokers are online.
"""

from collections import OrderedDict
from typing import Final, cast

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
SLICE_PARTITIONS: Final = 1_000  # encoded in one turn of the loop: about 5 ms

_Form = tuple[int, int, frozenset[int]]  # version, operations, brokers that are online
_Known = dict[bytes, tuple[Topic, bytes]]


class EncodedTopics:
    """The encoded topics of an image, by form."""

    def __init__(self) -> None:
        self._forms: OrderedDict[_Form, _Known] = OrderedDict()

    def prepare(self, image: Image, version: int, operations: int) -> bool:
        """Encode some of what is missing; True once nothing is."""
        known = self._known((version, operations, image.online_ids))
        flexible = METADATA.is_flexible(version)
        left = SLICE_PARTITIONS
        for topic in image.topics.values():
            entry = known.get(topic.id)
            if entry is not None and entry[0] is topic:
                continue
            if left <= 0:
                return False
            left -= len(topic.partitions)
            encoded = encode(
                described_topic(topic, operations, image.online_ids), version, flexible
            )
            known[topic.id] = (topic, encoded)
        return True

    def topics(self, image: Image, version: int, operations: int) -> list[MetadataResponseTopic]:
        """All topics; the codec takes encoded elements where a message has a list."""
        known = self._known((version, operations, image.online_ids))
        if len(known) > len(image.topics):
            for topic_id in [each for each in known if each not in image.topic_names]:
                del known[topic_id]
        encoded = [known[topic.id][1] for topic in image.topics.values()]
        return cast(list[MetadataResponseTopic], encoded)

    def _known(self, form: _Form) -> _Known:
        known = self._forms.setdefault(form, {})
        self._forms.move_to_end(form)
        if len(self._forms) > FORMS_MAX:
            self._forms.popitem(last=False)
        return known


def described_topic(
    topic: Topic, operations: int, online_ids: frozenset[int]
) -> MetadataResponseTopic:
    """A topic as Metadata shows it."""
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(partition, online_ids) for partition in topic.partitions],
        topic_authorized_operations=operations,
    )


def _partition(partition: PartitionRecord, online_ids: frozenset[int]) -> MetadataResponsePartition:
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
