"""Groups as an administrator sees them: who is in them, how far they have read, how far behind.

Classic groups and consumer groups (KIP-848) are described in the same words. Offsets can be set
only while a group has no members: a running consumer would go on from its own position.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chronik.client.cluster import Cluster, check
from chronik.client.coordinators import Coordinators, KeyType
from chronik.client.offsets import LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.protocol.api import Api
from chronik.protocol.coordinator_apis import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from chronik.protocol.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from chronik.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
)
from chronik.protocol.schema import Message

LAST_VERSION_WITH_NAMES = 9  # of OffsetCommit and OffsetFetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member, what it reads now, and which topics it asks for by name."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    subscribed_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, its state and its members."""

    group_id: str
    kind: str  # classic or consumer
    state: str
    assignor: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a group has read one partition; None where nothing was committed."""

    partition: TopicPartition
    committed_offset: int | None
    end_offset: int
    metadata: str | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        if self.committed_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)


class Groups:
    """The administrator's requests about groups."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)

    async def all(self) -> list[ListedGroup]:
        """All groups of the cluster, by name."""
        await self._cluster.refresh(())

        async def ask(node_id: int) -> Sequence[ListedGroup]:
            link = await self._cluster.link(node_id)
            response: ListGroupsResponse = await link.send(
                ListGroupsRequest(), LIST_GROUPS, timeout_s=self._cluster.timeout_s
            )
            check(response.error_code, f"groups of node {node_id}")
            return response.groups

        async def ask_all() -> list[ListedGroup]:
            found = await asyncio.gather(*map(ask, self._cluster.brokers))
            return sorted((each for some in found for each in some), key=lambda g: g.group_id)

        return await self._cluster.retry(ask_all)

    async def describe(self, group_id: str) -> Group:
        """A group and its members, or GROUP_ID_NOT_FOUND."""
        described = await self._describe_consumer(group_id)
        if described is not None:
            return _consumer_group(described)
        request = DescribeGroupsRequest(groups=[group_id])
        response: DescribeGroupsResponse = await self._ask(
            group_id, request, DESCRIBE_GROUPS, lambda answer: answer.groups[0].error_code
        )
        (found,) = response.groups
        check(found.error_code, f"group {group_id}", found.error_message)
        if found.group_state == "Dead":
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return _classic_group(found)

    async def _describe_consumer(self, group_id: str) -> DescribedConsumerGroup | None:
        """The group if it is one of KIP-848, and its broker knows those."""
        request = ConsumerGroupDescribeRequest(
            group_ids=[group_id], include_authorized_operations=False
        )
        try:
            response: ConsumerGroupDescribeResponse = await self._ask(
                group_id,
                request,
                CONSUMER_GROUP_DESCRIBE,
                lambda answer: answer.groups[0].error_code,
            )
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return None
            raise
        (found,) = response.groups
        return None if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND else found

    async def committed(
        self, group_id: str, *, stable: bool = False
    ) -> dict[TopicPartition, tuple[int, str | None]]:
        """The committed offsets of a group, with the metadata that came with them.

        With `stable`, offsets of a transaction that is not yet ended are UNSTABLE_OFFSET_COMMIT.
        """
        asked = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        request = OffsetFetchRequest(
            group_id=group_id, topics=None, groups=[asked], require_stable=stable
        )
        response: OffsetFetchResponse = await self._ask(
            group_id, request, OFFSET_FETCH, _fetch_code, version_max=LAST_VERSION_WITH_NAMES
        )
        check(_fetch_code(response), f"group {group_id}")
        topics = response.groups[0].topics if response.groups else response.topics
        return _offsets(topics)

    async def positions(self, group_id: str) -> list[Position]:
        """How far the group has read each partition, and who reads it now."""
        group = await self.describe(group_id)
        committed = await self.committed(group_id)
        owners = {each: member for member in group.members for each in member.partitions}
        partitions = sorted({*committed, *owners})
        known = await self._existing(partitions)
        ends = await list_offsets(self._cluster, dict.fromkeys(known, LATEST)) if known else {}
        return [
            Position(
                partition=each,
                committed_offset=committed[each][0] if each in committed else None,
                end_offset=ends[each],
                metadata=committed[each][1] if each in committed else None,
                member=owners.get(each),
            )
            for each in known
        ]

    async def _existing(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions that are still there: topics may have been deleted."""
        names = sorted({each.topic for each in partitions})
        if not names:
            return []
        response = await self._cluster.refresh(names)
        counts = {
            topic.name: len(topic.partitions) for topic in response.topics if not topic.error_code
        }
        return [each for each in partitions if each.partition < counts.get(each.topic, 0)]

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's offsets from outside; the group must have no members."""
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (name, index), offset in offsets.items():
            asked = OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=""
            )
            by_topic.setdefault(name, []).append(asked)
        request = OffsetCommitRequest(
            group_id=group_id,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in by_topic.items()
            ],
        )
        response: OffsetCommitResponse = await self._ask(
            group_id, request, OFFSET_COMMIT, _commit_code, version_max=LAST_VERSION_WITH_NAMES
        )
        for topic in response.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, _commit_refusal(group_id, place, each.error_code))

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        response: DeleteGroupsResponse = await self._ask(
            group_id,
            DeleteGroupsRequest(groups_names=[group_id]),
            DELETE_GROUPS,
            lambda answer: answer.results[0].error_code,
        )
        (result,) = response.results
        check(result.error_code, f"group {group_id}")

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Forget offsets of topics that the group no longer reads."""
        by_topic: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for name, index in partitions:
            asked = OffsetDeleteRequestPartition(partition_index=index)
            by_topic.setdefault(name, []).append(asked)
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[OffsetDeleteRequestTopic(name=k, partitions=v) for k, v in by_topic.items()],
        )
        response: OffsetDeleteResponse = await self._ask(
            group_id, request, OFFSET_DELETE, lambda answer: answer.error_code
        )
        check(response.error_code, f"group {group_id}")
        return {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.error_code)
            for topic in response.topics
            for each in topic.partitions
        }

    async def _ask(
        self,
        group_id: str,
        request: Message,
        api: Api,
        code_of: Callable[[Any], int],
        version_max: int | None = None,
    ) -> Any:
        return await self._coordinators.ask(
            KeyType.GROUP, group_id, request, api, code_of, version_max=version_max
        )


def _fetch_code(response: OffsetFetchResponse) -> int:
    return response.groups[0].error_code if response.groups else response.error_code


def _commit_code(response: OffsetCommitResponse) -> int:
    codes = (each.error_code for topic in response.topics for each in topic.partitions)
    return next(codes, 0)


def _commit_refusal(group_id: str, place: TopicPartition, code: int) -> str:
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
        return f"group {group_id} has members: stop them first"
    return f"group {group_id}, {place}"


def _offsets(
    topics: Sequence[OffsetFetchResponseTopic],
) -> dict[TopicPartition, tuple[int, str | None]]:
    found = {}
    for topic in topics:
        for each in topic.partitions:
            place = TopicPartition(topic.name, each.partition_index)
            check(each.error_code, str(place))
            if each.committed_offset >= 0:
                found[place] = (each.committed_offset, each.metadata)
    return found


def _classic_group(found: DescribedGroup) -> Group:
    return Group(
        group_id=found.group_id,
        kind="classic",
        state=found.group_state,
        assignor=found.protocol_data,
        members=tuple(
            Member(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                partitions=_assigned(found.protocol_type, member.member_assignment),
                subscribed_topics=_subscribed(found.protocol_type, member.member_metadata),
            )
            for member in found.members
        ),
    )


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """What a classic member was assigned, if it is a consumer: others have their own format."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not assignment:
        return ()
    try:
        _, decoded = decode_assignment(assignment)
    except ProtocolError:
        return ()
    return tuple(
        TopicPartition(topic.topic, index)
        for topic in decoded.assigned_partitions
        for index in topic.partitions
    )


def _subscribed(protocol_type: str, metadata: bytes) -> tuple[str, ...]:
    """The topics of a classic member, which a group that is being assigned does not say."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not metadata:
        return ()
    try:
        return tuple(decode_subscription(metadata)[1].topics)
    except ProtocolError:
        return ()


def _consumer_group(found: DescribedConsumerGroup) -> Group:
    check(found.error_code, f"group {found.group_id}", found.error_message)
    return Group(
        group_id=found.group_id,
        kind="consumer",
        state=found.group_state,
        assignor=found.assignor_name,
        members=tuple(
            Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                partitions=tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
                subscribed_topics=tuple(member.subscribed_topic_names),
            )
            for member in found.members
        ),
    )
