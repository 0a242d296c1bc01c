"""The options of `format("chronik")`: what each means, and what is wrong with them.

Names are those of Spark's `kafka` source wherever it has the thing, in any case, so that code moves
by changing one word. An option that is unknown, or that would do nothing, is an error: a misspelt
`failOnDataLoss` must not pass in silence. What is only about Spark's own Java consumer is ignored
with a word in the log. Security and the brokers' addresses are `connection`'s.

Values are checked here, before anything connects; what needs the cluster to be checked (topics,
partitions, offsets) is checked when a read is planned.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from chronik.protocol.codecs import CODECS
from chronik.spark.connection import NAMES, Connection
from chronik.spark.errors import OptionsError, hint, near
from chronik.spark.positions import (
    EARLIEST,
    LATEST,
    Edge,
    Position,
    Time,
    Times,
    parse_assignment,
    parse_places,
    parse_position,
)

logger = logging.getLogger(__name__)

# Of Spark's kafka source, in its order; `headers` is there when it is asked for.
RAW_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
)
HEADERS: Final = "headers"
DECODE_FORMATS: Final = ("string", "json", "avro", "protobuf")
ENCODE_FORMATS: Final = ("json", "avro")

_SHARED: Final = ("bootstrap", "path")
READ: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "isolation",
    "decode",
    "decodeKey",
    "schema",
    "keySchema",
    "topicId",
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "groupId",
)
# About the consumer that Spark's source has in the JVM: its groups, its patience.
IGNORED: Final = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
WRITE: Final = (
    "topic",
    "encode",
    "schema",
    "writeId",
    "compression",
    "includeHeaders",
    "kafka.acks",
    "kafka.enable.idempotence",
)
# Spark hands its own options on to the sink.
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
ALIASES: Final = {
    "kafka.group.id": "groupId",
    "kafka.isolation.level": "isolation",
    "kafka.compression.type": "compression",
}
_ISOLATIONS: Final = {"read_committed": True, "read_uncommitted": False}
_BOOLEANS: Final = {"true": True, "false": False}
_UNIT_BYTES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)?", re.ASCII | re.IGNORECASE)
MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000  # Spark's own
_BYTES: Final = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which partitions are read: of named topics, of matching ones, or exactly these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are named one by one."""
        return self.topics or tuple(sorted(self.assigned))

    def expected(self, known: Iterable[str]) -> tuple[str, ...]:
        """The topics that must be there: those that are named, or the known ones that match."""
        if self.pattern is None:
            return self.names
        return tuple(name for name in known if re.fullmatch(self.pattern, name))

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern={self.pattern}"
        return ", ".join(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read, batch or stream."""

    connection: Connection
    subscription: Subscription
    starting: Position
    ending: Position
    fails_without_time: bool = False
    min_partitions: int | None = None
    max_records: int | None = None  # of one Spark partition
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    max_bytes: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    read_committed: bool = True
    group_id: str | None = None
    decode: str | None = None
    decode_key: str | None = None
    schema: str | None = None
    key_schema: str | None = None
    topic_id: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write, batch or stream."""

    connection: Connection
    topic: str | None = None
    encode: str | None = None
    schema: str | None = None
    write_id: str | None = None
    compression: str = "none"


def read_options(options: Mapping[str, str], *, is_stream: bool | None) -> ReadOptions:
    """The options of a read, or OptionsError. None: it is not yet known of which kind it is."""
    given = _Given(options, (*_SHARED, *READ, *BATCH_ONLY, *STREAM_ONLY, *IGNORED))
    if is_stream is not None:
        given.ignore(IGNORED if is_stream else (*IGNORED, "kafka.group.id"))
        other = BATCH_ONLY if is_stream else STREAM_ONLY
        given.refuse(other, f"is not for {'streaming' if is_stream else 'batch'} reads")
    given.finish()
    decode, decode_key = (
        given.choice("decode", DECODE_FORMATS),
        given.choice("decodeKey", DECODE_FORMATS),
    )
    _check_schemas(given, decode, decode_key)
    starting = _position(given, "starting", Edge(LATEST if is_stream else EARLIEST))
    if is_stream is False and starting == Edge(LATEST):
        raise OptionsError("startingOffsets=latest would read nothing: a batch ends at the latest")
    isolation = given.choice("isolation", tuple(_ISOLATIONS)) or "read_committed"
    include_headers, columns = given.boolean("includeHeaders", False), given.names("columns")
    headers = HEADERS if decode is None else f"_{HEADERS}"
    if include_headers and columns is not None and headers not in columns:
        raise OptionsError(f"includeHeaders adds {headers}, which columns lacks: keep one of them")
    max_offsets, min_offsets = _offsets_per_trigger(given)
    return ReadOptions(
        connection=given.connection(),
        subscription=_subscription(given),
        starting=starting,
        ending=_position(given, "ending", Edge(LATEST)),
        fails_without_time=_fails_without_time(given),
        min_partitions=given.number("minPartitions"),
        max_records=given.number("maxRecordsPerPartition"),
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_trigger_delay_ms=given.milliseconds("maxTriggerDelay") or MAX_TRIGGER_DELAY_MS,
        max_bytes=given.byte_count("maxBytesPerTrigger"),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=include_headers,
        columns=columns,
        read_committed=_ISOLATIONS[isolation],
        group_id=given.text("groupId"),
        decode=decode,
        decode_key=decode_key,
        schema=given.text("schema"),
        key_schema=given.text("keySchema"),
        topic_id=given.identifier("topicId"),
    )


def write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """The options of a write, or OptionsError."""
    given = _Given(options, (*_SHARED, *WRITE, *_SPARKS_OWN))
    if is_stream:
        given.refuse(
            ("writeId",), "is for batch writes: a stream's are told apart by query and batch"
        )
    given.finish()
    topic, path = given.text("topic"), given.text("path")
    if topic and path and topic != path:
        raise OptionsError(f"topic={topic} and save({path!r}) name two topics: keep one")
    given.boolean("includeHeaders", True)  # As in Spark's sink: it is the column that decides.
    given.only("kafka.acks", ("all", "-1"), "a write waits for all replicas in sync")
    given.only("kafka.enable.idempotence", ("true",), "no record is written twice by retries")
    encode = given.choice("encode", ENCODE_FORMATS)
    schema = given.text("schema")
    if schema is not None and encode != "avro":
        raise OptionsError("schema is for encode=avro: leave it out, or encode as avro")
    return WriteOptions(
        connection=given.connection(),
        topic=topic or path,
        encode=encode,
        schema=schema,
        write_id=given.text("writeId"),
        compression=given.choice("compression", tuple(CODECS)) or "none",
    )


def _offsets_per_trigger(given: "_Given") -> tuple[int | None, int | None]:
    """The most and the least that a trigger takes."""
    most, least = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionsError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    if least is None and given.text("maxTriggerDelay") is not None:
        raise OptionsError("maxTriggerDelay does nothing without minOffsetsPerTrigger: add it")
    return most, least


def _fails_without_time(given: "_Given") -> bool:
    """Whether a partition without a record that late fails: in Spark's words it does."""
    strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
    in_sparks_words = ("startingTimestamp", "startingOffsetsByTimestamp")
    if strategy is None:
        return any(given.text(name) is not None for name in in_sparks_words)
    return strategy == "error"


def _check_schemas(given: "_Given", decode: str | None, decode_key: str | None) -> None:
    for schema, option, format_name in (
        ("schema", "decode", decode),
        ("keySchema", "decodeKey", decode_key),
    ):
        if given.text(schema) is not None and format_name in (None, "string"):
            raise OptionsError(
                f"{schema} says how to decode: add {option}=json, avro or protobuf, or leave it out"
            )
        if given.text(schema) is None and format_name == "protobuf":
            raise OptionsError(f"{option}=protobuf needs {schema}: bytes alone do not tell it")


def _subscription(given: "_Given") -> Subscription:
    ways = {
        name: text
        for name in ("subscribe", "subscribePattern", "assign", "path")
        if (text := given.text(name)) is not None
    }
    if len(ways) > 1:
        raise OptionsError(f"{' and '.join(ways)} each say what to read: keep one of them")
    if not ways:
        raise OptionsError(
            "nothing says what to read: add the option subscribe (topics, comma-separated),"
            ' subscribePattern or assign (JSON such as {"orders": [0, 1]})'
        )
    ((way, text),) = ways.items()
    if way == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionsError(f"subscribePattern={text!r} is no pattern: {error}") from None
        return Subscription(pattern=text)
    if way == "assign":
        return Subscription(assigned=parse_assignment("assign", text))
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in topics:
        raise OptionsError(f"{way}={text!r} has an empty name between its commas")
    return Subscription(topics=topics)


def _position(given: "_Given", which: str, default: Position) -> Position:
    """As in Spark's source, a time comes before times by partition, and those before offsets."""
    name = f"{which}Timestamp"
    if given.text(name) is not None:
        return Time(given.number(name, least=0) or 0)
    name = f"{which}OffsetsByTimestamp"
    text = given.text(name)
    if text is not None:
        return Times(parse_places(name, text, least=0))
    name = f"{which}Offsets"
    text = given.text(name)
    if text is None:
        return default
    position = parse_position(name, text)
    wrong = Edge(EARLIEST) if which == "ending" else None
    if position == wrong:
        raise OptionsError("endingOffsets=earliest would read nothing: say latest or an offset")
    return position


class _Given:
    """Options as the user gave them, by lower-case name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._known = {name.lower(): name for name in known}
        self._kafka: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._unknown: list[str] = []
        self._as_alias: set[str] = set()
        for name, value in options.items():
            self._take(name.lower(), value)

    def _take(self, name: str, value: str) -> None:
        own = ALIASES.get(name)
        if own is not None and own.lower() in self._known:
            self._as_alias.add(name)
            if self._values.setdefault(own.lower(), value) != value:
                raise OptionsError(f"{name} and {own} say the same thing differently: keep one")
        elif name in self._known:
            if self._values.setdefault(name, value) != value:
                raise OptionsError(
                    f"{self._known[name]}={value} contradicts {self._values[name]}: keep one"
                )
        elif Connection.takes(name):
            self._kafka[name] = value
        else:
            self._unknown.append(name)

    def ignore(self, names: tuple[str, ...]) -> None:
        """Take no notice of options that are about something that there is not here."""
        for name in names:
            if name in self._as_alias:
                ignored = self._values.pop(ALIASES[name].lower(), None)
            else:
                ignored = self._values.pop(name.lower(), None)
            if ignored is not None:
                logger.warning("the option %s is about Spark's Java consumer: ignored", name)

    def only(self, name: str, values: tuple[str, ...], why: str) -> None:
        """Raise unless an option says what is done anyway."""
        value = self.text(name)
        if value is not None and value.lower() not in values:
            raise OptionsError(f"{name}={value} cannot be had: {why}; leave it out")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Raise for options that are good elsewhere."""
        for name in names:
            if name.lower() in self._unknown or name.lower() in self._values:
                raise OptionsError(f"the option {name} {why}: leave it out")

    def finish(self) -> None:
        """Raise for the first option that nobody knows."""
        if self._unknown:
            name = self._unknown[0]
            meant = near(name, (*ALIASES, *(f"kafka.{each}" for each in NAMES)))
            if name.startswith("kafka.") and meant is not None:
                raise OptionsError(f"there is no option {name}: did you mean {meant}?")
            if name.startswith("kafka."):
                raise OptionsError(
                    f"{name} is a setting of Kafka's Java client, and this source has none such:"
                    " leave it out"
                )
            raise OptionsError(f"there is no option {name}: {hint(name, self._known.values())}")

    def connection(self) -> Connection:
        """The brokers and how to log in there."""
        bootstrap = self.text("bootstrap")
        options = dict(self._kafka)
        if bootstrap is not None:
            kafka = options.setdefault("kafka.bootstrap.servers", bootstrap)
            if kafka != bootstrap:
                raise OptionsError("bootstrap and kafka.bootstrap.servers differ: keep one")
        return Connection.from_options(options)

    def text(self, name: str) -> str | None:
        """The value, or None where it was not given or is blank."""
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise OptionsError(f"the option {name} is empty: give it a value or leave it out")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """One of some words, in any case."""
        value = self.text(name)
        if value is None:
            return None
        if value.lower() not in choices:
            raise OptionsError(f"{name}={value!r} is not one of {', '.join(choices)}")
        return value.lower()

    def boolean(self, name: str, default: bool) -> bool:
        """true or false."""
        word = self.choice(name, tuple(_BOOLEANS))
        return default if word is None else _BOOLEANS[word]

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.strip().isdecimal() and int(value) >= least):
            raise OptionsError(f"{name}={value!r} is not a whole number of at least {least}")
        return int(value)

    def milliseconds(self, name: str) -> int | None:
        """A span of time: 5m, 30s, or a number of milliseconds."""
        value = self.text(name)
        if value is None:
            return None
        found = _SPAN.fullmatch(value.strip())
        if found is None or int(found[1]) == 0:
            raise OptionsError(f"{name}={value!r} is no span of time: say 500ms, 30s, 5m or 1h")
        return int(found[1]) * _UNIT_MS[(found[2] or "ms").lower()]

    def byte_count(self, name: str) -> int | None:
        """A number of bytes: 1048576, 64k, 10m or 1g."""
        value = self.text(name)
        if value is None:
            return None
        found = _BYTES.fullmatch(value.strip())
        if found is None or int(found[1]) == 0:
            raise OptionsError(f"{name}={value!r} is no size: say 1048576, 512k, 64m or 1g")
        return int(found[1]) * _UNIT_BYTES[found[2].lower()]

    def identifier(self, name: str) -> bytes | None:
        """A topic's id, in hexadecimal."""
        value = self.text(name)
        if value is None:
            return None
        if re.fullmatch(r"[0-9a-fA-F]{32}", value) is None:
            raise OptionsError(f"{name}={value!r} is no topic id: it has 32 hexadecimal digits")
        return bytes.fromhex(value)

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names with commas between them, each once."""
        value = self.text(name)
        if value is None:
            return None
        found = [each.strip() for each in value.split(",")]
        if "" in found or len(set(found)) < len(found):
            raise OptionsError(f"{name}={value!r} has an empty name or one twice")
        return tuple(found)
