"""From the classic protocol to the consumer protocol and back, while the members go on reading.

The first member that comes with the consumer protocol turns a classic group into a consumer group
whose other members speak the classic protocol. When the last one leaves, the group turns back.
Epochs and generations are the same numbers, and assignments are carried over, so that members
notice nothing but an ordinary rebalance.

Everything here is decided, not done: records and groups are returned to `consumer`, which writes
them and tells the classic machine. Assignments name topics to classic members and ids to the
others; a topic that is gone is lost on the way, as it should be.
"""

from collections.abc import Collection, Mapping
from typing import Final

from chronik.coordinator.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from chronik.coordinator.consumer import records as log
from chronik.coordinator.consumer.change import metadata_hash
from chronik.coordinator.consumer.group import (
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
)
from chronik.coordinator.effects import Record
from chronik.coordinator.groups.records import GroupMetadataKey
from chronik.coordinator.groups.state import GroupConfig
from chronik.metadata.image import Image
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.consumer_protocol import (
    NEWEST_VERSION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)

POLICY: Final = "group.consumer.migration.policy"
UPGRADES: Final = ("upgrade", "bidirectional")
DOWNGRADES: Final = ("downgrade", "bidirectional")


def check_upgrade(group: ClassicGroup, config: GroupConfig) -> None:
    """GROUP_ID_NOT_FOUND if a member of the consumer protocol cannot join this group."""
    reason = None
    if config.text(POLICY) not in UPGRADES:
        reason = "online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > config.integer("group.consumer.max.size"):
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise _no_upgrade(group, reason)


def _no_upgrade(group: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.",
    )


def check_classic_join(group: ConsumerGroup, config: GroupConfig) -> None:
    """INCONSISTENT_GROUP_PROTOCOL if members of the classic protocol may not join this group."""
    if config.text(POLICY) == "disabled":
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Cannot join the consumer group {group.group_id} with the classic protocol because "
            "the group migration is disabled.",
        )


def upgrade(classic: ClassicGroup, image: Image) -> list[Record]:
    """Records that turn a classic group into a consumer group with the same members."""
    try:
        members = [_upgraded(classic, member, image) for member in classic.members.values()]
    except ProtocolError:
        raise _no_upgrade(classic, "the embedded consumer protocol is malformed") from None
    group_id = classic.group_id
    topics = {name for member in members for name in member.subscribed_topic_names}
    epoch = max(classic.generation_id, 0)
    records = [Record(GroupMetadataKey(group=group_id), None)]
    records += [log.member_record(group_id, member) for member in members]
    records.append(log.epoch_record(group_id, epoch, metadata_hash(topics, image)))
    records += [
        log.target_record(
            group_id,
            member.member_id,
            {topic: frozenset(each) for topic, each in member.assigned.items()},
        )
        for member in members
    ]
    records.append(log.target_epoch_record(group_id, epoch, 0))
    records += [log.current_record(group_id, member) for member in members]
    return records


def _upgraded(group: ClassicGroup, member: ClassicMember, image: Image) -> ConsumerMember:
    protocol = group.protocol_name or member.protocols[0][0]
    _, subscription = decode_subscription(member.metadata(protocol))
    epoch = max(group.generation_id, 0)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topic_names=frozenset(subscription.topics),
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
        member_epoch=epoch,
        previous_member_epoch=epoch,
        assigned={
            topic_id: dict.fromkeys(partitions, epoch)
            for topic_id, partitions in _assigned(group, member, image).items()
        },
    )


def _assigned(group: ClassicGroup, member: ClassicMember, image: Image) -> Mapping[bytes, set[int]]:
    if not member.assignment:
        return {}
    _, assignment = decode_assignment(member.assignment)
    if assignment.user_data:
        raise _no_upgrade(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or "
            "switch to a default assignor before re-attempting the upgrade",
        )
    return by_topic_id(assignment.assigned_partitions, image)


def by_topic_id(
    topics: Collection[ConsumerProtocolTopicPartition], image: Image
) -> dict[bytes, set[int]]:
    """Partitions that a classic member names, by the ids of their topics."""
    found: dict[bytes, set[int]] = {}
    for each in topics:
        topic = image.topics.get(each.topic)
        if topic is not None and each.partitions:
            found.setdefault(topic.id, set()).update(each.partitions)
    return found


def subscription_of(protocols: Collection[tuple[str, bytes]]) -> ConsumerProtocolSubscription:
    """What a classic member subscribes to, by its favourite protocol."""
    try:
        return decode_subscription(next(iter(protocols))[1])[1]
    except ProtocolError:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The subscription cannot be decoded."
        ) from None


def encoded_assignment(
    assignment: Mapping[bytes, Collection[int]], metadata: bytes, image: Image
) -> bytes:
    """An assignment for a classic member, in the version in which it subscribes."""
    topics = []
    for topic_id, partitions in assignment.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(
                ConsumerProtocolTopicPartition(topic=topic.name, partitions=sorted(partitions))
            )
    topics.sort(key=lambda each: each.topic)
    version = int.from_bytes(metadata[:2], "big")
    return encode_assignment(
        ConsumerProtocolAssignment(assigned_partitions=topics), min(version, NEWEST_VERSION)
    )


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], config: GroupConfig) -> bool:
    """Whether only classic members stay when these leave, and may have their group back."""
    staying = [each for each in group.members.values() if each.member_id not in leaving]
    return (
        bool(staying)
        and all(member.classic is not None for member in staying)
        and config.text(POLICY) in DOWNGRADES
        and len(staying) <= config.integer("group.max.size")
    )


def downgrade(
    group: ConsumerGroup, leaving: Collection[str], image: Image, now_ms: int
) -> ClassicGroup:
    """The classic group that this one becomes without these members."""
    staying = [each for each in group.members.values() if each.member_id not in leaving]
    classic = ClassicGroup(
        group_id=group.group_id,
        state=ClassicState.STABLE,
        state_timestamp_ms=now_ms,
        generation_id=group.group_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        leader_id=staying[0].member_id,
        members={member.member_id: _downgraded(member) for member in staying},
        static_members={
            member.instance_id: member.member_id
            for member in staying
            if member.instance_id is not None
        },
    )
    classic.protocol_name = classic.select_protocol()
    for member_id, member in classic.members.items():
        share = group.target.get(member_id, {})
        metadata = member.metadata(classic.protocol_name)
        member.assignment = encoded_assignment(share, metadata, image)
    return classic


def _downgraded(member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=member.classic.protocols,
    )
