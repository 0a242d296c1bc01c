"""Topics, settings, cluster and log directories on the wire, in every version."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from chronik.protocol import apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.api_versions import ApiVersionsRequest
from chronik.protocol.messages.cluster import DescribeClusterRequest, DescribeLogDirsRequest
from chronik.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.producer_ids import InitProducerIdRequest
from chronik.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    Cursor,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from chronik.testing import Broker

TOPIC, BROKER, GROUP = 2, 4, 32
SESSION_TIMEOUT = "consumer.session.timeout.ms"


def creatable(name: str, **fields: Any) -> CreatableTopic:
    given = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    return CreatableTopic(name=name, **(given | fields))


def creation(wire: Any, *topics: CreatableTopic, version: int = 7, **fields: Any) -> list[Any]:
    request = CreateTopicsRequest(topics=topics, timeout_ms=5000, **fields)
    return list(wire.ask(apis.CREATE_TOPICS, version, request).topics)


def names(say: Any, wire: Any) -> set[str]:
    return {topic.name for topic in say.metadata(wire).topics}


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_in_every_version(wire: Any, say: Any, version: int) -> None:
    (result,) = creation(wire, creatable("t", num_partitions=3), version=version)
    assert (result.name, result.error_code) == ("t", 0)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert {config.name for config in result.configs} > {"retention.ms", "cleanup.policy"}
    if version >= 7:
        assert result.topic_id == say.metadata(wire, "t").topics[0].topic_id
    assert len(say.metadata(wire, "t").topics[0].partitions) == 3


def test_each_topic_of_a_request_succeeds_or_fails_by_itself(wire: Any, say: Any) -> None:
    creation(wire, creatable("there"))
    results = creation(
        wire,
        creatable("fine"),
        creatable("there"),
        creatable("not fine"),
        creatable("none", num_partitions=0),
        creatable("many", replication_factor=3),
        creatable("odd", configs=[CreatableTopicConfig(name="no.such", value="1")]),
        creatable("null", configs=[CreatableTopicConfig(name="retention.ms", value=None)]),
        creatable("twice"),
        creatable("twice"),
        creatable(
            "placed",
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[9])],
            num_partitions=-1,
            replication_factor=-1,
        ),
    )
    codes = {result.name: ErrorCode(result.error_code).name for result in results}
    assert codes == {
        "fine": "NONE",
        "there": "TOPIC_ALREADY_EXISTS",
        "not fine": "INVALID_TOPIC_EXCEPTION",
        "none": "INVALID_PARTITIONS",
        "many": "INVALID_REPLICATION_FACTOR",
        "odd": "INVALID_CONFIG",
        "null": "INVALID_CONFIG",
        "twice": "INVALID_REQUEST",
        "placed": "INVALID_REPLICA_ASSIGNMENT",
    }
    assert all(result.error_message for result in results if result.error_code)
    assert names(say, wire) == {"there", "fine"}


def test_validate_only_changes_nothing(wire: Any, say: Any) -> None:
    (result,) = creation(wire, creatable("t", num_partitions=4), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 4)
    assert names(say, wire) == set()


@pytest.mark.parametrize("version", range(7))
def test_topics_are_deleted_in_every_version(wire: Any, say: Any, version: int) -> None:
    for name in ("a", "b"):
        say.create(wire, name)
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["a", "none"], timeout_ms=5000)
    else:
        states = [DeleteTopicState(name="a"), DeleteTopicState(name="none")]
        request = DeleteTopicsRequest(topics=states, timeout_ms=5000)
    results = wire.ask(apis.DELETE_TOPICS, version, request).responses
    codes = {result.name: result.error_code for result in results}
    assert codes == {"a": 0, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert names(say, wire) == {"b"}


def test_topics_are_deleted_by_id(wire: Any, say: Any) -> None:
    topic_id = say.create(wire, "t")
    states = [DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=bytes(15) + b"x")]
    request = DeleteTopicsRequest(topics=states, timeout_ms=5000)
    gone, unknown = wire.ask(apis.DELETE_TOPICS, 6, request).responses
    assert (gone.name, gone.topic_id, gone.error_code) == ("t", topic_id, 0)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("version", "code"), [(2, 42), (3, 73), (6, 73)])
def test_deletion_can_be_forbidden(connect: Any, say: Any, version: int, code: int) -> None:
    with Broker({"delete.topic.enable": False}) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        states = [DeleteTopicState(name="t")]
        request = DeleteTopicsRequest(topics=states, topic_names=["t"], timeout_ms=5000)
        (result,) = wire.ask(apis.DELETE_TOPICS, version, request).responses
        assert result.error_code == code


def test_deletion_frees_the_disk_and_a_new_topic_of_that_name_is_empty(
    tmp_path: Path, connect: Any, say: Any
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", partitions=2)
        for partition in (0, 1):
            say.produce(wire, "t", say.batch(b"x" * 10_000), partition=partition)
        assert len(list(tmp_path.glob("topics/*/*/*.log"))) == 2
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
        wire.ask(apis.DELETE_TOPICS, 5, request)
        say.create(wire, "t")
        assert say.list_offset(wire, "t", -1).offset == 0
        assert say.produce(wire, "t", say.batch(b"new")).base_offset == 0
    assert len(list(tmp_path.glob("topics/*/*/*.log"))) == 1
    assert len(list(tmp_path.glob("topics/*"))) == 1


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(wire: Any, say: Any, version: int) -> None:
    say.create(wire, "t")

    def grow(name: str, count: int, **fields: Any) -> int:
        topics = [CreatePartitionsTopic(name=name, count=count, assignments=None)]
        request = CreatePartitionsRequest(
            topics=topics, timeout_ms=5000, **({"validate_only": False} | fields)
        )
        response = wire.ask(apis.CREATE_PARTITIONS, version, request)
        return int(response.results[0].error_code)

    assert grow("t", 3, validate_only=True) == 0
    assert len(say.metadata(wire, "t").topics[0].partitions) == 1
    assert grow("t", 3) == 0
    assert len(say.metadata(wire, "t").topics[0].partitions) == 3
    assert grow("t", 3) == ErrorCode.INVALID_PARTITIONS
    assert grow("u", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert say.produce(wire, "t", say.batch(b"x"), partition=2).error_code == 0


# Metadata.


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(broker: Broker, wire: Any, say: Any, version: int) -> None:
    say.create(wire, "t", partitions=2)
    request = MetadataRequest(topics=[] if version == 0 else None)
    response = wire.ask(apis.METADATA, version, request)
    (node,) = response.brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap
    (topic,) = response.topics
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    assert all(each.leader_id == node.node_id for each in topic.partitions)
    assert all(each.isr_nodes == [node.node_id] for each in topic.partitions)
    if version >= 1:
        assert response.controller_id == node.node_id


def test_an_empty_list_asks_for_no_topic_from_v1_on(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    assert wire.ask(apis.METADATA, 1, MetadataRequest(topics=[])).topics == []
    assert len(wire.ask(apis.METADATA, 0, MetadataRequest(topics=[])).topics) == 1


@pytest.mark.parametrize("version", [0, 3, 4, 12])
def test_a_missing_topic_is_created(wire: Any, say: Any, version: int) -> None:
    (topic,) = say.metadata(wire, "fresh", version=version).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
    assert names(say, wire) == {"fresh"}


def test_creation_on_demand_can_be_forbidden(connect: Any, wire: Any, say: Any) -> None:
    (topic,) = say.metadata(wire, "no", version=4, allow_auto_topic_creation=False).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with Broker({"auto.create.topics.enable": False}) as broker:
        (topic,) = say.metadata(connect(broker), "no", version=1).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_created_on_demand_take_the_default_count(connect: Any, say: Any) -> None:
    with Broker({"num.partitions": 4}) as broker:
        (topic,) = say.metadata(connect(broker), "fresh").topics
        assert len(topic.partitions) == 4


def test_an_invalid_name_is_said(wire: Any, say: Any) -> None:
    (topic,) = say.metadata(wire, "not fine").topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_by_id(wire: Any, say: Any, version: int) -> None:
    topic_id = say.create(wire, "t")
    topics = [
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=bytes(15) + b"x", name=None),
    ]
    found, unknown = wire.ask(apis.METADATA, version, MetadataRequest(topics=topics)).topics
    assert (found.name, found.error_code) == ("t", 0)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_operations_are_named_when_asked_for(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    fields = {
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    asked = say.metadata(wire, "t", version=8, **fields)
    assert asked.cluster_authorized_operations > 0
    assert asked.topics[0].topic_authorized_operations > 0
    assert say.metadata(wire, "t", version=8).cluster_authorized_operations == -(2**31)


def test_an_answer_for_all_topics_follows_every_change(wire: Any, say: Any) -> None:
    """Topics are encoded once and kept: what changed must not be answered from before."""

    def shown(version: int = 12) -> dict[str, tuple[int, bytes]]:
        topics = say.metadata(wire, version=version).topics
        return {topic.name: (len(topic.partitions), bytes(topic.topic_id)) for topic in topics}

    for name in ("a", "b"):
        say.create(wire, name)
    first = shown()
    assert set(first) == {"a", "b"}
    grow = CreatePartitionsTopic(name="a", count=3, assignments=None)
    request = CreatePartitionsRequest(topics=[grow], timeout_ms=5000, validate_only=False)
    wire.ask(apis.CREATE_PARTITIONS, 3, request)
    assert shown()["a"][0] == 3
    wire.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["b"], timeout_ms=5000))
    assert set(shown()) == {"a"}
    say.create(wire, "b", partitions=2)
    assert shown()["b"][0] == 2
    assert shown()["b"][1] != first["b"][1]
    for version in range(14):
        assert set(shown(max(version, 1))) == {"a", "b"}


def test_thousands_of_topics_are_answered_in_full(wire: Any, say: Any) -> None:
    creation(wire, *(creatable(f"t{n}", num_partitions=3) for n in range(1500)))
    assert len(say.metadata(wire).topics) == 1500
    assert sum(len(topic.partitions) for topic in say.metadata(wire, version=1).topics) == 4500


def test_describe_cluster(broker: Broker, wire: Any) -> None:
    for version in range(3):
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        response = wire.ask(apis.DESCRIBE_CLUSTER, version, request)
        (node,) = response.brokers
        assert f"{node.host}:{node.port}" == broker.bootstrap
        assert response.controller_id == node.broker_id
        assert len(response.cluster_id) == 22
    controllers = DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=2
    )
    response = wire.ask(apis.DESCRIBE_CLUSTER, 1, controllers)
    assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_topic_partitions_are_described_in_pages(wire: Any, say: Any) -> None:
    for name, count in (("a", 2), ("b", 3), ("c", 1)):
        say.create(wire, name, partitions=count)
    seen: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(
            topics=(), response_partition_limit=2, cursor=cursor
        )
        response = wire.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        page = [(t.name, p.partition_index) for t in response.topics for p in t.partitions]
        assert len(page) <= 2
        seen += page
        cursor = response.next_cursor
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    missing = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="zz")])
    (topic,) = wire.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, missing).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Settings.


def described(wire: Any, kind: int, name: str, *keys: str, version: int = 4) -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = wire.ask(apis.DESCRIBE_CONFIGS, version, request).results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def altered(wire: Any, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    configs = [
        IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    return wire.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0]


@pytest.mark.parametrize("version", range(5))
def test_settings_are_described_in_every_version(wire: Any, say: Any, version: int) -> None:
    say.create(wire, "t", retention_ms="1000")
    configs = described(wire, TOPIC, "t", version=version)
    assert configs["retention.ms"].value == "1000"
    assert configs["segment.ms"].value == "604800000"
    if version == 0:
        assert not configs["retention.ms"].is_default
        assert configs["segment.bytes"].is_default
    else:
        assert configs["retention.ms"].config_source == 1
        assert [each.name for each in configs["retention.ms"].synonyms] == [
            "retention.ms",
            "log.retention.hours",
        ]
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert configs["retention.ms"].documentation


def test_only_the_asked_keys_are_described(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    assert set(described(wire, TOPIC, "t", "retention.ms", "no.such")) == {"retention.ms"}


def test_topic_settings_change_and_go_back(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    assert altered(wire, TOPIC, "t", ("max.message.bytes", 0, "300")).error_code == 0
    assert described(wire, TOPIC, "t")["max.message.bytes"].value == "300"
    big = say.batch(b"x" * 400)
    assert say.produce(wire, "t", big).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert altered(wire, TOPIC, "t", ("max.message.bytes", 1, None)).error_code == 0
    assert say.produce(wire, "t", big).error_code == 0


def test_lists_are_appended_to_and_subtracted_from(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    altered(wire, TOPIC, "t", ("cleanup.policy", 2, "compact"))
    assert described(wire, TOPIC, "t")["cleanup.policy"].value == "delete,compact"
    altered(wire, TOPIC, "t", ("cleanup.policy", 3, "delete"))
    assert described(wire, TOPIC, "t")["cleanup.policy"].value == "compact"
    wrong = altered(wire, TOPIC, "t", ("retention.ms", 2, "5"))
    assert wrong.error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_everything(wire: Any, say: Any, version: int) -> None:
    say.create(wire, "t", retention_ms="1000", segment_ms="2000")
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="t",
        configs=[AlterableConfig(name="segment.ms", value="3000")],
    )
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    assert wire.ask(apis.ALTER_CONFIGS, version, request).responses[0].error_code == 0
    configs = described(wire, TOPIC, "t")
    assert (configs["segment.ms"].value, configs["retention.ms"].value) == ("3000", "604800000")


def test_broker_settings_for_one_and_for_all(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    assert altered(wire, BROKER, "", ("log.retention.ms", 0, "11")).error_code == 0
    assert described(wire, TOPIC, "t")["retention.ms"].value == "11"
    assert altered(wire, BROKER, "1", ("log.retention.ms", 0, "12")).error_code == 0
    retention = described(wire, TOPIC, "t")["retention.ms"]
    assert (retention.value, retention.config_source) == ("12", 2)
    assert [each.source for each in retention.synonyms] == [2, 3, 5]
    assert set(described(wire, BROKER, "")) == {"log.retention.ms"}
    read_only = described(wire, BROKER, "1")["num.partitions"]
    assert read_only.read_only
    refused = altered(wire, BROKER, "1", ("num.partitions", 0, "3"))
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_group_settings_need_no_group_and_stay(tmp_path: Path, connect: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        assert described(wire, GROUP, "g")[SESSION_TIMEOUT].config_source == 5
        for name, value in (("g", "50000"), ("h", "51000")):
            assert altered(wire, GROUP, name, (SESSION_TIMEOUT, 0, value)).error_code == 0
        assert altered(wire, GROUP, "h", (SESSION_TIMEOUT, 1, None)).error_code == 0
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        found = described(wire, GROUP, "g")
        assert set(found) == {SESSION_TIMEOUT, "consumer.heartbeat.interval.ms"}
        session = found[SESSION_TIMEOUT]
        assert (session.value, session.config_source, session.read_only) == ("50000", 8, False)
        assert [each.name for each in session.synonyms] == [
            SESSION_TIMEOUT,
            "group.consumer.session.timeout.ms",
        ]
        assert described(wire, GROUP, "h")[SESSION_TIMEOUT].value == "45000"


def test_config_resources_are_listed(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    altered(wire, GROUP, "g", (SESSION_TIMEOUT, 0, "50000"))

    def listed(version: int, *types: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=types)
        answer = wire.ask(apis.LIST_CONFIG_RESOURCES, version, request)
        assert answer.error_code == 0
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    assert listed(0) == []
    assert listed(1) == [(TOPIC, "t"), (BROKER, "1"), (GROUP, "g")]
    assert listed(1, GROUP, GROUP) == [(GROUP, "g")]
    assert listed(1, 8, 16) == []
    request = ListConfigResourcesRequest(resource_types=[GROUP, 3])
    answer = wire.ask(apis.LIST_CONFIG_RESOURCES, 1, request)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "none", ("retention.ms", 0, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", ("no.such", 0, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, "x"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 0, None), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "7", ("log.retention.ms", 0, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ("log.retention.ms", 0, "1"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ("a", 0, "1"), ErrorCode.INVALID_CONFIG),
        (GROUP, "g", ("share.record.lock.duration.ms", 0, "30000"), ErrorCode.INVALID_CONFIG),
        (GROUP, "g", (SESSION_TIMEOUT, 0, "60001"), ErrorCode.INVALID_CONFIG),
        (GROUP, "g", (SESSION_TIMEOUT, 2, "50000"), ErrorCode.INVALID_CONFIG),
        (GROUP, "", (SESSION_TIMEOUT, 0, "50000"), ErrorCode.INVALID_REQUEST),
        (16, "x", ("a", 0, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_changes_are_refused(
    wire: Any, say: Any, kind: int, name: str, change: tuple[str, int, str], code: ErrorCode
) -> None:
    say.create(wire, "t")
    assert altered(wire, kind, name, change).error_code == code


# The rest.


def test_log_directories_have_true_sizes(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", partitions=2)
        say.produce(wire, "t", say.batch(b"x" * 1000), partition=1)
        for version in range(6):
            request = DescribeLogDirsRequest(topics=None)
            (result,) = wire.ask(apis.DESCRIBE_LOG_DIRS, version, request).results
            sizes = {p.partition_index: p.partition_size for p in result.topics[0].partitions}
            (log,) = tmp_path.glob("topics/*/1/*.log")
            assert sizes == {0: 0, 1: log.stat().st_size}
            if version >= 4:
                assert result.total_bytes == shutil.disk_usage(tmp_path).total
                assert 0 < result.usable_bytes <= result.total_bytes


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_never_given_twice(wire: Any, version: int) -> None:
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
    )
    given = [wire.ask(apis.INIT_PRODUCER_ID, version, request) for _ in range(5)]
    assert [each.error_code for each in given] == [0] * 5
    assert len({each.producer_id for each in given}) == 5


def test_producer_ids_go_on_after_a_restart(tmp_path: Path, connect: Any) -> None:
    seen = set()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    for _ in range(3):
        with Broker(data_dir=str(tmp_path)) as broker:
            seen.add(connect(broker).ask(apis.INIT_PRODUCER_ID, 4, request).producer_id)
    assert len(seen) == 3


def test_api_versions_are_those_of_the_table(wire: Any) -> None:
    for version in range(5):
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        response = wire.ask(apis.API_VERSIONS, version, request)
        served = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        assert served == {
            key: (api.versions.first, api.versions.last) for key, api in apis.APIS.items()
        }


def test_an_unknown_version_of_api_versions_is_answered_in_v0(wire: Any) -> None:
    wire.frame(b"\x00\x12\x00\x63\x00\x00\x00\x07\x00\x04test")
    number, response = wire.receive(apis.API_VERSIONS, 0)
    assert (number, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert response.api_keys
    nameless = ApiVersionsRequest(client_software_name="", client_software_version="")
    assert wire.ask(apis.API_VERSIONS, 3, nameless).error_code == ErrorCode.INVALID_REQUEST
