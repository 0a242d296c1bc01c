"""Ranges of a real log, from a broker in this process: what a task gets, and what it is told."""

import asyncio
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer as ConfluentProducer

from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.producer import Producer
from chronik.client.security import Security
from chronik.model import TopicPartition
from chronik.protocol.apis import FETCH
from chronik.protocol.schema import Versions
from chronik.spark import log_fetch
from chronik.spark.connection import Connection
from chronik.spark.errors import DataLossError, SourceError
from chronik.spark.log_reader import Gap, LogReader, OffsetRange
from chronik.spark.record_columns import SCHEMA
from chronik.testing import Broker

NO_ID = bytes(16)


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def reader(shared: Broker) -> Iterator[LogReader]:
    with LogReader(Connection(bootstrap=shared.bootstrap, timeout_s=10)) as opened:
        yield opened


def fill(broker: Broker, topic: str, count: int, *, batch_bytes: int = 1000) -> None:
    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, batch_bytes_max=batch_bytes) as producer:
            for index in range(count):
                await producer.send(topic, b"%d" % index, key=b"k", partition=0, timestamp=index)

    broker.ask(work)


def topic_id(broker: Broker, topic: str) -> bytes:
    async def work(cluster: Cluster) -> bytes:
        return (await cluster.topic(topic)).topic_id

    return broker.ask(work)


def offsets_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_with_all_columns(shared: Broker, reader: LogReader) -> None:
    fill(shared, "all", 300)
    wanted = OffsetRange("all", topic_id(shared, "all"), 0, 7, 299)
    batches = list(reader.read(wanted, batch_rows=50))
    table = pa.Table.from_batches(batches)
    assert table.schema == SCHEMA
    assert offsets_of(batches) == list(range(7, 299))
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"7", "all")
    assert first["timestamp"].timestamp() == 0.007
    assert (first["partition"], first["timestampType"], first["headers"]) == (0, 0, None)
    assert all(20 < batch.num_rows < 100 for batch in batches[:-1])
    assert reader.gaps == []


def test_several_ranges_and_only_some_columns(shared: Broker, reader: LogReader) -> None:
    fill(shared, "some", 20)
    for start, end in [(0, 20), (5, 6), (3, 3), (19, 20)]:
        wanted = OffsetRange("some", NO_ID, 0, start, end)
        batches = list(reader.read(wanted, columns=["offset"]))
        assert offsets_of(batches) == list(range(start, end))
        assert all(batch.schema.names == ["offset"] for batch in batches)


def test_a_reader_may_stop_in_the_middle(shared: Broker, reader: LogReader) -> None:
    fill(shared, "middle", 200)
    reading = reader.read(OffsetRange("middle", NO_ID, 0, 0, 200), batch_rows=10)
    assert next(reading).num_rows
    reading.close()
    again = list(reader.read(OffsetRange("middle", NO_ID, 0, 0, 200)))
    assert offsets_of(again) == list(range(200))


def test_aborted_transactions_and_markers_are_counted(shared: Broker, reader: LogReader) -> None:
    producer = ConfluentProducer(
        {"bootstrap.servers": shared.bootstrap, "transactional.id": "reader-test"}
    )
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for index in range(10):
            producer.produce("txn", b"%d-%d" % (number, index), partition=0)
        producer.flush()
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    wanted = OffsetRange("txn", NO_ID, 0, 0, 44)
    values = [
        value
        for batch in reader.read(wanted, columns=["value"])
        for value in batch.column(0).to_pylist()
    ]
    assert values == [b"%d-%d" % (number, index) for number in (0, 2) for index in range(10)]
    counts = {gap.reason: gap.count for gap in reader.gaps}
    assert counts == {"transaction marker": 4, "aborted": 20}
    everything = list(reader.read(wanted, columns=["offset"], read_committed=False))
    assert len(offsets_of(everything)) == 40
    tail = list(reader.read(OffsetRange("txn", NO_ID, 0, 33, 44), columns=["offset"]))
    assert tail == []
    assert {gap.reason: gap.count for gap in reader.gaps} == {
        "aborted": 10,
        "transaction marker": 1,
    }


def test_an_open_transaction_is_named(shared: Broker) -> None:
    producer = ConfluentProducer(
        {"bootstrap.servers": shared.bootstrap, "transactional.id": "open-test"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("open", b"x", partition=0)
    producer.flush()
    connection = Connection(bootstrap=shared.bootstrap, timeout_s=0.5)
    with LogReader(connection) as impatient:
        with pytest.raises(SourceError, match=r"open-0 can be read up to offset 0 only.*open"):
            list(impatient.read(OffsetRange("open", NO_ID, 0, 0, 1)))
        wanted = OffsetRange("open", NO_ID, 0, 0, 1)
        assert list(impatient.read(wanted, read_committed=False))
    producer.abort_transaction()


def delete_records(broker: Broker, topic: str, before: int) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).delete_records({TopicPartition(topic, 0): before})

    broker.ask(work)


def test_records_that_retention_took_are_loss(shared: Broker, reader: LogReader) -> None:
    fill(shared, "old", 100)
    delete_records(shared, "old", 40)
    wanted = OffsetRange("old", topic_id(shared, "old"), 0, 10, 60)
    with pytest.raises(DataLossError, match=r"offsets 10 to 39 \(up to 30 records\).*retention"):
        list(reader.read(wanted))
    batches = list(reader.read(wanted, fail_on_data_loss=False))
    assert offsets_of(batches) == list(range(40, 60))
    assert reader.gaps == [Gap("retention", 10, 40, 30)]
    wholly = OffsetRange("old", topic_id(shared, "old"), 0, 10, 20)
    assert list(reader.read(wholly, fail_on_data_loss=False)) == []
    assert reader.gaps == [Gap("retention", 10, 20, 10)]


def delete_topic(broker: Broker, topic: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).delete_topics([topic])

    broker.ask(work)


def test_a_topic_that_was_created_again_is_another(shared: Broker, reader: LogReader) -> None:
    fill(shared, "twice", 10)
    wanted = OffsetRange("twice", topic_id(shared, "twice"), 0, 0, 10)
    assert len(offsets_of(list(reader.read(wanted)))) == 10
    delete_topic(shared, "twice")
    fill(shared, "twice", 20)
    # The reader still has the metadata of the first one: the broker refuses its id.
    with pytest.raises(DataLossError, match="topic twice was deleted and created again"):
        list(reader.read(wanted))
    assert list(reader.read(wanted, fail_on_data_loss=False)) == []
    assert reader.gaps == [Gap("recreated", 0, 10, 10)]
    fresh = OffsetRange("twice", topic_id(shared, "twice"), 0, 0, 20)
    assert len(offsets_of(list(reader.read(fresh)))) == 20


def test_brokers_that_know_topics_by_name_only(
    shared: Broker, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_fetch, "FETCH", replace(FETCH, versions=Versions(4, 12)))
    fill(shared, "named", 10)
    wanted = OffsetRange("named", topic_id(shared, "named"), 0, 0, 10)
    assert len(offsets_of(list(reader.read(wanted)))) == 10
    delete_topic(shared, "named")
    fill(shared, "named", 20)
    with pytest.raises(DataLossError, match="topic named was deleted and created again"):
        list(reader.read(wanted))
    unknown = OffsetRange("named", NO_ID, 0, 0, 20)
    assert len(offsets_of(list(reader.read(unknown)))) == 20


def test_a_topic_that_was_deleted(shared: Broker, reader: LogReader) -> None:
    fill(shared, "gone", 10)
    wanted = OffsetRange("gone", topic_id(shared, "gone"), 0, 0, 10)
    delete_topic(shared, "gone")
    with pytest.raises(DataLossError, match="topic gone was deleted"):
        list(reader.read(wanted))


def test_a_topic_that_never_was(reader: LogReader) -> None:
    with pytest.raises(SourceError, match="there is no topic nowhere"):
        list(reader.read(OffsetRange("nowhere", NO_ID, 0, 0, 10)))


def test_a_partition_that_is_not_there(shared: Broker, reader: LogReader) -> None:
    fill(shared, "single", 1)
    with pytest.raises(SourceError, match="single has no partition 5, only 1"):
        list(reader.read(OffsetRange("single", NO_ID, 5, 0, 10)))


def test_a_log_that_ends_before_the_range(shared: Broker) -> None:
    fill(shared, "short", 10)
    connection = Connection(bootstrap=shared.bootstrap, timeout_s=0.5)
    with LogReader(connection) as impatient:
        with pytest.raises(DataLossError, match="the log now ends at offset 10"):
            list(impatient.read(OffsetRange("short", NO_ID, 0, 20, 30)))
        with pytest.raises(DataLossError, match="ends at offset 10, and the range at 30"):
            list(impatient.read(OffsetRange("short", NO_ID, 0, 5, 30)))
        wanted = OffsetRange("short", NO_ID, 0, 5, 30)
        assert offsets_of(list(impatient.read(wanted, fail_on_data_loss=False))) == [5, 6, 7, 8, 9]
        assert impatient.gaps == [Gap("truncated", 10, 30, 20)]


def test_no_broker_answers() -> None:
    connection = Connection(bootstrap="127.0.0.1:1", timeout_s=0.2)
    with LogReader(connection) as lonely, pytest.raises(SourceError) as got:
        list(lonely.read(OffsetRange("t", NO_ID, 0, 0, 1)))
    assert "127.0.0.1:1" in str(got.value)
    assert "connection refused" in str(got.value)


def test_an_unknown_column_is_refused(shared: Broker, reader: LogReader) -> None:
    fill(shared, "columns", 1)
    with pytest.raises(ValueError, match="there is no column 'colour'"):
        list(reader.read(OffsetRange("columns", NO_ID, 0, 0, 1), columns=["colour"]))


def test_a_broker_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    first = Broker(data_dir=str(tmp_path))
    first.start()
    port = int(first.bootstrap.rpartition(":")[2])
    fill(first, "t", 500)
    with LogReader(Connection(bootstrap=first.bootstrap, timeout_s=30)) as reader:
        wanted = OffsetRange("t", topic_id(first, "t"), 0, 0, 500)
        assert len(offsets_of(list(reader.read(wanted)))) == 500
        first.stop()
        second = Broker(data_dir=str(tmp_path), port=port)
        starting = threading.Timer(0.3, second.start)
        starting.start()
        try:
            assert len(offsets_of(list(reader.read(wanted)))) == 500
        finally:
            starting.join()
            second.stop()


def test_who_is_refused_is_not_told_to_look_for_the_broker(shared: Broker) -> None:
    security = Security(mechanism="PLAIN", username="bob", password="hidden")
    refused = Connection(bootstrap=shared.bootstrap, security=security, timeout_s=10)
    with LogReader(refused) as reader, pytest.raises(SourceError) as got:
        list(reader.read(OffsetRange("t", NO_ID, 0, 0, 1)))
    assert str(got.value).startswith(f"the cluster of {shared.bootstrap} cannot be read: UNSUPP")
    assert "hidden" not in str(got.value)


def test_what_travels_to_executors_can_be_pickled() -> None:
    for value in (OffsetRange("t", NO_ID, 1, 2, 3), Gap("aborted", 1, 5, 2)):
        assert pickle.loads(pickle.dumps(value)) == value


def test_a_closed_reader_leaves_no_loop_behind() -> None:
    reader = LogReader(Connection(bootstrap="127.0.0.1:1", timeout_s=0.1))
    reader.close()
    reader.close()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
