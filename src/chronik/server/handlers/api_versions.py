"""ApiVersions: what this node serves, straight from the API table.

Versions: 0-4. Behaviour: the response header is always version 0. A request in a version that we
do not know is answered in version 0 with UNSUPPORTED_VERSION and the whole list, so that the
client can ask again. A client name of v3+ that is not a plain word is INVALID_REQUEST (KIP-511).
"""

import re
from functools import cache

from chronik.protocol.apis import APIS
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from chronik.server.context import Context

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def api_versions(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=_served())


def unsupported_version() -> ApiVersionsResponse:
    """The answer to a version that we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_served())


@cache
def _served() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=key, min_version=api.versions.first, max_version=api.versions.last)
        for key, api in sorted(APIS.items())
    )
