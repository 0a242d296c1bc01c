"""ApiVersions: what this node serves, straight from the API table.

Versions: 0-4. Behaviour: the response header is always version 0. A request in a version that we
do not know is answered in version 0 with UNSUPPORTED_VERSION and the whole list, so that the
client can ask again. A client name of v3+ that is not a plain word is INVALID_REQUEST (KIP-511).
"""

import re
from functools import cache
from typing import Any, Final

from chronik.protocol.apis import APIS
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from chronik.server.context import Context

# Levels that clients go by: consumer groups (KIP-848), and transactions whose partitions are added
# by writing to them and whose epoch changes with each end (KIP-890).
FEATURES: Final = {"group.version": 1, "transaction.version": 2}
_SUPPORTED: Final = tuple(
    SupportedFeatureKey(name=name, min_version=1, max_version=level)
    for name, level in FEATURES.items()
)
_FINALIZED: Final = tuple(
    FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
    for name, level in FEATURES.items()
)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def api_versions(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=_served(),
        supported_features=_SUPPORTED,
        finalized_features_epoch=context.node.metadata.applied_index,
        finalized_features=_FINALIZED,
    )


def software(request: Any) -> str:
    """What a client says it is, name and version; a binding names its library in the version."""
    return f"{request.client_software_name} {request.client_software_version}"


def unsupported_version() -> ApiVersionsResponse:
    """The answer to a version that we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_served())


@cache
def _served() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=key, min_version=api.versions.first, max_version=api.versions.last)
        for key, api in sorted(APIS.items())
    )
