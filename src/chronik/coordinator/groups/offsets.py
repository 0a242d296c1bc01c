"""Committed offsets: what OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete do.

Who may commit depends on the group: members in their generation or epoch, anybody while it has no
members. Offsets for a group that nobody knows make one that holds only offsets.

A request that is refused as a whole raises KafkaError, before anything has changed: its handler
knows how such an answer looks in which version.

How long offsets stay is decided by `offset_retention`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from chronik.coordinator.classic.group import ClassicGroup, ClassicState
from chronik.coordinator.classic.rebalance import arm_session
from chronik.coordinator.consumer.checks import check_commit, check_fetch
from chronik.coordinator.consumer.group import ConsumerGroup
from chronik.coordinator.effects import Caller, Effects, ProducerStamp, Token
from chronik.coordinator.groups.offset_retention import forget, is_of, is_subscribed
from chronik.coordinator.groups.records import OffsetCommitKey, OffsetCommitValue
from chronik.coordinator.groups.state import GroupState
from chronik.metadata.image import Topic
from chronik.model import NO_TIMESTAMP, TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from chronik.protocol.schema import NO_UUID

TOPIC_ID_VERSION = 10  # of OffsetCommit and OffsetFetch: topics are named by their ids
MEMBER_EPOCH_VERSION = 9  # of OffsetCommit: clients know of groups that are not found
NO_OFFSET = -1
TIMESTAMP_MAX = 2**63 - 1


class Offsets:
    """The committed offsets of one shard."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    # OffsetCommit.

    def commit(
        self, request: OffsetCommitRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """Store where members, or somebody without membership, will go on."""
        self._check_commit(request, caller.version, now_ms)
        expires_ms = NO_TIMESTAMP
        if request.retention_time_ms >= 0:
            # "For ever" is the greatest number that there is, and the record has room for no more.
            expires_ms = min(now_ms + request.retention_time_ms, TIMESTAMP_MAX)
        metadata_max = self._state.config.integer("offset.metadata.max.bytes")
        effects = Effects()
        by_id = caller.version >= TOPIC_ID_VERSION
        topics = []
        for each in request.topics:
            image = self._state.image
            topic = image.topic_by_id(each.topic_id) if by_id else image.topics.get(each.name)
            results = []
            for partition in each.partitions:
                error_code = _commit_error(topic, partition, metadata_max, by_id)
                if topic is not None and error_code is ErrorCode.NONE:
                    timestamp_ms = partition.commit_timestamp
                    if timestamp_ms == NO_TIMESTAMP:
                        timestamp_ms = now_ms
                    value = _value(topic, partition, timestamp_ms, expires_ms)
                    self._write(effects, request.group_id, topic.name, partition, value, None)
                results.append(
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error_code
                    )
                )
            topics.append(
                OffsetCommitResponseTopic(
                    name=each.name, topic_id=each.topic_id, partitions=results
                )
            )
        effects.reply(token, OffsetCommitResponse(topics=topics))
        return effects

    def _check_commit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> None:
        group = self._state.groups.get(request.group_id)
        epoch = request.generation_id_or_member_epoch
        if group is None:
            if epoch >= 0:
                knows_groups = version >= MEMBER_EPOCH_VERSION
                raise KafkaError(
                    ErrorCode.GROUP_ID_NOT_FOUND if knows_groups else ErrorCode.ILLEGAL_GENERATION
                )
            return
        member_id, instance_id = request.member_id, request.group_instance_id
        if isinstance(group, ClassicGroup):
            group.check_commit(member_id, instance_id, epoch, is_transactional=False)
            if group.state in (ClassicState.STABLE, ClassicState.PREPARING_REBALANCE):
                # Whoever commits is alive.
                arm_session(self._state, group.group_id, group.members[member_id], now_ms)
            return
        partitions = self._partitions(request.topics, version >= TOPIC_ID_VERSION)
        check_commit(
            group,
            member_id,
            instance_id,
            epoch,
            version,
            is_transactional=False,
            partitions=partitions,
            image=self._state.image,
        )

    def _partitions(
        self, topics: Sequence[OffsetCommitRequestTopic], by_id: bool
    ) -> Iterator[TopicPartition]:
        for topic in topics:
            name = topic.name
            if by_id:
                name = self._state.image.topic_names.get(topic.topic_id, "")
            for partition in topic.partitions:
                yield TopicPartition(name, partition.partition_index)

    def _write(
        self,
        effects: Effects,
        group_id: str,
        topic: str,
        partition: Any,
        value: OffsetCommitValue,
        producer_id: int | None,
    ) -> None:
        index = partition.partition_index
        key = OffsetCommitKey(group=group_id, topic=topic, partition=index)
        effects.write(key, value)
        self.replay(key, value, producer_id)

    # TxnOffsetCommit.

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, caller: Caller, token: Token, now_ms: int
    ) -> Effects:
        """Store offsets that count once the transaction is committed."""
        self._check_transactional(request, caller.version)
        metadata_max = self._state.config.integer("offset.metadata.max.bytes")
        stamp = ProducerStamp(request.producer_id, request.producer_epoch)
        effects = Effects(producer=stamp)
        topics = []
        for each in request.topics:
            topic = self._state.image.topics.get(each.name)
            results = []
            for partition in each.partitions:
                error_code = _commit_error(topic, partition, metadata_max, by_id=False)
                if topic is not None and error_code is ErrorCode.NONE:
                    value = _value(topic, partition, now_ms, NO_TIMESTAMP)
                    self._write(
                        effects, request.group_id, each.name, partition, value, stamp.producer_id
                    )
                results.append(
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error_code
                    )
                )
            topics.append(TxnOffsetCommitResponseTopic(name=each.name, partitions=results))
        effects.reply(token, TxnOffsetCommitResponse(topics=topics))
        return effects

    def _check_transactional(self, request: TxnOffsetCommitRequest, version: int) -> None:
        _check_group_id(request.group_id)
        group = self._state.groups.get(request.group_id)
        member_id, instance_id = request.member_id, request.group_instance_id
        epoch = request.generation_id
        if group is None:
            if epoch >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            return
        if isinstance(group, ClassicGroup):
            group.check_commit(member_id, instance_id, epoch, is_transactional=True)
            return
        try:
            check_commit(
                group,
                member_id,
                instance_id,
                epoch,
                version,
                is_transactional=True,
                partitions=_transactional_partitions(request.topics),
                image=self._state.image,
            )
        except KafkaError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                # Producers know of generations only.
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from None
            raise

    def end_transaction(self, producer: ProducerStamp, committed: bool) -> None:
        """A marker was appended."""
        self._state.offsets.end_transaction(producer.producer_id, committed)

    # OffsetFetch.

    def fetch(
        self, request: OffsetFetchRequestGroup, caller: Caller, require_stable: bool, token: Token
    ) -> Effects:
        """Tell where a group will go on."""
        group = self._state.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            check_fetch(group, request.member_id, request.member_epoch)
        by_id = caller.version >= TOPIC_ID_VERSION
        if request.topics is None:
            topics = self._fetch_all(request.group_id, require_stable, by_id)
        else:
            topics = [
                self._fetch_topic(request.group_id, topic, require_stable, by_id)
                for topic in request.topics
            ]
        response = OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)
        return Effects(replies=[(token, response)])

    def _fetch_all(
        self, group_id: str, require_stable: bool, by_id: bool
    ) -> list[OffsetFetchResponseTopic]:
        found = []
        for name, partitions in self._state.offsets.groups.get(group_id, {}).items():
            topic = self._state.image.topics.get(name)
            if topic is None and by_id:
                continue  # It has just been deleted, and its id with it.
            found.append(
                OffsetFetchResponseTopic(
                    name=name,
                    topic_id=NO_UUID if topic is None else topic.id,
                    partitions=self._fetch_partitions(
                        group_id, name, topic, partitions, require_stable
                    ),
                )
            )
        return found

    def _fetch_topic(
        self, group_id: str, request: OffsetFetchRequestTopic, require_stable: bool, by_id: bool
    ) -> OffsetFetchResponseTopic:
        image = self._state.image
        topic = image.topic_by_id(request.topic_id) if by_id else image.topics.get(request.name)
        if topic is None and by_id:
            partitions = [
                _fetched(index, None, ErrorCode.UNKNOWN_TOPIC_ID)
                for index in request.partition_indexes
            ]
        else:
            name = request.name if topic is None else topic.name
            partitions = self._fetch_partitions(
                group_id, name, topic, request.partition_indexes, require_stable
            )
        return OffsetFetchResponseTopic(
            name=request.name, topic_id=request.topic_id, partitions=partitions
        )

    def _fetch_partitions(
        self,
        group_id: str,
        name: str,
        topic: Topic | None,
        indexes: Any,
        require_stable: bool,
    ) -> list[OffsetFetchResponsePartition]:
        offsets = self._state.offsets
        partitions = offsets.groups.get(group_id, {}).get(name, {})
        found = []
        for index in indexes:
            if require_stable and offsets.is_unstable(group_id, name, index):
                found.append(_fetched(index, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                continue
            committed = partitions.get(index)
            if committed is None or not is_of(committed.value, topic, or_gone=True):
                found.append(_fetched(index, None, ErrorCode.NONE))
            else:
                found.append(_fetched(index, committed.value, ErrorCode.NONE))
        return found

    # OffsetDelete.

    def delete(self, request: OffsetDeleteRequest, token: Token) -> Effects:
        """Forget offsets of topics that the group does not read."""
        _check_group_id(request.group_id)
        group = self._state.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if (
            isinstance(group, ClassicGroup)
            and not group.is_empty
            and not group.uses_consumer_protocol
        ):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        effects = Effects()
        topics = []
        for topic in request.topics:
            is_read = is_subscribed(group, topic.name)
            topics.append(self._delete_topic(effects, request.group_id, topic, is_read=is_read))
        response = OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)
        effects.reply(token, response)
        return effects

    def _delete_topic(
        self, effects: Effects, group_id: str, asked: OffsetDeleteRequestTopic, *, is_read: bool
    ) -> OffsetDeleteResponseTopic:
        results = []
        for partition in asked.partitions:
            index, error_code = partition.partition_index, ErrorCode.NONE
            if self._state.image.partition(asked.name, index) is None:
                error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_read:
                error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif self._state.offsets.values_of(group_id, asked.name, index):
                forget(self._state, effects, group_id, asked.name, index)
            results.append(
                OffsetDeleteResponsePartition(partition_index=index, error_code=error_code)
            )
        return OffsetDeleteResponseTopic(name=asked.name, partitions=results)

    # Replay.

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None
    ) -> None:
        """Apply a record; the first offset of a group that nobody knows makes the group."""
        if value is not None and key.group not in self._state.groups:
            self._state.groups[key.group] = ClassicGroup(group_id=key.group)
        self._state.offsets.apply(key, value, producer_id)


def _check_group_id(group_id: str) -> None:
    """Plain commits may name no group: clients older than groups do."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)


def _commit_error(topic: Topic | None, partition: Any, metadata_max: int, by_id: bool) -> ErrorCode:
    if topic is None:
        if by_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(partition.committed_metadata or "") > metadata_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _value(topic: Topic, partition: Any, timestamp_ms: int, expires_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=timestamp_ms,
        expire_timestamp=expires_ms,
        # A record with an expiry is of a version that has no room for the topic's id.
        topic_id=topic.id if expires_ms == NO_TIMESTAMP else NO_UUID,
    )


def _transactional_partitions(
    topics: Sequence[TxnOffsetCommitRequestTopic],
) -> Iterator[TopicPartition]:
    for topic in topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index)


def _fetched(
    index: int, value: OffsetCommitValue | None, error_code: ErrorCode
) -> OffsetFetchResponsePartition:
    if value is None:
        return OffsetFetchResponsePartition(
            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error_code
        )
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=error_code,
    )
