"""Topics, settings and nodes: what an administrator asks of a cluster.

Every method raises KafkaError if the cluster refuses, with the cluster's own words where it gives
some. Answers are the wire's own messages: they are frozen and have Kafka's names.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from chronik.client.cluster import Cluster, check, check_topic, error_code
from chronik.client.link import ConnectionFailed
from chronik.client.offsets import list_offsets
from chronik.model import TopicPartition
from chronik.protocol.apis import (
    CHANGE_CLUSTER,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    INCREMENTAL_ALTER_CONFIGS,
    UNREGISTER_BROKER,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from chronik.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from chronik.protocol.messages.metadata import MetadataResponseTopic
from chronik.protocol.messages.quorum import (
    METADATA_TOPIC,
    NO_NODE,
    ChangeClusterRequest,
    ChangeClusterResponse,
    DescribeQuorumNode,
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    FollowerLag,
    PartitionCounts,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from chronik.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


class Resource(IntEnum):
    """What has settings, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a setting's value comes from, by Kafka's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


_SET: Final = 0
_DELETE: Final = 1
# A request that was refused so was certainly not carried out: it may be sent to somebody else.
_NOT_DONE: Final = frozenset({ErrorCode.NOT_CONTROLLER})


class Quorum(NamedTuple):
    """The metadata log as one node sees it, and the registered nodes."""

    log: DescribeQuorumPartition
    nodes: Sequence[DescribeQuorumNode]
    counts: PartitionCounts | None = None
    follower_lags: Sequence[FollowerLag] = ()

    @property
    def is_leaders(self) -> bool:
        """Whether it is the leader that says so; others know of nobody's log but their own."""
        return self.log.error_code == ErrorCode.NONE


QUORUM_REQUEST: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopic(
            topic_name=METADATA_TOPIC,
            partitions=[DescribeQuorumRequestPartition(partition_index=0)],
        )
    ],
    is_own_view=True,
)


def quorum_of(response: DescribeQuorumResponse) -> Quorum:
    """What a node says about the quorum, leader or not; KafkaError if it says nothing."""
    logs = [log for topic in response.topics for log in topic.partitions]
    if not logs:
        check(response.error_code, "quorum", response.error_message)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an answer without a quorum")
    if logs[0].error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
        check(logs[0].error_code, "quorum", logs[0].error_message)
    counts = response.counts[0] if response.counts else None
    return Quorum(logs[0], response.nodes, counts, response.follower_lags)


class Admin:
    """The administrator's requests, over a cluster's links."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._timeout_ms = int(cluster.timeout_s * 1000)

    async def topics(self, names: Iterable[str] | None = None) -> list[MetadataResponseTopic]:
        """The topics of these names, or all of them; sorted by name."""
        response = await self._cluster.refresh(names)
        for topic in response.topics:
            check_topic(topic.error_code, topic.name)
        return sorted(response.topics, key=lambda topic: topic.name or "")

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatableTopicResult:
        """Create a topic; -1 means the cluster's default."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
        )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._timeout_ms, validate_only=validate_only
        )

        async def ask() -> CreatableTopicResult:
            response: CreateTopicsResponse
            response = await self._cluster.send_to_controller(request, CREATE_TOPICS)
            (result,) = response.topics
            check(result.error_code, f"topic {name}", result.error_message)
            return result

        return await self._cluster.retry(ask, codes=_NOT_DONE)

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Delete topics; says for each why it could not be, or None."""
        found: dict[str, KafkaError | None] = {}

        async def ask() -> None:
            left = [name for name in names if name not in found]
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in left],
                topic_names=left,
                timeout_ms=self._timeout_ms,
            )
            response: DeleteTopicsResponse
            response = await self._cluster.send_to_controller(request, DELETE_TOPICS)
            again = None
            for result in response.responses:
                refused = _not_deleted(result)
                if refused is not None and refused.code in _NOT_DONE:
                    again = refused
                else:
                    found[result.name or ""] = refused
            if again is not None:
                raise again

        await self._cluster.retry(ask, codes=_NOT_DONE)
        self._cluster.forget(names)
        return found

    async def create_partitions(self, name: str, count: int) -> None:
        """Let a topic grow to this many partitions."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=False,
        )

        async def ask() -> None:
            response: CreatePartitionsResponse
            response = await self._cluster.send_to_controller(request, CREATE_PARTITIONS)
            for result in response.results:
                check(result.error_code, f"topic {name}", result.error_message)

        await self._cluster.retry(ask, codes=_NOT_DONE)
        self._cluster.forget((name,))

    async def describe_configs(
        self, resource: Resource, name: str
    ) -> Sequence[DescribeConfigsResourceResult]:
        """All settings of a topic, a broker or a group."""
        wanted = DescribeConfigsResource(
            resource_type=resource, resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[wanted])
        # A broker's own settings are known to that broker alone.
        to_broker = resource is Resource.BROKER and name
        link = await (self._cluster.link(int(name)) if to_broker else self._cluster.any_link())
        response: DescribeConfigsResponse = await link.send(
            request, DESCRIBE_CONFIGS, timeout_s=self._cluster.timeout_s
        )
        (result,) = response.results
        check(result.error_code, f"{resource.name.lower()} {name}", result.error_message)
        return result.configs

    async def alter_configs(
        self,
        resource: Resource,
        name: str,
        *,
        sets: Mapping[str, str] | None = None,
        deletes: Iterable[str] = (),
    ) -> None:
        """Set and delete single settings of a topic, a broker or a group."""
        operations = [
            IncrementalAlterableConfig(name=key, config_operation=_SET, value=value)
            for key, value in (sets or {}).items()
        ]
        operations += (
            IncrementalAlterableConfig(name=key, config_operation=_DELETE, value=None)
            for key in deletes
        )
        changed = IncrementalAlterConfigsResource(
            resource_type=resource, resource_name=name, configs=operations
        )
        request = IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)

        async def ask() -> None:
            response: IncrementalAlterConfigsResponse
            response = await self._cluster.send_to_controller(request, INCREMENTAL_ALTER_CONFIGS)
            for result in response.responses:
                check(result.error_code, f"{resource.name.lower()} {name}", result.error_message)

        await self._cluster.retry(ask, codes=_NOT_DONE)

    async def describe_cluster(self) -> DescribeClusterResponse:
        """The cluster's id, controller and brokers, fenced ones included."""
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
        link = await self._cluster.any_link()
        response: DescribeClusterResponse = await link.send(
            request, DESCRIBE_CLUSTER, timeout_s=self._cluster.timeout_s
        )
        check(response.error_code, "cluster", response.error_message)
        return response

    async def quorum_at(self, node_id: int) -> Quorum:
        """The quorum as this node sees it."""
        link = await self._cluster.link(node_id)
        response: DescribeQuorumResponse = await link.send(
            QUORUM_REQUEST, DESCRIBE_QUORUM, timeout_s=self._cluster.timeout_s
        )
        return quorum_of(response)

    async def describe_quorum(self) -> Quorum:
        """The quorum as its leader sees it, whoever is asked first; again until there is one."""

        async def ask() -> Quorum:
            await self._cluster.refresh(())
            found = await self.quorum_at(self._cluster.controller_id)
            if not found.is_leaders and found.log.leader_id >= 0:
                found = await self.quorum_at(found.log.leader_id)
            check(found.log.error_code, "nobody leads the cluster", found.log.error_message)
            return found

        return await self._cluster.retry(ask)

    async def unregister_broker(self, node_id: int) -> None:
        """Forget a broker."""

        async def ask() -> None:
            response: UnregisterBrokerResponse = await self._cluster.send_to_controller(
                UnregisterBrokerRequest(broker_id=node_id), UNREGISTER_BROKER
            )
            check(response.error_code, f"broker {node_id}", response.error_message)

        await self._cluster.retry(ask, codes=_NOT_DONE)

    async def change_cluster(
        self, change: str, node_id: int = NO_NODE, *, accepts_loss: bool = False
    ) -> int:
        """Remove, replace or drain a node, or let another lead; the node that it was about."""
        request = ChangeClusterRequest(change=change, node_id=node_id, accepts_loss=accepts_loss)

        async def ask() -> int:
            await self._cluster.refresh(())
            # Any node has it done; one that is removed might be gone before it can answer.
            others = [each for each in sorted(self._cluster.brokers) if each != node_id]
            asked = others[0] if others else self._cluster.controller_id
            link = await self._cluster.link(asked)
            response: ChangeClusterResponse = await link.send(
                request, CHANGE_CLUSTER, timeout_s=self._cluster.timeout_s
            )
            if response.error_code:
                code = error_code(response.error_code)
                raise KafkaError(code, response.error_message or change)
            return response.node_id

        return await self._cluster.retry(ask, codes=_NOT_DONE)

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Drop the records below these offsets (-1: all); the new log start offsets."""
        groups = await self._cluster.by_leader(before)
        starts: dict[TopicPartition, int] = {}
        for node_id, partitions in groups.items():
            by_topic: dict[str, list[DeleteRecordsPartition]] = {}
            for partition in partitions:
                wanted = DeleteRecordsPartition(
                    partition_index=partition.partition, offset=before[partition]
                )
                by_topic.setdefault(partition.topic, []).append(wanted)
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=k, partitions=v) for k, v in by_topic.items()],
                timeout_ms=self._timeout_ms,
            )
            link = await self._cluster.link(node_id)
            response: DeleteRecordsResponse = await link.send(
                request, DELETE_RECORDS, timeout_s=self._cluster.timeout_s
            )
            for topic in response.topics:
                for result in topic.partitions:
                    place = TopicPartition(topic.name, result.partition_index)
                    check(result.error_code, str(place))
                    starts[place] = result.low_watermark
        return starts

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets by timestamp, EARLIEST or LATEST; see `offsets`."""
        return await list_offsets(self._cluster, wanted)

    async def log_dirs(
        self, *, skip_silent: bool = False
    ) -> dict[int, Sequence[DescribeLogDirsResult]]:
        """What each node has on its disks; nothing, of one that does not answer, if that may be."""

        async def ask(node_id: int) -> tuple[int, Sequence[DescribeLogDirsResult]]:
            try:
                link = await self._cluster.link(node_id)
                response: DescribeLogDirsResponse = await link.send(
                    DescribeLogDirsRequest(topics=None),
                    DESCRIBE_LOG_DIRS,
                    timeout_s=self._cluster.timeout_s,
                )
                check(response.error_code, f"disks of node {node_id}")
            except (ConnectionFailed, KafkaError):
                if not skip_silent:
                    raise
                return node_id, ()
            return node_id, response.results

        return dict(await asyncio.gather(*map(ask, self._cluster.brokers)))


def _not_deleted(result: DeletableTopicResult) -> KafkaError | None:
    try:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check_topic(result.error_code, result.name)
        check(result.error_code, f"topic {result.name}", result.error_message)
    except KafkaError as error:
        return error
    return None
