"""Requests to handlers, by api key. The table must have exactly the rows of the API table."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from chronik.protocol import apis
from chronik.protocol.connection import Request
from chronik.server.connection import Connection
from chronik.server.context import Context, Node
from chronik.server.handlers.api_versions import api_versions, unsupported_version
from chronik.server.handlers.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
)
from chronik.server.handlers.fetch import fetch
from chronik.server.handlers.list_offsets import list_offsets, offset_for_leader_epoch
from chronik.server.handlers.log_dirs import describe_log_dirs
from chronik.server.handlers.metadata import (
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from chronik.server.handlers.produce import produce
from chronik.server.handlers.producer_ids import init_producer_id
from chronik.server.handlers.topics import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
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
    apis.INCREMENTAL_ALTER_CONFIGS.key: incremental_alter_configs,
    apis.DESCRIBE_CLUSTER.key: describe_cluster,
    apis.DESCRIBE_TOPIC_PARTITIONS.key: describe_topic_partitions,
}
assert HANDLERS.keys() == apis.APIS.keys(), "every advertised API has a handler, and no other"


def dispatcher(node: Node) -> Callable[[Request, Connection], Any]:
    """The function that a listener calls for each request of this node."""

    def dispatch(request: Request, connection: Connection) -> Any:
        if request.is_unsupported_version:
            return unsupported_version()
        context = Context(node, request.version, request.client_id, connection.client_host)
        return HANDLERS[request.api.key](context, request.body)

    return dispatch
