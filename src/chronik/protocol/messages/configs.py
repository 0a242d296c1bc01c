"""Configs: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

AlterConfigs replaces all settings of a resource; IncrementalAlterConfigs changes the named ones.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from chronik.protocol.schema import Message, boolean, int8, int16, int32, since, string, until

CLIENT_METRICS: Final = 16


class DescribeConfigsResource(Message):
    """A resource and the settings wanted; null means all."""

    resource_type: int8
    resource_name: string
    configuration_keys: Sequence[string] | None


class DescribeConfigsRequest(Message):
    """Asks for the settings of resources."""

    resources: Sequence[DescribeConfigsResource]
    include_synonyms: Annotated[boolean, since(1)] = False
    include_documentation: Annotated[boolean, since(3)] = False


class DescribeConfigsSynonym(Message):
    """A place where the value could have come from, in order of precedence."""

    name: string
    value: string | None
    source: int8


class DescribeConfigsResourceResult(Message):
    """One setting."""

    name: string
    value: string | None
    read_only: boolean
    is_default: Annotated[boolean, until(0)] = False
    config_source: Annotated[int8, since(1)] = -1
    is_sensitive: boolean
    synonyms: Annotated[Sequence[DescribeConfigsSynonym], since(1)] = ()
    config_type: Annotated[int8, since(3)] = 0
    documentation: Annotated[string | None, since(3)] = None


class DescribeConfigsResult(Message):
    """One resource's settings."""

    error_code: int16
    error_message: string | None
    resource_type: int8
    resource_name: string
    configs: Sequence[DescribeConfigsResourceResult]


class DescribeConfigsResponse(Message):
    """The settings, resource by resource."""

    throttle_time_ms: int32 = 0
    results: Sequence[DescribeConfigsResult]


class AlterableConfig(Message):
    """A setting and its value."""

    name: string
    value: string | None


class AlterConfigsResource(Message):
    """All settings that a resource shall have."""

    resource_type: int8
    resource_name: string
    configs: Sequence[AlterableConfig]


class AlterConfigsRequest(Message):
    """Replaces settings, or only says whether it could."""

    resources: Sequence[AlterConfigsResource]
    validate_only: boolean


class AlterConfigsResourceResponse(Message):
    """Whether one resource was changed."""

    error_code: int16
    error_message: string | None
    resource_type: int8
    resource_name: string


class AlterConfigsResponse(Message):
    """The outcome, resource by resource."""

    throttle_time_ms: int32 = 0
    responses: Sequence[AlterConfigsResourceResponse]


class IncrementalAlterableConfig(Message):
    """A setting and what to do with it: set, delete, append or subtract."""

    name: string
    config_operation: int8
    value: string | None


class IncrementalAlterConfigsResource(Message):
    """The settings of one resource that shall change."""

    resource_type: int8
    resource_name: string
    configs: Sequence[IncrementalAlterableConfig]


class IncrementalAlterConfigsRequest(Message):
    """Changes single settings, or only says whether it could."""

    resources: Sequence[IncrementalAlterConfigsResource]
    validate_only: boolean


class IncrementalAlterConfigsResponse(Message):
    """The outcome, resource by resource."""

    throttle_time_ms: int32 = 0
    responses: Sequence[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Message):
    """Asks which resources of these types there are; none means all types that are known."""

    resource_types: Annotated[Sequence[int8], since(1)] = ()


class ConfigResource(Message):
    """A resource that has settings. The first version is about client metrics only."""

    resource_name: string
    resource_type: Annotated[int8, since(1)] = CLIENT_METRICS


class ListConfigResourcesResponse(Message):
    """The resources, by their types and names."""

    throttle_time_ms: int32 = 0
    error_code: int16
    config_resources: Sequence[ConfigResource]
