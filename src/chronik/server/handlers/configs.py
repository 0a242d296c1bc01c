"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Versions: DescribeConfigs 0-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1.

Behaviour
    Resources are topics (2), brokers (4; an empty name means the default of all brokers) and
    groups (32), which need not be there: what was set for one waits for it, and outlives it.
    AlterConfigs replaces everything that was set on a resource; IncrementalAlterConfigs sets,
    deletes, appends to or subtracts from single settings.
    v1 adds where a value comes from and its synonyms, v3 its type and documentation.
    Each resource succeeds or fails by itself, as one metadata entry.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from chronik.config.broker_settings import BROKER_SETTINGS
from chronik.config.definitions import Definition, Kind, Update
from chronik.config.effective import (
    BrokerConfig,
    Source,
    Synonym,
    in_topic_terms,
    topic_synonyms,
)
from chronik.config.group_settings import GROUP_SETTINGS, group_synonyms
from chronik.config.topic_settings import TOPIC_SETTINGS
from chronik.metadata.commands import AlterConfig
from chronik.metadata.controller import check_topic_name
from chronik.metadata.image import BROKER, GROUP, TOPIC
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from chronik.server.context import Context, broker_config
from chronik.server.handlers.topics import submit

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
GROUP_RESOURCE: Final = 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_DEFINITIONS: Final = {TOPIC: TOPIC_SETTINGS, GROUP: GROUP_SETTINGS, BROKER: BROKER_SETTINGS}
_BROKER_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
TIMEOUT_MS: Final = 30_000  # These requests carry none; this is the clients' own default.


def describe_configs(context: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        try:
            configs = _describe(context, request, resource)
            error: KafkaError | None = None
        except KafkaError as refused:
            configs, error = [], refused
        results.append(
            DescribeConfigsResult(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(
    context: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    kind, name = _resource(context, resource.resource_type, resource.resource_name)
    keys = resource.configuration_keys
    return [
        _described(request, definition, synonyms, kind)
        for definition, synonyms in _settings(context, kind, name)
        if not keys or definition.name in keys
    ]


def _settings(context: Context, kind: str, name: str) -> list[tuple[Definition, list[Synonym]]]:
    """The settings of a resource, and where each has a value."""
    config = context.node.broker_config()
    overrides = context.image.config(kind, name)
    if kind == TOPIC:
        check_topic_name(name)
        if name not in context.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return [
            (definition, topic_synonyms(definition, overrides, config))
            for definition in TOPIC_SETTINGS.values()
        ]
    if kind == GROUP:
        return [
            (definition, group_synonyms(definition, overrides, config))
            for definition in GROUP_SETTINGS.values()
        ]
    if name == "":
        cluster_only = BrokerConfig(static={}, cluster=config.cluster, broker={})
        return [
            (definition, list(cluster_only.synonyms(definition)))
            for definition in BROKER_SETTINGS.values()
            if definition.name in config.cluster
        ]
    config = broker_config(context.node.settings, context.image, int(name))
    return [
        (definition, list(config.synonyms(definition))) for definition in BROKER_SETTINGS.values()
    ]


def _described(
    request: DescribeConfigsRequest,
    definition: Definition,
    synonyms: Sequence[Synonym],
    kind: str,
) -> DescribeConfigsResourceResult:
    first = synonyms[0] if synonyms else Synonym(definition.name, None, Source.DEFAULT)
    value = in_topic_terms(definition, first) if kind == TOPIC else first.value
    return DescribeConfigsResourceResult(
        name=definition.name,
        value=value,
        read_only=kind == BROKER and definition.update is Update.READ_ONLY,
        is_default=first.source is Source.DEFAULT,
        config_source=first.source,
        is_sensitive=False,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in synonyms
        ]
        if request.include_synonyms
        else (),
        config_type=definition.kind,
        documentation=definition.documentation if request.include_documentation else None,
    )


def _resource(context: Context, resource_type: int, name: str) -> tuple[str, str]:
    """What a resource of the wire means here, or KafkaError."""
    if resource_type == TOPIC_RESOURCE:
        return TOPIC, name
    if resource_type == GROUP_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        return GROUP, name
    if resource_type != BROKER_RESOURCE:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Resources of type {resource_type} have no settings here."
        )
    if name and not _BROKER_ID.fullmatch(name):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name[:20]!r} is not a broker id.")
    if name and int(name) not in context.image.brokers:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no broker {name}.")
    return BROKER, name


async def alter_configs(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    repeated = _repeated(request.resources)
    tasks = [
        _alter(
            context,
            resource,
            {config.name: config.value for config in resource.configs},
            replace_all=True,
            validate_only=request.validate_only,
            repeated=repeated,
        )
        for resource in request.resources
    ]
    return AlterConfigsResponse(responses=await asyncio.gather(*tasks))


async def incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    repeated = _repeated(request.resources)
    responses = []
    for resource in request.resources:
        try:
            changes = _changes(context, resource)
        except KafkaError as error:
            responses.append(_altered(resource, error))
            continue
        responses.append(
            await _alter(
                context,
                resource,
                changes,
                replace_all=False,
                validate_only=request.validate_only,
                repeated=repeated,
            )
        )
    return IncrementalAlterConfigsResponse(responses=responses)


_Resource = AlterConfigsResource | IncrementalAlterConfigsResource


def _repeated(resources: Iterable[_Resource]) -> set[tuple[int, str]]:
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    return {key for key, count in counts.items() if count > 1}


async def _alter(
    context: Context,
    resource: _Resource,
    changes: dict[str, str | None],
    *,
    replace_all: bool,
    validate_only: bool,
    repeated: set[tuple[int, str]],
) -> AlterConfigsResourceResponse:
    try:
        if (resource.resource_type, resource.resource_name) in repeated:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        kind, name = _resource(context, resource.resource_type, resource.resource_name)
        command = AlterConfig(
            resource=kind, resource_name=name, changes=changes, replace_all=replace_all
        )
        await submit(context, command, TIMEOUT_MS, validate_only=validate_only)
    except KafkaError as error:
        return _altered(resource, error)
    return _altered(resource, None)


def _altered(resource: _Resource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _changes(context: Context, resource: IncrementalAlterConfigsResource) -> dict[str, str | None]:
    kind, name = _resource(context, resource.resource_type, resource.resource_name)
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A setting was named more than once.")
    current = context.image.config(kind, name)
    definitions = _DEFINITIONS[kind]
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        definition = definitions.get(config.name)
        value = current.get(config.name)
        if value is None and definition is not None and kind == TOPIC:
            value = topic_synonyms(definition, current, context.node.broker_config())[0].value
        changes[config.name] = _operated(config, definition, value)
    return changes


def _operated(
    config: IncrementalAlterableConfig, definition: Definition | None, current: str | None
) -> str | None:
    match config.config_operation:
        case 0:
            if config.value is None:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Null value not supported for: {config.name}"
                )
            return config.value
        case 1:
            return None
        case 2 | 3:
            if definition is not None and definition.kind is not Kind.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Cannot append to or subtract from {config.name}: it is not a list.",
                )
            items = [item for item in (current or "").split(",") if item]
            given = [item.strip() for item in (config.value or "").split(",") if item.strip()]
            if config.config_operation == APPEND:
                return ",".join(items + [item for item in given if item not in items])
            return ",".join(item for item in items if item not in given)
        case _:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation}."
            )
