"""A task's rows in a real log: where they go, and that they are there once whatever happens."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.groups import Groups
from chronik.client.link import Address, ConnectionFailed
from chronik.client.partitioner import partition_of
from chronik.client.producer import Producer
from chronik.client.transaction import Transaction
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.spark import log_writer
from chronik.spark.connection import Connection
from chronik.spark.errors import OptionsError, SourceError
from chronik.spark.log_writer import LogWriter, WriteSummary
from chronik.spark.record_columns import HEADERS_TYPE
from chronik.testing import Broker
from chronik.testing.topic import Record


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker({"num.partitions": 4}) as running:
        yield running


@pytest.fixture
def connection(shared: Broker) -> Connection:
    return Connection(bootstrap=shared.bootstrap, timeout_s=10)


def rows(*values: bytes | None, **columns: list[Any]) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "headers": HEADERS_TYPE, "topic": pa.string()}
    arrays = {"value": pa.array(values, pa.binary())}
    arrays |= {
        name: pa.array(found, types.get(name, pa.binary())) for name, found in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


def values_of(broker: Broker, topic: str) -> list[bytes | None]:
    return sorted(record.value for record in broker.topic(topic).records)


def test_records_go_where_they_should(shared: Broker, connection: Connection) -> None:
    keys = [b"k%d" % number for number in range(20)]
    with LogWriter(connection, topic="places") as writer:
        writer.write(rows(*keys, key=keys))
        writer.write(rows(b"fixed", None, partition=[2, 3], key=[b"k", None]))
        assert writer.commit() == WriteSummary(22, 5 + 1 + 2 * sum(map(len, keys)), skipped=False)
    found = shared.topic("places").records
    keyed = [record for record in found if record.value in keys]
    assert len(keyed) == 20
    assert all(record.partition == partition_of(record.key or b"", 4) for record in keyed)
    assert [record.partition for record in found if record.value == b"fixed"] == [2]
    assert [record.partition for record in found if record.value is None] == [3]


def test_a_topic_that_grows_while_it_is_written(shared: Broker, connection: Connection) -> None:
    async def grow(cluster: Cluster) -> None:
        await Admin(cluster).create_partitions("grows", 6)

    with LogWriter(connection, topic="grows") as writer:
        writer.write(rows(b"before", partition=[3]))
        shared.ask(grow)
        writer.write(rows(b"after", partition=[5]))
        writer.commit()
    assert [record.partition for record in shared.topic("grows").records] == [3, 5]


def test_many_rows_become_many_batches_and_lose_nothing(
    shared: Broker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "PART_BYTES", 10_000)
    values = [b"%05d" % number * 10 for number in range(2_000)]
    with LogWriter(connection, topic="many", batch_bytes=2_000) as writer:
        writer.write(rows(*values))
        assert writer.commit().rows == 2_000
    found = shared.topic("many").records
    assert sorted(record.value or b"" for record in found) == values
    assert {record.partition for record in found} == {0, 1, 2, 3}, "they take turns"


def test_headers_topics_and_text(shared: Broker, connection: Connection) -> None:
    headers = [[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None]
    batch = rows(b"a", b"b", headers=headers, topic=["one", None])
    text = pa.RecordBatch.from_pydict({"value": ["text"], "key": ["schlüssel"]})
    with LogWriter(connection, topic="two", compression="zstd") as writer:
        writer.write(batch)
        writer.write(text)
        writer.commit()
    (first,) = shared.topic("one").records
    assert first.headers == (("h", b"1"), ("n", None))
    by_value = {record.value: record for record in shared.topic("two").records}
    assert by_value[b"text"].key == "schlüssel".encode()
    assert by_value[b"b"].headers == ()


def test_what_cannot_be_written_is_said(shared: Broker, connection: Connection) -> None:
    with pytest.raises(OptionsError, match="there is no compression 'rar', only none, gzip"):
        LogWriter(connection, compression="rar")
    with LogWriter(connection) as writer, pytest.raises(OptionsError, match="no topic"):
        writer.write(rows(b"x"))
    with LogWriter(connection, topic="t") as writer, pytest.raises(OptionsError, match="value"):
        writer.write(pa.RecordBatch.from_pydict({"colour": ["red"]}))
    with LogWriter(connection, topic="t") as writer:
        with pytest.raises(SourceError, match="t has no partition 9, only 4"):
            writer.write(rows(b"x", partition=[9]))
        with pytest.raises(SourceError, match="nothing is committed"):
            writer.commit()
    nobody = Connection(bootstrap="127.0.0.1:1", timeout_s=0.2)
    lonely = LogWriter(nobody, topic="t")
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:1.*refused"):
        lonely.write(rows(b"x"))
    lonely.close()


def test_a_record_that_is_too_large_fails_the_task(shared: Broker, connection: Connection) -> None:
    with LogWriter(connection, topic="large", write_id="large", batch_id=0) as writer:
        writer.write(rows(b"small"))
        with pytest.raises(SourceError, match="cannot be written"):
            writer.write(rows(b"x" * 2_000_000))
        with pytest.raises(SourceError, match="nothing is committed"):
            writer.commit()
    assert values_of(shared, "large") == []


def run(connection: Connection, write_id: str, *, batch_id: int, task: int = 0) -> WriteSummary:
    """A task from the beginning to the end; its rows are the same each time."""
    with LogWriter(
        connection, topic=write_id, write_id=write_id, task=task, batch_id=batch_id
    ) as writer:
        for part in range(2):
            writer.write(rows(*expected(batch_id, task)[part * 3 : part * 3 + 3]))
        return writer.commit()


def expected(batch_id: int, task: int = 0) -> list[bytes | None]:
    return [b"%d-%d-%d" % (task, batch_id, row) for row in range(6)]


def test_a_batch_that_was_done_is_skipped(shared: Broker, connection: Connection) -> None:
    for batch_id in range(3):
        assert run(connection, "again", batch_id=batch_id) == WriteSummary(6, 30, skipped=False)
        for earlier in range(batch_id + 1):
            assert run(connection, "again", batch_id=earlier) == WriteSummary(0, 0, skipped=True)
    assert values_of(shared, "again") == sorted(
        value for batch_id in range(3) for value in expected(batch_id)
    )


def test_tasks_are_apart(shared: Broker, connection: Connection) -> None:
    for task in (0, 1, 11):
        assert not run(connection, "tasks", batch_id=0, task=task).skipped
    assert run(connection, "tasks", batch_id=0, task=1).skipped
    assert len(values_of(shared, "tasks")) == 18


def test_a_task_without_rows_commits_nothing(shared: Broker, connection: Connection) -> None:
    with LogWriter(connection, topic="nothing", write_id="nothing", batch_id=0) as writer:
        assert writer.commit() == WriteSummary(0, 0, skipped=False)
    with LogWriter(connection, topic="nothing", write_id="nothing", batch_id=0) as writer:
        writer.write(rows())
        assert writer.commit() == WriteSummary(0, 0, skipped=False)


def test_an_aborted_task_leaves_nothing(shared: Broker, connection: Connection) -> None:
    with LogWriter(connection, topic="abort", write_id="abort", batch_id=0) as writer:
        writer.write(rows(b"lost"))
    assert values_of(shared, "abort") == []
    assert not run(connection, "abort", batch_id=0).skipped
    assert values_of(shared, "abort") == expected(0)


class Crash(Exception):
    """The process ends here."""


def crash(method: str, *, before: bool, count: int) -> Callable[..., Any]:
    """A method of a transaction that ends the process before or after it is done."""
    original = getattr(Transaction, method)
    calls = 0

    async def replaced(self: Transaction, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and before:
            raise Crash
        result = await original(self, *args, **named)
        if calls == count:
            raise Crash
        return result

    return replaced


def write_and_commit(writer: LogWriter) -> None:
    writer.write(rows(*expected(1)))
    writer.commit()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("method", ["open", "add", "commit_offsets", "end"])
def test_a_crash_anywhere_and_a_second_run(
    shared: Broker,
    connection: Connection,
    method: str,
    before: bool,
) -> None:
    name = f"crash-{method}-{before}".lower()
    assert not run(connection, name, batch_id=0).skipped
    writer = LogWriter(connection, topic=name, write_id=name, batch_id=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, method, crash(method, before=before, count=1))
        with pytest.raises(Crash):
            write_and_commit(writer)
        writer.close()  # The sockets close, and nothing is said: as when a process dies.
    again = run(connection, name, batch_id=1)
    assert again.skipped == (method == "end" and not before)
    assert run(connection, name, batch_id=1).skipped
    assert values_of(shared, name) == sorted(expected(0) + expected(1))


def test_a_lost_answer_to_the_commit_is_asked_again(
    shared: Broker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Transaction._ask
    lost = []

    async def replaced(self: Transaction, request: Any, api: Any, *args: Any, **named: Any) -> Any:
        answer = await original(self, request, api, *args, **named)
        if api.name == "EndTxn" and not lost:
            lost.append(answer)
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "asked again")
        return answer

    monkeypatch.setattr(Transaction, "_ask", replaced)
    assert not run(connection, "lost", batch_id=0).skipped
    assert lost
    assert values_of(shared, "lost") == expected(0)


def test_a_commit_that_nobody_answers_fails_and_is_found_done(
    shared: Broker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Transaction.end

    async def replaced(self: Transaction, *, commit: bool) -> None:
        await original(self, commit=commit)
        if commit:
            raise ConnectionFailed(Address("127.0.0.1", 1), "gone")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "end", replaced)
        with pytest.raises(SourceError, match="does not answer"):
            run(connection, "silent", batch_id=0)
    assert run(connection, "silent", batch_id=0).skipped
    assert values_of(shared, "silent") == expected(0)


def test_a_zombie_is_shut_out(shared: Broker, connection: Connection) -> None:
    zombie = LogWriter(connection, topic="zombie", write_id="zombie", batch_id=0)
    zombie.write(rows(*expected(0)))
    assert not run(connection, "zombie", batch_id=0).skipped
    with pytest.raises(SourceError, match="another run of this task has taken over"):
        zombie.commit()
    zombie.abort()
    zombie.close()
    late = LogWriter(connection, topic="zombie", write_id="zombie", batch_id=1)
    late.write(rows(b"first"))
    assert not run(connection, "zombie", batch_id=1).skipped
    with pytest.raises(SourceError, match="another run of this task has taken over"):
        late.write(rows(b"more"))
    late.close()
    assert values_of(shared, "zombie") == sorted(expected(0) + expected(1))


def test_the_mark_is_an_offset_of_a_group(shared: Broker, connection: Connection) -> None:
    run(connection, "mark", batch_id=41, task=2)

    async def committed(cluster: Cluster) -> dict[Any, Any]:
        return await Groups(cluster).committed("chronik-spark-mark-2")

    ((place, (offset, _)),) = shared.ask(committed).items()
    assert (place.topic, place.partition, offset) == ("mark", 0, 42)


def test_several_topics_in_one_transaction(shared: Broker, connection: Connection) -> None:
    def once(first: str, second: str) -> WriteSummary:
        with LogWriter(connection, write_id="several", batch_id=0) as writer:
            writer.write(rows(b"a", b"b", topic=[first, second]))
            return writer.commit()

    assert not once("left", "right").skipped
    assert once("right", "left").skipped
    assert values_of(shared, "left") == [b"a"]
    assert values_of(shared, "right") == [b"b"]


def test_without_a_write_id_a_second_run_writes_again(
    shared: Broker, connection: Connection
) -> None:
    for _ in range(2):
        with LogWriter(connection, topic="plain") as writer:
            writer.write(rows(b"x"))
            assert not writer.commit().skipped
    assert values_of(shared, "plain") == [b"x", b"x"]


def test_a_transaction_and_a_producer_by_themselves(shared: Broker) -> None:
    async def work(cluster: Cluster) -> list[Record]:
        transaction = Transaction(cluster, "by-itself")
        await transaction.open()
        async with Producer(cluster, transaction=transaction) as producer:
            for commit in (True, False, True):
                await producer.send("own", b"%d" % commit, partition=0)
                await producer.flush()
                await transaction.end(commit=commit)
        await transaction.end(commit=True)  # There is nothing to end.
        return []

    shared.ask(work)
    assert values_of(shared, "own") == [b"1", b"1"]


def test_a_topic_that_may_not_be_created(connection: Connection) -> None:
    with Broker({"auto.create.topics.enable": False}) as strict:
        to = Connection(bootstrap=strict.bootstrap, timeout_s=1)
        early = LogWriter(to, topic="absent", write_id="w")
        with pytest.raises(SourceError, match="there is no topic absent"):
            early.write(rows(b"x"))
        early.close()

        async def create(cluster: Cluster) -> None:
            await Admin(cluster).create_topic("absent", partitions=1)

        strict.ask(create)
        with LogWriter(to, topic="absent", write_id="w") as writer:
            writer.write(rows(b"x"))
            assert writer.commit().rows == 1
