"""Produce on the wire: acks, validation, idempotence, old formats."""

from typing import Any

import pytest

from chronik.protocol import apis, codecs
from chronik.protocol.batch import TIMESTAMP_TYPE_FLAG, read_header, split, stamp
from chronik.protocol.errors import ErrorCode
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.testing import Broker


def values(data: bytes) -> list[bytes | None]:
    return [record.value for batch in split(data) for record in iter_records(batch.data)]


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_each_version_appends_and_answers_the_offset(
    wire: Any, say: Any, version: int, acks: int
) -> None:
    say.create(wire, "t")
    for base_offset in (0, 2):
        answer = say.produce(wire, "t", say.batch(b"a", b"b"), version=version, acks=acks)
        assert (answer.error_code, answer.base_offset) == (0, base_offset)
    assert values(say.fetch(wire, "t", 0).records) == [b"a", b"b"] * 2


def test_v13_names_topics_by_id(wire: Any, say: Any) -> None:
    topic_id = say.create(wire, "t")
    response = wire.ask(apis.PRODUCE, 13, say.produce_request(topic_id, say.batch(b"x")))
    assert response.responses[0].topic_id == topic_id
    assert response.responses[0].partition_responses[0].base_offset == 0
    unknown = wire.ask(apis.PRODUCE, 13, say.produce_request(bytes(15) + b"x", say.batch(b"x")))
    answer = unknown.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_the_stored_bytes_are_the_producers_but_for_offset_and_epoch(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"first"))
    sent = say.batch(b"x", b"y", codec=codecs.ZSTD)
    say.produce(wire, "t", sent)
    stored = say.fetch(wire, "t", 1).records
    header = read_header(sent)
    assert bytes(stored) == stamp(1, header.length, 0) + sent[16:]


def test_acks_0_has_no_answer(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    wire.send(apis.PRODUCE, 9, say.produce_request("t", say.batch(b"x"), acks=0))
    assert values(say.fetch(wire, "t", 0, max_wait_ms=1000).records) == [b"x"]


def test_acks_0_with_an_error_closes_the_connection(
    broker: Broker, connect: Any, wire: Any, say: Any
) -> None:
    doomed = connect(broker)
    doomed.send(apis.PRODUCE, 9, say.produce_request("no-such", say.batch(b"x"), acks=0))
    assert doomed.is_closed()
    assert say.metadata(wire).brokers


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(wire: Any, say: Any, acks: int) -> None:
    say.create(wire, "t")
    answer = say.produce(wire, "t", say.batch(b"x"), acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert (answer.base_offset, answer.log_append_time_ms, answer.log_start_offset) == (-1, -1, -1)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


def test_bad_batches_are_refused_and_not_stored(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    good = say.batch(b"x")
    cases = {
        "crc": (flipped(good), ErrorCode.CORRUPT_MESSAGE),
        "cut": (good[:-1], ErrorCode.INVALID_RECORD),
        "two": (good + good, ErrorCode.INVALID_RECORD),
        "empty": (b"", ErrorCode.INVALID_RECORD),
        "null": (None, ErrorCode.INVALID_RECORD),
        "header only": (good[:40], ErrorCode.INVALID_RECORD),
        "control": (
            build_batch([Record(0, 1, b"\0\0\0\0", b"")], control=True),
            ErrorCode.INVALID_RECORD,
        ),
        "magic": (good[:16] + b"\x03" + good[17:], ErrorCode.INVALID_RECORD),
    }
    for name, (data, code) in cases.items():
        answer = say.produce(wire, "t", data)
        assert answer.error_code == code, name
        assert answer.base_offset == -1, name
    assert say.list_offset(wire, "t", -1).offset == 0


def test_unknown_topics_and_partitions(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    for topic, partition in (("u", 0), ("t", 1), ("t", -1)):
        answer = say.produce(wire, topic, say.batch(b"x"), partition=partition)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_batch_over_max_message_bytes_is_too_large(wire: Any, say: Any) -> None:
    say.create(wire, "t", max_message_bytes="200")
    assert say.produce(wire, "t", say.batch(b"x" * 50)).error_code == 0
    answer = say.produce(wire, "t", say.batch(b"x" * 200))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in answer.error_message


def test_timestamps_out_of_bounds_name_their_records(wire: Any, say: Any) -> None:
    say.create(
        wire, "t", message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000"
    )
    for timestamp in (1, 4_000_000_000_000):
        answer = say.produce(wire, "t", say.batch(b"x", timestamp=timestamp))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in answer.record_errors] == [0]


def test_log_append_time_is_the_brokers(wire: Any, say: Any) -> None:
    say.create(wire, "t", message_timestamp_type="LogAppendTime")
    answer = say.produce(wire, "t", say.batch(b"x", b"y", timestamp=5))
    assert answer.log_append_time_ms > 1_700_000_000_000
    data = say.fetch(wire, "t", 0).records
    header = read_header(data)
    assert header.attributes & TIMESTAMP_TYPE_FLAG
    assert {r.timestamp for r in iter_records(data)} == {answer.log_append_time_ms}


def test_a_compacted_topic_wants_keys_and_names_the_records_without(wire: Any, say: Any) -> None:
    say.create(wire, "t", cleanup_policy="compact")
    records = [Record(0, 1, b"k", b"v"), Record(1, 1, None, b"v"), Record(2, 1, None, b"w")]
    answer = say.produce(wire, "t", build_batch(records))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [1, 2]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_compression_type_recompresses(wire: Any, say: Any, codec: str) -> None:
    say.create(wire, "t", compression_type=codec)
    say.produce(wire, "t", say.batch(b"x" * 100, b"y" * 100, codec=codecs.GZIP))
    data = say.fetch(wire, "t", 0).records
    expected = codecs.CODECS["none" if codec == "uncompressed" else codec]
    assert read_header(data).codec == expected
    assert values(data) == [b"x" * 100, b"y" * 100]


def test_zstd_needs_produce_7(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    data = say.batch(b"x", codec=codecs.ZSTD)
    assert say.produce(wire, "t", data, version=6).error_code == (
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )
    assert say.produce(wire, "t", data, version=7).error_code == 0


def test_a_second_batch_does_not_pass_for_the_first(wire: Any, say: Any) -> None:
    """The first was refused, so that nothing is known of the producer when the second comes."""

    def sent(sequence: int, acks: int = 1) -> int:
        data = idempotent(say, b"v", sequence=sequence)
        error_code: int = say.produce(wire, "t", data, acks=acks).error_code
        return error_code

    assert sent(0, acks=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    say.create(wire, "t")
    assert sent(1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "as the one before it"
    assert [sent(sequence) for sequence in range(3)] == [0, 0, 0]
    assert say.list_offset(wire, "t", -1).offset == 3


def test_min_insync_replicas_asks_for_no_more_replicas_than_there_are(wire: Any, say: Any) -> None:
    """As Kafka's brokers have it since KIP-966."""
    say.create(wire, "t", min_insync_replicas="2")
    assert say.produce(wire, "t", say.batch(b"x")).error_code == 0
    assert say.produce(wire, "t", say.batch(b"x"), acks=1).error_code == 0


def idempotent(
    say: Any, *data: bytes, sequence: int, epoch: int = 0, producer_id: int = 7
) -> bytes:
    batch: bytes = say.batch(
        *data, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    return batch


def test_a_repeated_batch_is_answered_and_not_stored_again(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    batches = [idempotent(say, b"a", b"b", sequence=2 * n) for n in range(6)]
    for number, data in enumerate(batches):
        assert say.produce(wire, "t", data).base_offset == 2 * number
    for number in range(1, 6):
        answer = say.produce(wire, "t", batches[number])
        assert (answer.error_code, answer.base_offset) == (0, 2 * number)
    forgotten = say.produce(wire, "t", batches[0])
    assert forgotten.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert say.list_offset(wire, "t", -1).offset == 12


def test_gaps_and_old_epochs_are_refused(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    assert say.produce(wire, "t", idempotent(say, b"a", sequence=0)).error_code == 0
    gap = say.produce(wire, "t", idempotent(say, b"a", sequence=2))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert say.produce(wire, "t", idempotent(say, b"a", sequence=0, epoch=1)).error_code == 0
    old = say.produce(wire, "t", idempotent(say, b"a", sequence=1, epoch=0))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    last = 2**31 - 1
    assert say.produce(wire, "t", idempotent(say, b"a", sequence=last)).error_code == 0
    assert say.produce(wire, "t", idempotent(say, b"b", sequence=0)).error_code == 0


def test_producers_are_remembered_over_a_restart(tmp_path: Any, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as first:
        wire = connect(first)
        say.create(wire, "t")
        data = idempotent(say, b"a", b"b", sequence=0)
        assert say.produce(wire, "t", data).base_offset == 0
    with Broker(data_dir=str(tmp_path)) as second:
        wire = connect(second)
        assert say.produce(wire, "t", data).base_offset == 0
        assert say.produce(wire, "t", idempotent(say, b"c", sequence=2)).base_offset == 2


def test_pipelined_requests_are_answered_in_order(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    numbers = [
        wire.send(apis.PRODUCE, 9, say.produce_request("t", say.batch(str(n).encode())))
        for n in range(300)
    ]
    answers = [wire.receive(apis.PRODUCE, 9) for _ in numbers]
    assert [number for number, _ in answers] == numbers
    offsets = [each.responses[0].partition_responses[0].base_offset for _, each in answers]
    assert offsets == list(range(300))


def test_many_partitions_in_one_request(wire: Any, say: Any) -> None:
    say.create(wire, "t", partitions=5)
    for partition in (3, 1, 3):
        say.produce(wire, "t", say.batch(b"x"), partition=partition)
    ends = [len(values(say.fetch(wire, "t", 0, partitions=(n,)).records)) for n in range(5)]
    assert ends == [0, 1, 0, 2, 0]
