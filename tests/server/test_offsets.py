"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords on the wire."""

from typing import Any

import pytest

from chronik.protocol import apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from chronik.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from chronik.protocol.records import Record, build_batch
from chronik.testing import Broker


def delete_records(wire: Any, offset: int, *, version: int = 2, partition: int = 0) -> Any:
    partitions = [DeleteRecordsPartition(partition_index=partition, offset=offset)]
    topics = [DeleteRecordsTopic(name="t", partitions=partitions)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=5000)
    return wire.ask(apis.DELETE_RECORDS, version, request).topics[0].partitions[0]


@pytest.fixture
def timed(wire: Any, say: Any) -> Any:
    """Two batches: offsets 0-2 at 100, 300, 200 and 3-4 at 250, 400."""
    say.create(wire, "t")
    for stamps in ((100, 300, 200), (250, 400)):
        records = [Record(n, stamp, b"k", b"v") for n, stamp in enumerate(stamps)]
        say.produce(wire, "t", build_batch(records))
    return wire


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (-1, 5, -1),
        (-2, 0, -1),
        (0, 0, 100),
        (100, 0, 100),
        (101, 1, 300),
        (300, 1, 300),
        (301, 4, 400),
        (400, 4, 400),
        (401, -1, -1),
    ],
)
def test_by_timestamp_finds_the_first_record_at_or_after(
    timed: Any, say: Any, version: int, timestamp: int, offset: int, found: int
) -> None:
    answer = say.list_offset(timed, "t", timestamp, version=version)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found)


@pytest.mark.parametrize(("timestamp", "offsets"), [(-1, [5]), (-2, [0])])
def test_v0_answers_a_list(timed: Any, say: Any, timestamp: int, offsets: list[int]) -> None:
    assert say.list_offset(timed, "t", timestamp, version=0).old_style_offsets == offsets


def test_the_largest_timestamp(timed: Any, say: Any) -> None:
    answer = say.list_offset(timed, "t", -3, version=7)
    assert (answer.offset, answer.timestamp) == (4, 400)
    refused = say.list_offset(timed, "t", -3, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_tiered_offsets_are_the_local_ones(timed: Any, say: Any) -> None:
    assert say.list_offset(timed, "t", -4, version=8).offset == 0
    assert say.list_offset(timed, "t", -5, version=9).offset == -1


def test_an_empty_partition(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    assert [say.list_offset(wire, "t", t).offset for t in (-1, -2, -3, 5)] == [0, 0, -1, -1]


def test_deleted_records_are_gone_for_everybody(timed: Any, say: Any) -> None:
    assert delete_records(timed, 4).low_watermark == 4
    assert say.list_offset(timed, "t", -2).offset == 4
    assert say.list_offset(timed, "t", 0).offset == 4
    assert say.fetch(timed, "t", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert say.fetch(timed, "t", 4).log_start_offset == 4


@pytest.mark.parametrize("version", [0, 1, 2])
def test_minus_one_deletes_to_the_high_watermark(timed: Any, say: Any, version: int) -> None:
    assert delete_records(timed, -1, version=version).low_watermark == 5
    assert say.list_offset(timed, "t", -2).offset == 5
    assert say.produce(timed, "t", say.batch(b"x")).base_offset == 5


def test_deleting_beyond_the_end_or_nowhere(timed: Any, say: Any) -> None:
    assert delete_records(timed, 6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(timed, -2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    unknown = delete_records(timed, 0, partition=7)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown.low_watermark == -1
    assert delete_records(timed, 3).low_watermark == 3
    assert delete_records(timed, 1).low_watermark == 3


def test_deleted_records_stay_deleted_over_a_restart(tmp_path: Any, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as first:
        wire = connect(first)
        say.create(wire, "t")
        for _ in range(5):
            say.produce(wire, "t", say.batch(b"x"))
        delete_records(wire, 3)
    with Broker(data_dir=str(tmp_path)) as second:
        assert say.list_offset(connect(second), "t", -2).offset == 3


def epoch_end(wire: Any, epoch: int, *, version: int = 4, current: int = -1) -> Any:
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=[partition])]
    )
    response = wire.ask(apis.OFFSET_FOR_LEADER_EPOCH, version, request)
    return response.topics[0].partitions[0]


def test_where_epochs_end(tmp_path: Any, connect: Any, say: Any) -> None:
    for epoch in range(3):
        with Broker(data_dir=str(tmp_path)) as broker:
            wire = connect(broker)
            if epoch == 0:
                say.create(wire, "t")
            for _ in range(epoch + 1):
                say.produce(wire, "t", say.batch(b"x"))
            if epoch < 2:
                continue
            found = [
                (answer.leader_epoch, answer.end_offset)
                for answer in (epoch_end(wire, asked) for asked in (0, 1, 2, 3))
            ]
            assert found == [(0, 1), (1, 3), (2, 6), (-1, -1)]
            fenced = epoch_end(wire, 0, current=1)
            assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
            for version in range(5):
                assert epoch_end(wire, 0, version=version).end_offset == 1
