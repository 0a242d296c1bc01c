"""Options: Kafka's words in any case, and one clear sentence for what is wrong."""

import pickle
from pathlib import Path

import pytest

from chronik.model import TopicPartition
from chronik.spark import options
from chronik.spark.errors import OptionsError
from chronik.spark.options import ReadOptions, WriteOptions, read_options, write_options
from chronik.spark.positions import Ago, Edge, Offsets, Time, Times

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def read(is_stream: bool = False, **options: str) -> ReadOptions:
    return read_options({**BROKERS, "subscribe": "a", **options}, is_stream=is_stream)


def write(is_stream: bool = False, **options: str) -> WriteOptions:
    return write_options({**BROKERS, **options}, is_stream=is_stream)


def test_defaults_are_those_of_the_kafka_source() -> None:
    batch, stream = read(), read(is_stream=True)
    assert (batch.starting, batch.ending) == (Edge(-2), Edge(-1))
    assert stream.starting == Edge(-1)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.read_committed


def test_names_are_known_in_any_case() -> None:
    options = read(failondataloss="FALSE", INCLUDEHEADERS="true", minPARTITIONS="4")
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.min_partitions == 4


def test_bootstrap_is_short_for_the_kafka_name() -> None:
    options = read_options({"bootstrap": "h:1,i:2", "subscribe": "a"}, is_stream=False)
    assert options.connection.bootstrap == "h:1,i:2"


def test_load_may_name_the_topic() -> None:
    options = read_options({**BROKERS, "path": "orders"}, is_stream=False)
    assert options.subscription.topics == ("orders",)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Edge(-2)),
        ("EARLIEST", Edge(-2)),
        ("-10m", Ago(600_000)),
        ("-1.5h", Ago(5_400_000)),
        ("-250ms", Ago(250)),
        ("1970-01-02", Time(86_400_000)),
        ("1970-01-01T00:00:01.0015+00:00", Time(1002)),
        ("1970-01-01 02:00:01+01:00", Time(3_601_000)),
        ("1969-01-01T00:00:00Z", Time(0)),
        (
            '{"a": {"0": 23, "1": -2}}',
            Offsets({TopicPartition("a", 0): 23, TopicPartition("a", 1): -2}),
        ),
    ],
)
def test_starting_positions(text, position) -> None:
    assert read(startingOffsets=text).starting == position


def test_times() -> None:
    assert read(startingTimestamp="5").starting == Time(5)
    times = read(endingOffsetsByTimestamp='{"a": {"3": 77}}').ending
    assert times == Times({TopicPartition("a", 3): 77})


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("64k", 65536), ("2MB", 2 << 20)])
def test_sizes(text, size) -> None:
    assert read(is_stream=True, maxBytesPerTrigger=text).max_bytes == size


def test_kafka_names_for_group_and_isolation() -> None:
    options = read(
        is_stream=True, **{"kafka.group.id": "g", "kafka.isolation.level": "read_uncommitted"}
    )
    assert options.group_id == "g"
    assert not options.read_committed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscrib": "a"}, "did you mean subscribe?"),
        ({"zzz": "a"}, "there are: assign"),
        ({"kafka.max.poll.records": "5"}, "Java client"),
        ({"assign": '{"a": [0]}'}, "subscribe and assign each say what to read"),
        ({"startingOffsets": "erliest"}, "say earliest, latest, a time span"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "wants JSON such as"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "wants JSON such as"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "wants JSON such as"),
        ({"startingOffsets": "{}"}, "names no partition"),
        ({"startingOffsets": "{"}, "is no JSON"),
        ({"kafka.secuirty.protocol": "SSL"}, "did you mean kafka.security.protocol?"),
        ({"kafka.session.timeout.ms": "1"}, "Java client"),
        ({"maxRecordsPerPartition": "0"}, "at least 1"),
        ({"minOffsetsPerTrigger": "1"}, "not for batch reads"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"startingOffsets": "latest"}, "would read nothing"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"minPartitions": "two"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true, false"),
        ({"isolation": "dirty"}, "read_committed, read_uncommitted"),
        ({"decode": "xml"}, "string, json, avro, protobuf"),
        ({"decode": "protobuf"}, "needs schema"),
        ({"schema": "a int"}, "add decode=json"),
        ({"columns": "key,,value"}, "empty name"),
        ({"columns": "key,key"}, "one twice"),
        ({"includeHeaders": "true", "columns": "value"}, "includeHeaders adds headers, which"),
        (
            {"includeHeaders": "true", "columns": "headers", "decode": "string"},
            "adds _headers, which columns lacks",
        ),
        ({"groupId": "g"}, "not for batch reads"),
        ({"maxOffsetsPerTrigger": "1"}, "not for batch reads"),
        ({"bootstrap": "other:1"}, "differ: keep one"),
        ({"subscribe": "a,,b"}, "empty name"),
        ({"subscribe": " "}, "is empty"),
        ({"kafka.isolation.level": "read_committed", "isolation": "read_uncommitted"}, "keep one"),
    ],
)
def test_wrong_options_say_what_to_do(options, words) -> None:
    with pytest.raises(OptionsError) as caught:
        read(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_time_comes_before_offsets_as_in_the_kafka_source() -> None:
    by_place = '{"a": {"0": 7}}'
    assert read(startingOffsets="latest", startingTimestamp="5").starting == Time(5)
    times = read(startingOffsets="earliest", startingOffsetsByTimestamp=by_place).starting
    assert times == Times({TopicPartition("a", 0): 7})
    assert read(startingOffsetsByTimestamp=by_place, startingTimestamp="5").starting == Time(5)
    assert read(endingOffsets="latest", endingTimestamp="5").ending == Time(5)


def test_a_partition_without_a_record_that_late_fails_as_in_the_kafka_source() -> None:
    assert read(startingTimestamp="5").fails_without_time
    assert read(startingOffsetsByTimestamp='{"a": {"0": 7}}').fails_without_time
    late = read(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")
    assert not late.fails_without_time
    assert not read(startingOffsets="2026-01-01").fails_without_time, "our own words"
    strict = read(startingOffsets="2026-01-01", startingOffsetsByTimestampStrategy="error")
    assert strict.fails_without_time


def test_what_is_about_a_java_consumer_is_ignored_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = dict.fromkeys(options.IGNORED, "7")
    assert read(**given, **{"kafka.group.id": "g"}) == read()
    told = {each.args[0] for each in caplog.records if each.args}
    assert told == {*options.IGNORED, "kafka.group.id"}
    assert read(is_stream=True, **given) == read(is_stream=True)


@pytest.mark.parametrize(
    ("text", "span_ms"), [("5m", 300_000), ("1500", 1500), ("2 min", 120_000), ("250MS", 250)]
)
def test_limits_of_triggers(text: str, span_ms: int) -> None:
    given = read(
        is_stream=True,
        minOffsetsPerTrigger="5",
        maxOffsetsPerTrigger="9",
        maxTriggerDelay=text,
        maxRecordsPerPartition="3",
    )
    assert (given.min_offsets, given.max_offsets, given.max_records) == (5, 9, 3)
    assert given.max_trigger_delay_ms == span_ms
    assert read(is_stream=True).max_trigger_delay_ms == 900_000


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is more than"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "no span of time"),
        ({"maxTriggerDelay": "5m"}, "does nothing without minOffsetsPerTrigger"),
    ],
)
def test_limits_of_triggers_that_cannot_be(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        read(is_stream=True, **given)


def test_streams_refuse_what_is_for_batches() -> None:
    with pytest.raises(OptionsError, match="endingOffsets is not for streaming reads"):
        read(is_stream=True, endingOffsets="latest")


def test_something_must_be_read() -> None:
    with pytest.raises(OptionsError, match="nothing says what to read"):
        read_options(BROKERS, is_stream=False)


def test_brokers_must_be_named() -> None:
    with pytest.raises(OptionsError, match=r"kafka\.bootstrap\.servers"):
        read_options({"subscribe": "a"}, is_stream=False)


def test_a_bad_pattern_is_refused() -> None:
    with pytest.raises(OptionsError, match="is no pattern"):
        read_options({**BROKERS, "subscribePattern": "a("}, is_stream=False)


def test_an_assignment() -> None:
    options = read_options({**BROKERS, "assign": '{"a": [2, 0, 2]}'}, is_stream=False)
    assert options.subscription.assigned == {"a": (0, 2)}


@pytest.mark.parametrize("text", ['{"a": []}', '{"a": [-1]}', '{"a": 1}', "{}", "[]"])
def test_bad_assignments(text) -> None:
    with pytest.raises(OptionsError, match="assign wants JSON"):
        read_options({**BROKERS, "assign": text}, is_stream=False)


def test_a_write() -> None:
    options = write(topic="a", encode="JSON", writeId="w")
    assert (options.topic, options.encode, options.write_id) == ("a", "json", "w")
    assert write(path="b").topic == "b"
    kafkas = {"kafka.acks": "all", "includeHeaders": "true", "kafka.enable.idempotence": "true"}
    assert (
        write(topic="a", **kafkas) == write(topic="a", **{"kafka.acks": "-1"}) == write(topic="a")
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a", "path": "b"}, "name two topics"),
        ({"encode": "protobuf"}, "json, avro"),
        ({"schema": "{}"}, "encode as avro"),
        ({"subscribe": "a"}, "there is no option subscribe"),
        ({"kafka.acks": "1"}, "kafka.acks=1 cannot be had: a write waits for all replicas"),
        ({"kafka.linger.ms": "5"}, r"kafka\.linger\.ms is a setting of Kafka's Java client"),
    ],
)
def test_wrong_write_options(options, words) -> None:
    with pytest.raises(OptionsError, match=words):
        write(**options)


def test_streams_have_no_write_id() -> None:
    with pytest.raises(OptionsError, match="writeId is for batch writes"):
        write(is_stream=True, writeId="w")


def test_security_reaches_the_connection_and_shows_nowhere() -> None:
    secret = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ada",
        "kafka.sasl.password": "hunter2",
    }
    options = read(**secret)
    assert options == pickle.loads(pickle.dumps(options))
    assert options.connection != read().connection
    assert "hunter2" not in repr(options)
    assert "hunter2" not in repr(write(**secret, topic="t"))
    with pytest.raises(OptionsError) as caught:
        read(**secret, zzz="1")
    assert "hunter2" not in str(caught.value)


def test_security_may_be_named_without_its_prefix() -> None:
    plain = read(**{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
                    "sasl.username": "ada", "sasl.password": "hunter2"})  # fmt: skip
    assert plain.connection.security != read().connection.security


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "SPARK.md").read_text()
    known = {*options.READ, *options.BATCH_ONLY, *options.STREAM_ONLY, *options.WRITE}
    known |= {*options.IGNORED}
    missing = {name for name in known | set(options.ALIASES) if f"`{name}`" not in page}
    assert not missing
    read_only = {*options.READ, *options.BATCH_ONLY, *options.STREAM_ONLY} - {"schema"}
    assert not [name for name in read_only if f"`{name}`" not in page.split("## Writing")[0]]
