"""ListConfigResources: what has settings.

Versions: 0-1 (0 asks for client metrics only).

Behaviour: topics and brokers are listed whether anything was set for them or not, groups only if
something was. Client metrics and the loggers of brokers are known types without resources; any
other type is UNSUPPORTED_VERSION.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from chronik.metadata.image import GROUP, Image
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.configs import (
    CLIENT_METRICS,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from chronik.server.context import Context
from chronik.server.handlers.configs import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE

BROKER_LOGGER: Final = 8
TYPES_VERSION: Final = 1

_NAMES: Final[Mapping[int, Callable[[Image], Sequence[str]]]] = {
    TOPIC_RESOURCE: lambda image: sorted(image.topics),
    BROKER_RESOURCE: lambda image: [str(each.node_id) for each in image.online_brokers],
    BROKER_LOGGER: lambda _: (),
    CLIENT_METRICS: lambda _: (),
    GROUP_RESOURCE: lambda image: sorted(name for kind, name in image.configs if kind == GROUP),
}


def list_config_resources(
    context: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    asked = set(request.resource_types or _NAMES)
    if context.version < TYPES_VERSION:
        asked = {CLIENT_METRICS}
    if not asked <= _NAMES.keys():
        return ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=()
        )
    return ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=[
            ConfigResource(resource_name=name, resource_type=each)
            for each in sorted(asked)
            for name in _NAMES[each](context.image)
        ],
    )
