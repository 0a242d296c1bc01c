"""The API table: every request that this broker answers, in which versions.

The table drives decoding, dispatch, the ApiVersions response and docs/APIS.md. What is not in it
does not exist for a client: nothing is advertised that does not work.

`versions` starts at the oldest version that clients of Kafka 0.8 to 0.10 send, far below what
Kafka 4 still takes, and old librdkafka looks for version 0 by name. `flexible_since` is the first
version with compact lengths and tagged fields, in header and body alike.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from chronik.protocol.api import API_VERSIONS_KEY
from chronik.protocol.api import Api as Api
from chronik.protocol.coordinator_apis import COORDINATOR_APIS
from chronik.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chronik.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from chronik.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from chronik.protocol.messages.fetch import FetchRequest, FetchResponse
from chronik.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from chronik.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chronik.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from chronik.protocol.messages.produce import ProduceRequest, ProduceResponse
from chronik.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.messages.quorum import (
    ChangeClusterRequest,
    ChangeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from chronik.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from chronik.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from chronik.protocol.schema import Versions

PRODUCE: Final = Api(
    key=0,
    name="Produce",
    request=ProduceRequest,
    response=ProduceResponse,
    versions=Versions(0, 13),
    flexible_since=9,
    summary="Append record batches to partitions.",
    notes="v0-2 carry message sets (magic 0 and 1), which are stored as batches of magic 2. "
    "With acks=0 there is no answer; an error closes the connection. v13 names topics by id.",
)
FETCH: Final = Api(
    key=1,
    name="Fetch",
    request=FetchRequest,
    response=FetchResponse,
    versions=Versions(0, 18),
    flexible_since=12,
    summary="Read whole record batches from partitions.",
    notes="v0-3 get message sets that those clients can read. v7 adds fetch sessions, "
    "v13 names topics by id. Waits for an append until min_bytes or max_wait_ms is reached.",
)
LIST_OFFSETS: Final = Api(
    key=2,
    name="ListOffsets",
    request=ListOffsetsRequest,
    response=ListOffsetsResponse,
    versions=Versions(0, 10),
    flexible_since=6,
    summary="Find the earliest or latest offset, or the first one at a timestamp.",
    notes="v0 answers with a list of offsets, later versions with one. "
    "v7 adds the offset of the largest timestamp (-3).",
)
METADATA: Final = Api(
    key=3,
    name="Metadata",
    request=MetadataRequest,
    response=MetadataResponse,
    versions=Versions(0, 13),
    flexible_since=9,
    summary="List brokers, topics, partitions and their leaders.",
    notes="May create missing topics; v0-3 have no flag to forbid it. "
    "All topics are asked for by null, in v0 by an empty list.",
)
API_VERSIONS: Final = Api(
    key=API_VERSIONS_KEY,
    name="ApiVersions",
    request=ApiVersionsRequest,
    response=ApiVersionsResponse,
    versions=Versions(0, 4),
    flexible_since=3,
    summary="List this table.",
    notes="An unknown version is answered in v0 with UNSUPPORTED_VERSION and the whole list. "
    "The response header is never flexible.",
)
CREATE_TOPICS: Final = Api(
    key=19,
    name="CreateTopics",
    request=CreateTopicsRequest,
    response=CreateTopicsResponse,
    versions=Versions(0, 7),
    flexible_since=5,
    summary="Create topics, with counts or with an assignment, and with settings.",
    notes="v1 adds validate_only, v4 the broker's defaults (-1), v5 the settings in the answer, "
    "v7 the topic id.",
)
DELETE_TOPICS: Final = Api(
    key=20,
    name="DeleteTopics",
    request=DeleteTopicsRequest,
    response=DeleteTopicsResponse,
    versions=Versions(0, 6),
    flexible_since=4,
    summary="Delete topics and free their disk space.",
    notes="By name, from v6 on also by id.",
)
DELETE_RECORDS: Final = Api(
    key=21,
    name="DeleteRecords",
    request=DeleteRecordsRequest,
    response=DeleteRecordsResponse,
    versions=Versions(0, 2),
    flexible_since=2,
    summary="Move a partition's log start offset forward.",
    notes="Offset -1 means the high watermark.",
)
INIT_PRODUCER_ID: Final = Api(
    key=22,
    name="InitProducerId",
    request=InitProducerIdRequest,
    response=InitProducerIdResponse,
    versions=Versions(0, 5),
    flexible_since=2,
    summary="Give a producer its id and epoch.",
    notes="With a transactional id the last producer of that id is shut out, and what it had "
    "open is aborted.",
)
OFFSET_FOR_LEADER_EPOCH: Final = Api(
    key=23,
    name="OffsetForLeaderEpoch",
    request=OffsetForLeaderEpochRequest,
    response=OffsetForLeaderEpochResponse,
    versions=Versions(0, 4),
    flexible_since=4,
    summary="Say where a leader epoch ended.",
)
DESCRIBE_CONFIGS: Final = Api(
    key=32,
    name="DescribeConfigs",
    request=DescribeConfigsRequest,
    response=DescribeConfigsResponse,
    versions=Versions(0, 4),
    flexible_since=4,
    summary="Show the settings of topics and brokers.",
    notes="v1 adds sources and synonyms, v3 types and documentation.",
)
ALTER_CONFIGS: Final = Api(
    key=33,
    name="AlterConfigs",
    request=AlterConfigsRequest,
    response=AlterConfigsResponse,
    versions=Versions(0, 2),
    flexible_since=2,
    summary="Replace the settings of topics and brokers.",
    notes="A setting that is not named falls back to its default.",
)
DESCRIBE_LOG_DIRS: Final = Api(
    key=35,
    name="DescribeLogDirs",
    request=DescribeLogDirsRequest,
    response=DescribeLogDirsResponse,
    versions=Versions(0, 5),
    flexible_since=2,
    summary="Show what partitions take up on this node's disk.",
    notes="v4 adds the size and free space of the volume.",
)
CREATE_PARTITIONS: Final = Api(
    key=37,
    name="CreatePartitions",
    request=CreatePartitionsRequest,
    response=CreatePartitionsResponse,
    versions=Versions(0, 3),
    flexible_since=2,
    summary="Add partitions to topics.",
)
ELECT_LEADERS: Final = Api(
    key=43,
    name="ElectLeaders",
    request=ElectLeadersRequest,
    response=ElectLeadersResponse,
    versions=Versions(0, 2),
    flexible_since=2,
    summary="Let the preferred replica lead, or with type 1 (v1) some replica where none can.",
    notes="An unclean election takes the replica with the greatest last epoch and log end, of all "
    "that are online.",
)
INCREMENTAL_ALTER_CONFIGS: Final = Api(
    key=44,
    name="IncrementalAlterConfigs",
    request=IncrementalAlterConfigsRequest,
    response=IncrementalAlterConfigsResponse,
    versions=Versions(0, 1),
    flexible_since=1,
    summary="Set, delete, append to or subtract from single settings.",
)
ALTER_PARTITION_REASSIGNMENTS: Final = Api(
    key=45,
    name="AlterPartitionReassignments",
    request=AlterPartitionReassignmentsRequest,
    response=AlterPartitionReassignmentsResponse,
    versions=Versions(0, 1),
    flexible_since=0,
    summary="Move partitions to other replicas, or undo a move that is under way.",
    notes="v1 can forbid that the replication factor changes.",
)
LIST_PARTITION_REASSIGNMENTS: Final = Api(
    key=46,
    name="ListPartitionReassignments",
    request=ListPartitionReassignmentsRequest,
    response=ListPartitionReassignmentsResponse,
    versions=Versions(0, 0),
    flexible_since=0,
    summary="List the partitions that move now.",
)
DESCRIBE_QUORUM: Final = Api(
    key=55,
    name="DescribeQuorum",
    request=DescribeQuorumRequest,
    response=DescribeQuorumResponse,
    versions=Versions(0, 2),
    flexible_since=0,
    summary="Show who leads the metadata log, in which term, and how far each member is.",
    notes="Any node asks the leader; if that fails, it says NOT_LEADER_OR_FOLLOWER and who leads. "
    "Offsets are Raft indexes, the high watermark is the commit index. Tags from 10000 on are our "
    "own: a request for the asked node's own view, the applied index and the lease of the node "
    "that answers, each broker's status, and how partitions and followers are doing.",
)
DESCRIBE_CLUSTER: Final = Api(
    key=60,
    name="DescribeCluster",
    request=DescribeClusterRequest,
    response=DescribeClusterResponse,
    versions=Versions(0, 2),
    flexible_since=0,
    summary="Show the cluster's id, brokers and controller.",
)
UNREGISTER_BROKER: Final = Api(
    key=64,
    name="UnregisterBroker",
    request=UnregisterBrokerRequest,
    response=UnregisterBrokerResponse,
    versions=Versions(0, 0),
    flexible_since=0,
    summary="Forget a broker.",
    notes="Refused for the last broker that is online, and while a partition has its data nowhere "
    "else.",
)
LIST_CONFIG_RESOURCES: Final = Api(
    key=74,
    name="ListConfigResources",
    request=ListConfigResourcesRequest,
    response=ListConfigResourcesResponse,
    versions=Versions(0, 1),
    flexible_since=0,
    summary="List the topics, brokers, and groups with settings of their own.",
    notes="v0 asks for client metrics, which there are none of.",
)
DESCRIBE_TOPIC_PARTITIONS: Final = Api(
    key=75,
    name="DescribeTopicPartitions",
    request=DescribeTopicPartitionsRequest,
    response=DescribeTopicPartitionsResponse,
    versions=Versions(0, 0),
    flexible_since=0,
    summary="List partitions page by page.",
    notes="Never more than response_partition_limit partitions in one answer.",
)
CHANGE_CLUSTER: Final = Api(
    key=10_000,
    name="ChangeCluster",
    request=ChangeClusterRequest,
    response=ChangeClusterResponse,
    versions=Versions(0, 0),
    flexible_since=0,
    summary="Remove, replace or drain a node, or let another one lead.",
    notes="Our own, under a number that Kafka will not reach: the commands of `chronik cluster` "
    "use it.",
)

APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        api.key: api
        for api in (
            PRODUCE,
            FETCH,
            LIST_OFFSETS,
            METADATA,
            API_VERSIONS,
            CREATE_TOPICS,
            DELETE_TOPICS,
            DELETE_RECORDS,
            INIT_PRODUCER_ID,
            OFFSET_FOR_LEADER_EPOCH,
            DESCRIBE_CONFIGS,
            ALTER_CONFIGS,
            DESCRIBE_LOG_DIRS,
            CREATE_PARTITIONS,
            ELECT_LEADERS,
            INCREMENTAL_ALTER_CONFIGS,
            ALTER_PARTITION_REASSIGNMENTS,
            LIST_PARTITION_REASSIGNMENTS,
            DESCRIBE_QUORUM,
            DESCRIBE_CLUSTER,
            UNREGISTER_BROKER,
            LIST_CONFIG_RESOURCES,
            DESCRIBE_TOPIC_PARTITIONS,
            CHANGE_CLUSTER,
            *COORDINATOR_APIS,
        )
    }
)
