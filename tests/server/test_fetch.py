"""Fetch on the wire: limits, waiting, sessions, ranges, epochs, old formats."""

import threading
import time
from typing import Any

import pytest

from chronik.protocol import apis, codecs
from chronik.protocol.batch import split
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.fetch import FetchRequest, FetchTopic, ForgottenTopic
from chronik.protocol.records import iter_records
from chronik.testing import Broker


def values(data: Any) -> list[bytes | None]:
    return [record.value for batch in split(data) for record in iter_records(batch.data)]


@pytest.fixture
def filled(wire: Any, say: Any) -> Any:
    """A topic with ten batches of 1,000 bytes, a record each."""
    say.create(wire, "t")
    for number in range(10):
        say.produce(wire, "t", say.batch(bytes((number,)) * 1000))
    return wire


@pytest.mark.parametrize("version", range(4, 13))
def test_each_version_reads_from_an_offset(filled: Any, say: Any, version: int) -> None:
    answer = say.fetch(filled, "t", 8, version=version)
    assert answer.high_watermark == 10
    assert values(answer.records) == [b"\x08" * 1000, b"\x09" * 1000]


@pytest.mark.parametrize("version", range(13, 19))
def test_later_versions_read_by_id(wire: Any, say: Any, version: int) -> None:
    topic_id = say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"x"))
    response = wire.ask(apis.FETCH, version, say.fetch_request(topic_id, 0))
    assert response.responses[0].topic_id == topic_id
    assert values(response.responses[0].partitions[0].records) == [b"x"]
    unknown = wire.ask(apis.FETCH, version, say.fetch_request(bytes(15) + b"x", 0))
    answer = unknown.responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_get_message_sets(filled: Any, say: Any, version: int) -> None:
    data = say.fetch(filled, "t", 9, version=version).records
    assert data[16] == (0 if version < 2 else 1)
    assert data.count(b"\x09") >= 1000


def test_whole_batches_within_the_limits_and_at_least_one(filled: Any, say: Any) -> None:
    one = len(say.fetch(filled, "t", 9).records)
    assert len(say.fetch(filled, "t", 0, partition_max_bytes=1).records) == one
    assert len(say.fetch(filled, "t", 0, max_bytes=1).records) == one
    assert len(say.fetch(filled, "t", 0, partition_max_bytes=3 * one + 10).records) == 3 * one
    assert len(say.fetch(filled, "t", 0, partition_max_bytes=3 * one).records) == 3 * one


def test_a_full_fetch_answers_every_partition_even_without_room(wire: Any, say: Any) -> None:
    say.create(wire, "t", partitions=4)
    for partition in range(4):
        say.produce(wire, "t", say.batch(b"x" * 1000), partition=partition)
    request = say.fetch_request("t", 0, partitions=(0, 1, 2, 3), max_bytes=1500)
    answers = wire.ask(apis.FETCH, 12, request).responses[0].partitions
    assert [each.partition_index for each in answers] == [0, 1, 2, 3]
    assert [bool(each.records) for each in answers] == [True, False, False, False]


def test_an_offset_inside_a_batch_gives_that_batch(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    say.produce(wire, "t", say.batch(b"a", b"b", b"c"))
    assert values(say.fetch(wire, "t", 2).records) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("offset", "code"), [(10, 0), (11, 1), (-1, 1), (2**62, 1)])
def test_offsets_out_of_range(filled: Any, say: Any, offset: int, code: int) -> None:
    answer = say.fetch(filled, "t", offset)
    assert answer.error_code == code
    assert answer.records == b""


def test_leader_epochs_of_the_past_and_the_future(tmp_path: Any, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as first:
        say.create(connect(first), "t")
    with Broker(data_dir=str(tmp_path)) as second:
        wire = connect(second)
        assert say.metadata(wire, "t").topics[0].partitions[0].leader_epoch == 1
        for epoch, code in (
            (0, ErrorCode.FENCED_LEADER_EPOCH),
            (1, ErrorCode.NONE),
            (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (-1, ErrorCode.NONE),
        ):
            assert say.fetch(wire, "t", 0, epoch=epoch).error_code == code


def test_a_position_of_another_history_is_told_where_it_diverges(
    tmp_path: Any, connect: Any, say: Any
) -> None:
    """Epochs 0 and 2 have a record each: whoever read more of epoch 0 or any of 1 has diverged."""
    for epoch in range(3):
        with Broker(data_dir=str(tmp_path)) as broker:
            wire = connect(broker)
            if epoch == 0:
                say.create(wire, "t")
            if epoch != 1:
                say.produce(wire, "t", say.batch(b"x"))
            if epoch < 2:
                continue
            assert say.fetch(wire, "t", 1, last_fetched_epoch=0).diverging_epoch.epoch == -1
            assert say.fetch(wire, "t", 2, last_fetched_epoch=2).diverging_epoch.epoch == -1
            for asked in (0, 1):
                answer = say.fetch(wire, "t", 2, last_fetched_epoch=asked)
                diverging = answer.diverging_epoch
                assert (diverging.epoch, diverging.end_offset) == (0, 1)
            unknown = say.fetch(wire, "t", 1, last_fetched_epoch=5)
            assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_parked_fetch_wakes_on_the_append(
    broker: Broker, connect: Any, wire: Any, say: Any
) -> None:
    say.create(wire, "t")
    reader = connect(broker)
    began = time.monotonic()
    reader.send(apis.FETCH, 12, say.fetch_request("t", 0, max_wait_ms=9_000))
    time.sleep(0.05)
    say.produce(wire, "t", say.batch(b"x"))
    _, response = reader.receive(apis.FETCH, 12)
    assert values(response.responses[0].partitions[0].records) == [b"x"]
    assert time.monotonic() - began < 5


def test_min_bytes_waits_for_enough(broker: Broker, connect: Any, wire: Any, say: Any) -> None:
    say.create(wire, "t")
    reader = connect(broker)
    reader.send(apis.FETCH, 12, say.fetch_request("t", 0, max_wait_ms=9_000, min_bytes=2500))
    for _ in range(3):
        say.produce(wire, "t", say.batch(b"x" * 1000))
    _, response = reader.receive(apis.FETCH, 12)
    assert len(values(response.responses[0].partitions[0].records)) == 3


def test_max_wait_ends_a_fetch_without_data(wire: Any, say: Any) -> None:
    say.create(wire, "t")
    began = time.monotonic()
    answer = say.fetch(wire, "t", 0, max_wait_ms=100)
    assert answer.records == b""
    assert time.monotonic() - began >= 0.09


def test_deleting_the_topic_wakes_a_parked_fetch(
    broker: Broker, connect: Any, wire: Any, say: Any
) -> None:
    from chronik.protocol.messages.topics import DeleteTopicsRequest

    say.create(wire, "t")
    reader = connect(broker)
    reader.send(apis.FETCH, 12, say.fetch_request("t", 0, max_wait_ms=9_000))
    time.sleep(0.05)
    wire.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
    _, response = reader.receive(apis.FETCH, 12)
    answer = response.responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("compression", "version", "code"),
    [
        ("producer", 2, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("producer", 3, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("producer", 4, ErrorCode.NONE),
        ("zstd", 4, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("zstd", 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ("zstd", 10, ErrorCode.NONE),
    ],
)
def test_who_may_read_zstd(
    wire: Any, say: Any, compression: str, version: int, code: ErrorCode
) -> None:
    say.create(wire, "t", compression_type=compression)
    say.produce(wire, "t", say.batch(b"x", codec=codecs.ZSTD))
    assert say.fetch(wire, "t", 0, version=version).error_code == code


def test_downconversion_can_be_forbidden(wire: Any, say: Any) -> None:
    say.create(wire, "t", message_downconversion_enable="false")
    say.produce(wire, "t", say.batch(b"x"))
    assert say.fetch(wire, "t", 0, version=3).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert say.fetch(wire, "t", 0, version=4).error_code == 0


# Sessions (KIP-227).


def incremental(session_id: int, epoch: int, **fields: Any) -> FetchRequest:
    given = {"max_wait_ms": 0, "min_bytes": 1, "topics": ()} | fields
    return FetchRequest(session_id=session_id, session_epoch=epoch, **given)


@pytest.fixture
def session(wire: Any, say: Any) -> int:
    say.create(wire, "t", partitions=3)
    request = say.fetch_request("t", 0, partitions=(0, 1, 2), session_epoch=0)
    response = wire.ask(apis.FETCH, 12, request)
    assert len(response.responses[0].partitions) == 3
    assert response.session_id > 0
    return int(response.session_id)


def test_an_incremental_fetch_answers_only_what_moved(wire: Any, say: Any, session: int) -> None:
    assert wire.ask(apis.FETCH, 12, incremental(session, 1)).responses == []
    say.produce(wire, "t", say.batch(b"x"), partition=1)
    response = wire.ask(apis.FETCH, 12, incremental(session, 2))
    (answer,) = response.responses[0].partitions
    assert answer.partition_index == 1
    assert values(answer.records) == [b"x"]
    (topic,) = say.fetch_request("t", 1, partitions=(1,)).topics
    assert wire.ask(apis.FETCH, 12, incremental(session, 3, topics=[topic])).responses == []


def test_a_session_can_park_and_wake(
    broker: Broker, connect: Any, wire: Any, say: Any, session: int
) -> None:
    reader = connect(broker)
    reader.send(apis.FETCH, 12, incremental(session, 1, max_wait_ms=9_000))
    time.sleep(0.05)
    say.produce(wire, "t", say.batch(b"x"), partition=2)
    _, response = reader.receive(apis.FETCH, 12)
    assert response.responses[0].partitions[0].partition_index == 2


def test_forgotten_partitions_are_not_answered(wire: Any, say: Any, session: int) -> None:
    gone = [ForgottenTopic(topic="t", partitions=[0])]
    wire.ask(apis.FETCH, 12, incremental(session, 1, forgotten_topics_data=gone))
    for partition in (0, 1):
        say.produce(wire, "t", say.batch(b"x"), partition=partition)
    response = wire.ask(apis.FETCH, 12, incremental(session, 2))
    assert [each.partition_index for each in response.responses[0].partitions] == [1]


def test_unknown_sessions_and_wrong_epochs(wire: Any, say: Any, session: int) -> None:
    unknown = wire.ask(apis.FETCH, 12, incremental(session + 1, 1))
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    wrong = wire.ask(apis.FETCH, 12, incremental(session, 5))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert wire.ask(apis.FETCH, 12, incremental(session, 1)).error_code == 0


def test_a_session_that_changes_to_topic_ids_is_refused(wire: Any, say: Any, session: int) -> None:
    response = wire.ask(apis.FETCH, 13, incremental(session, 1))
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_a_session(wire: Any, say: Any, session: int) -> None:
    request = say.fetch_request("t", 0, session_id=session, session_epoch=-1)
    assert wire.ask(apis.FETCH, 12, request).session_id == 0
    gone = wire.ask(apis.FETCH, 12, incremental(session, 1))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_cache_gives_no_session(connect: Any, say: Any) -> None:
    with Broker({"max.incremental.fetch.session.cache.slots": 1}) as broker:
        wire = connect(broker)
        say.create(wire, "t")
        request = say.fetch_request("t", 0, session_epoch=0)
        assert wire.ask(apis.FETCH, 12, request).session_id > 0
        assert wire.ask(apis.FETCH, 12, request).session_id == 0


def test_an_error_in_a_session_is_answered_until_it_ends(wire: Any, say: Any, session: int) -> None:
    (topic,) = say.fetch_request("t", 50, partitions=(0,)).topics
    for epoch in (1, 2):
        response = wire.ask(apis.FETCH, 12, incremental(session, epoch, topics=[topic]))
        assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (topic,) = say.fetch_request("t", 0, partitions=(0,)).topics
    response = wire.ask(apis.FETCH, 12, incremental(session, 3, topics=[topic]))
    assert [p.error_code for t in response.responses for p in t.partitions] in ([], [0])


def test_unwatched_after_the_answer(broker: Broker, wire: Any, say: Any) -> None:
    """A fetch without a session leaves nothing behind in its partitions."""
    say.create(wire, "t")
    say.fetch(wire, "t", 0, max_wait_ms=20)
    assert broker.node is not None
    (partition,) = broker.node.replicas.loaded()
    assert not partition.watchers


def test_a_client_that_leaves_while_parked_leaves_nothing(
    broker: Broker, connect: Any, wire: Any, say: Any
) -> None:
    say.create(wire, "t")
    reader = connect(broker)
    reader.send(apis.FETCH, 12, say.fetch_request("t", 0, max_wait_ms=30_000))
    time.sleep(0.05)
    reader.close()
    assert broker.node is not None
    (partition,) = broker.node.replicas.loaded()
    deadline = time.monotonic() + 5
    while partition.watchers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not partition.watchers


def test_empty_fetches(wire: Any) -> None:
    empty = FetchRequest(max_wait_ms=0, min_bytes=0, topics=())
    assert wire.ask(apis.FETCH, 12, empty).responses == []
    no_partitions = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=())]
    )
    assert wire.ask(apis.FETCH, 12, no_partitions).responses == []


def test_a_log_of_many_segments_is_read_in_order(tmp_path: Any, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", segment_bytes="5000")
        sent = [str(number).encode() * 50 for number in range(100)]
        for value in sent:
            say.produce(wire, "t", say.batch(value))
        got: list[Any] = []
        while len(got) < 100:
            got += values(say.fetch(wire, "t", len(got)).records)
        assert got == sent
    logs = list(tmp_path.glob("topics/t.*/0/*.log"))
    assert len(logs) > 3


def test_concurrent_readers_and_writers(broker: Broker, connect: Any, wire: Any, say: Any) -> None:
    say.create(wire, "t")
    count = 200

    def write() -> None:
        writer = connect(broker)
        for _ in range(count):
            say.produce(writer, "t", say.batch(b"x"))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    offset = 0
    while offset < 3 * count:
        answer = say.fetch(wire, "t", offset, max_wait_ms=1000)
        records = [r for b in split(answer.records) for r in iter_records(b.data)]
        fresh = [record.offset for record in records if record.offset >= offset]
        assert fresh == list(range(offset, offset + len(fresh)))
        offset += len(fresh)
    for thread in threads:
        thread.join()
