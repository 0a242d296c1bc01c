"""What a pipeline is told: by the command line, a TOML file, and the topics' own settings.

    bootstrap = "localhost:9092"
    warehouse = "/data/lake"
    interval_s = 5

    [topics.orders]            # overrides what the topic's own settings say
    table = "delta"
    decode = "json"
    schema = "id bigint, at timestamp"
    partition_by = "day(_timestamp)"

    [kafka]                    # how to connect: Kafka's own names
    "security.protocol" = "SASL_SSL"

    [catalog]                  # Iceberg's, as pyiceberg knows it; SQLite in the warehouse if absent
    type = "rest"
    uri = "http://localhost:8181"

    [storage]                  # how to reach s3://; AWS_* variables where nothing is said
    endpoint_url = "http://localhost:9000"
    region = "eu-central-1"
    access_key_id = "..."
    secret_access_key = "..."

    [spark]                    # settings of Spark itself
    "spark.executor.memory" = "2g"

A key that is not known is an error: a setting that is silently ignored is worse.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chronik.config.definitions import InvalidSetting
from chronik.config.topic_settings import TOPIC_SETTINGS
from chronik.spark.connection import check_names, is_bootstrap
from chronik.spark.errors import OptionsError, hint
from chronik.spark.lake.table import LakeError
from chronik.spark.lake.warehouse import Warehouse

INTERVAL_S: Final = 5.0
MEBIBYTE: Final = 1024 * 1024
_PREFIX: Final = "chronik."
_TOPIC_KEYS: Final = tuple(
    name.removeprefix(_PREFIX) for name in TOPIC_SETTINGS if name.startswith(_PREFIX)
)
_KEYS: Final[dict[str, type | tuple[type, ...]]] = {
    "bootstrap": str,
    "warehouse": str,
    "namespace": str,
    "master": str,
    "interval_s": (int, float),
    "task_mebibytes": int,
    "accept_loss": bool,
}
_POSITIVE: Final = ("interval_s", "task_mebibytes")
_TABLES: Final = ("topics", "kafka", "catalog", "storage", "spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What becomes of one topic."""

    name: str
    table: str
    decode: str = "raw"
    schema: str = ""
    partition_by: str = ""
    on_incompatible: str = "dead_letter"
    table_retention_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """What a pipeline does and where."""

    bootstrap: str = "localhost:9092"
    warehouse: str = "warehouse"
    namespace: str = "lake"
    master: str = "local[*,4]"  # as many tasks as cores, each tried up to four times
    interval_s: float = INTERVAL_S
    task_mebibytes: int = 64
    accept_loss: bool = False
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # These may hold passwords: they are never shown.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def connection_options(self) -> dict[str, str]:
        """How to reach the cluster, in the words of the Spark source's options."""
        return {
            **{f"kafka.{name.removeprefix('kafka.')}": value for name, value in self.kafka.items()},
            "kafka.bootstrap.servers": self.bootstrap,
        }

    @property
    def place(self) -> Warehouse:
        """The warehouse; a path is made absolute, since tasks may run in another directory."""
        url = self.warehouse if "://" in self.warehouse else os.path.abspath(self.warehouse)
        return Warehouse(
            url=url,
            namespace=self.namespace,
            catalog=dict(self.catalog),
            storage_options=dict(self.storage),
        )


def load_config(path: str | None, options: Mapping[str, Any]) -> PipelineConfig:
    """A file's settings, and over them those that were given as options."""
    found: dict[str, Any] = {}
    if path is not None:
        try:
            with open(path, "rb") as file:
                found = tomllib.load(file)
        except OSError as error:
            raise LakeError(f"cannot read {path}: {error.strerror}: check --config") from None
        except tomllib.TOMLDecodeError as error:
            raise LakeError(f"{path} is no TOML: {error}") from None
    _check(found, path or "")
    for name in set(_TABLES) & set(found) - {"topics"}:
        found[name] = {key: _text(value) for key, value in found[name].items()}
    _take_bootstrap(found, path or "")
    known = PipelineConfig(**found)
    return replace(known, **{name: value for name, value in options.items() if value is not None})


def _take_bootstrap(found: dict[str, Any], path: str) -> None:
    """The brokers may be named with what else says how to connect to them."""
    kafka = found.get("kafka", {})
    for name in [each for each in kafka if is_bootstrap(each)]:
        named = kafka.pop(name)
        if found.setdefault("bootstrap", named) != named:
            raise LakeError(f"{path}: bootstrap and {name} under [kafka] differ: keep one")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(found: Mapping[str, Any], path: str) -> None:
    for name, value in found.items():
        if name in _TABLES:
            if not isinstance(value, dict):
                raise LakeError(f"{path}: {name} is a table: write [{name}]")
        elif name not in _KEYS:
            raise LakeError(f"{path}: there is no setting {name}: {hint(name, (*_KEYS, *_TABLES))}")
        elif not isinstance(value, _KEYS[name]):
            raise LakeError(f"{path}: {name} = {value!r} has the wrong type")
        elif name in _POSITIVE and not found[name] > 0:
            raise LakeError(f"{path}: {name} = {value!r} must be more than zero")
    try:
        check_names(found.get("kafka", {}))
    except OptionsError as error:
        raise LakeError(f"{path}: [kafka] {error}") from None
    _check_topics(found.get("topics", {}), path)


def check_topic_keys(names: Iterable[str]) -> None:
    """OptionsError for the first that is no setting of a topic."""
    for name in names:
        if name not in _TOPIC_KEYS:
            raise OptionsError(f"a topic has no setting {name}: {hint(name, _TOPIC_KEYS)}")


def _check_topics(topics: Mapping[str, Any], path: str) -> None:
    for topic, settings in topics.items():
        if not isinstance(settings, dict):
            raise LakeError(f"{path}: topics.{topic} is a table: write [topics.{topic}]")
        try:
            check_topic_keys(settings)
        except OptionsError as error:
            raise LakeError(f"{path}: [topics.{topic}] {error}") from None


def _setting_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def topic_config(
    name: str, settings: Mapping[str, str], overrides: Mapping[str, object]
) -> TopicConfig | None:
    """What becomes of a topic with these settings, or None if it is not to have a table."""
    values: dict[str, Any] = {}
    for key in _TOPIC_KEYS:
        definition = TOPIC_SETTINGS[_PREFIX + key]
        text = _setting_text(overrides.get(key, settings.get(_PREFIX + key, "")))
        try:
            value = definition.parse(text) if text else definition.default
        except InvalidSetting as error:
            raise LakeError(f"{error}") from None
        values[key] = ",".join(value) if isinstance(value, tuple) else value
    return None if values["table"] == "none" else TopicConfig(name=name, **values)
