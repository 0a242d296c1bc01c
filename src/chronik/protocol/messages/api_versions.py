"""ApiVersions: the first thing that a client asks.

Feature names and levels are tagged fields, so the v3 and v4 layouts are one; v4 only allows a
supported feature to start at version 0.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.schema import Message, boolean, int16, int32, int64, since, string, tagged


class ApiVersionsRequest(Message):
    """Which APIs, in which versions?"""

    client_software_name: Annotated[string, since(3)] = ""
    client_software_version: Annotated[string, since(3)] = ""


class ApiVersion(Message):
    """One API and the versions served, both included."""

    api_key: int16
    min_version: int16
    max_version: int16


class SupportedFeatureKey(Message):
    """A feature and the levels that this node can run."""

    name: string
    min_version: int16
    max_version: int16


class FinalizedFeatureKey(Message):
    """A feature and the level that the whole cluster agreed on."""

    name: string
    max_version_level: int16
    min_version_level: int16


class ApiVersionsResponse(Message):
    """The API table, and the cluster's features."""

    error_code: int16
    api_keys: Sequence[ApiVersion]
    throttle_time_ms: Annotated[int32, since(1)] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], tagged(0, since=3)] = ()
    finalized_features_epoch: Annotated[int64, tagged(1, since=3)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], tagged(2, since=3)] = ()
    zk_migration_ready: Annotated[boolean, tagged(3, since=3)] = False
