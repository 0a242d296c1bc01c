"""Topics with several replicas on a cluster of processes, and what its nodes tell of them."""

from collections.abc import Mapping, Sequence

from cluster_processes import ClusterProcesses, eventually
from wire import Wire

from chronik.protocol.apis import ALTER_PARTITION_REASSIGNMENTS, CREATE_TOPICS
from chronik.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from chronik.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)


def create_on(
    cluster: ClusterProcesses, name: str, *replicas: Sequence[int], min_insync: int = 2
) -> None:
    """A topic whose partitions have these replicas, the first one leading; waits for them."""
    wire = Wire(f"127.0.0.1:{cluster.ports[cluster.running[0]]}")
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=each)
        for index, each in enumerate(replicas)
    ]
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=assignments,
        configs=[CreatableTopicConfig(name="min.insync.replicas", value=str(min_insync))],
    )
    answer = wire.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    wire.close()
    assert [each.error_code for each in answer.topics] == [0]
    wanted = [sorted(each) for each in replicas]
    for node_id in cluster.running:
        eventually(lambda: in_sync(cluster, name, node_id) == wanted, name)  # noqa: B023


def reassign(
    cluster: ClusterProcesses, node_id: int, topic: str, wanted: Mapping[int, Sequence[int]]
) -> bool:
    """Ask one node for other replicas of some partitions; whether all of it was accepted."""
    partitions = [
        ReassignablePartition(partition_index=index, replicas=replicas)
        for index, replicas in wanted.items()
    ]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=partitions)]
    )
    try:
        wire = Wire(f"127.0.0.1:{cluster.ports[node_id]}")
        answer = wire.ask(ALTER_PARTITION_REASSIGNMENTS, 0, request)
        wire.close()
    except OSError:
        return False
    codes = {each.error_code for found in answer.responses for each in found.partitions}
    return answer.error_code == 0 and codes <= {0}


def in_sync(cluster: ClusterProcesses, topic: str, on: int) -> list[list[int]]:
    """Who is in sync in each partition, as one node tells."""
    metadata = cluster.metadata(on)
    if metadata is None or topic not in metadata.topics:
        return []
    found = metadata.topics[topic].partitions
    return [sorted(found[index].isrs) for index in sorted(found)]


def leaders(cluster: ClusterProcesses, topic: str, on: int) -> list[int]:
    """Who leads each partition, as one node tells; -1 is nobody."""
    metadata = cluster.metadata(on)
    if metadata is None or topic not in metadata.topics:
        return []
    found = metadata.topics[topic].partitions
    return [found[index].leader for index in sorted(found)]
