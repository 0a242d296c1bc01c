"""Requests to handlers, by api key. The table must have exactly the rows of the API table."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from chronik.protocol import apis, coordinator_apis
from chronik.protocol.connection import Request
from chronik.server.connection import Connection
from chronik.server.context import Context, Node
from chronik.server.handlers.api_versions import api_versions, software, unsupported_version
from chronik.server.handlers.change_cluster import change_cluster
from chronik.server.handlers.config_resources import list_config_resources
from chronik.server.handlers.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
)
from chronik.server.handlers.consumer_groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
)
from chronik.server.handlers.fetch import fetch
from chronik.server.handlers.find_coordinator import find_coordinator
from chronik.server.handlers.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from chronik.server.handlers.list_offsets import list_offsets, offset_for_leader_epoch
from chronik.server.handlers.log_dirs import describe_log_dirs
from chronik.server.handlers.metadata import (
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from chronik.server.handlers.offsets import offset_commit, offset_delete, offset_fetch
from chronik.server.handlers.produce import produce
from chronik.server.handlers.quorum import describe_quorum, unregister_broker
from chronik.server.handlers.reassignments import (
    alter_partition_reassignments,
    elect_leaders,
    list_partition_reassignments,
)
from chronik.server.handlers.topics import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
)
from chronik.server.handlers.transaction_admin import (
    describe_producers,
    describe_transactions,
    list_transactions,
    write_txn_markers,
)
from chronik.server.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)

Handler = Callable[[Context, Any], Any]

HANDLERS: Final[Mapping[int, Handler]] = {
    apis.PRODUCE.key: produce,
    apis.FETCH.key: fetch,
    apis.LIST_OFFSETS.key: list_offsets,
    apis.METADATA.key: metadata,
    apis.API_VERSIONS.key: api_versions,
    apis.CREATE_TOPICS.key: create_topics,
    apis.DELETE_TOPICS.key: delete_topics,
    apis.DELETE_RECORDS.key: delete_records,
    apis.INIT_PRODUCER_ID.key: init_producer_id,
    apis.OFFSET_FOR_LEADER_EPOCH.key: offset_for_leader_epoch,
    apis.DESCRIBE_CONFIGS.key: describe_configs,
    apis.ALTER_CONFIGS.key: alter_configs,
    apis.DESCRIBE_LOG_DIRS.key: describe_log_dirs,
    apis.CREATE_PARTITIONS.key: create_partitions,
    apis.ELECT_LEADERS.key: elect_leaders,
    apis.INCREMENTAL_ALTER_CONFIGS.key: incremental_alter_configs,
    apis.ALTER_PARTITION_REASSIGNMENTS.key: alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS.key: list_partition_reassignments,
    apis.DESCRIBE_QUORUM.key: describe_quorum,
    apis.DESCRIBE_CLUSTER.key: describe_cluster,
    apis.UNREGISTER_BROKER.key: unregister_broker,
    apis.LIST_CONFIG_RESOURCES.key: list_config_resources,
    apis.DESCRIBE_TOPIC_PARTITIONS.key: describe_topic_partitions,
    apis.CHANGE_CLUSTER.key: change_cluster,
    coordinator_apis.OFFSET_COMMIT.key: offset_commit,
    coordinator_apis.OFFSET_FETCH.key: offset_fetch,
    coordinator_apis.FIND_COORDINATOR.key: find_coordinator,
    coordinator_apis.JOIN_GROUP.key: join_group,
    coordinator_apis.HEARTBEAT.key: heartbeat,
    coordinator_apis.LEAVE_GROUP.key: leave_group,
    coordinator_apis.SYNC_GROUP.key: sync_group,
    coordinator_apis.DESCRIBE_GROUPS.key: describe_groups,
    coordinator_apis.LIST_GROUPS.key: list_groups,
    coordinator_apis.ADD_PARTITIONS_TO_TXN.key: add_partitions_to_txn,
    coordinator_apis.ADD_OFFSETS_TO_TXN.key: add_offsets_to_txn,
    coordinator_apis.END_TXN.key: end_txn,
    coordinator_apis.WRITE_TXN_MARKERS.key: write_txn_markers,
    coordinator_apis.TXN_OFFSET_COMMIT.key: txn_offset_commit,
    coordinator_apis.DELETE_GROUPS.key: delete_groups,
    coordinator_apis.OFFSET_DELETE.key: offset_delete,
    coordinator_apis.DESCRIBE_PRODUCERS.key: describe_producers,
    coordinator_apis.DESCRIBE_TRANSACTIONS.key: describe_transactions,
    coordinator_apis.LIST_TRANSACTIONS.key: list_transactions,
    coordinator_apis.CONSUMER_GROUP_HEARTBEAT.key: consumer_group_heartbeat,
    coordinator_apis.CONSUMER_GROUP_DESCRIBE.key: consumer_group_describe,
}
assert HANDLERS.keys() == apis.APIS.keys(), "every advertised API has a handler, and no other"


def dispatcher(node: Node) -> Callable[[Request, Connection], Any]:
    """The function that a listener calls for each request of this node."""

    def dispatch(request: Request, connection: Connection) -> Any:
        if request.is_unsupported_version:
            return unsupported_version()
        if request.api is apis.API_VERSIONS:
            connection.client_software = software(request.body)
        context = Context(
            node,
            request.version,
            request.client_id,
            connection.client_host,
            connection.client_software,
        )
        return HANDLERS[request.api.key](context, request.body)

    return dispatch
