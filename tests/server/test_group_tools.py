"""What people use groups with: our own group consumer, the commands, and `chronik.testing`."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner

from chronik.cli.commands import app
from chronik.client.admin import Admin, Resource
from chronik.client.cluster import Cluster
from chronik.client.group_consumer import GroupConsumer
from chronik.client.link import parse_bootstrap
from chronik.protocol.messages.quorum import MAINTENANCE_ON
from chronik.testing import Broker

HUGE = "100000000000000000000"  # fits into no field of any request


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": 4, "group.consumer.heartbeat.interval.ms": 100}) as running:
        yield running


def write(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode(), key=str(number).encode())
    assert producer.flush(10) == 0


def chronik(broker: Broker, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", broker.bootstrap])
    assert result.exit_code == 0, result.output
    return result.output


def refusal(broker: Broker, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", broker.bootstrap])
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    return result.output


@contextmanager
def reading(broker: Broker, group: str, topic: str, **options: Any) -> Iterator[list[bytes]]:
    """A stock consumer in a thread; what it has read so far."""
    read: list[bytes] = []
    stop = threading.Event()
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 100,
    }
    consumer = Consumer(config | options)
    consumer.subscribe([topic])

    def run() -> None:
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                read.append(message.value())
        consumer.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield read
    finally:
        stop.set()
        thread.join()


# chronik.testing


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_wait_assigned_and_wait_lag_zero(broker: Broker, protocol: str) -> None:
    write(broker, "t", 40)
    with reading(broker, "g", "t", **{"group.protocol": protocol}) as read:
        broker.wait_assigned("g")
        broker.wait_lag_zero("g")
        assert sorted(map(int, read)) == list(range(40))
        write(broker, "t", 10, first=40)
        broker.wait_lag_zero("g")
        assert sorted(map(int, read)) == list(range(50))


def test_wait_assigned_counts_members(broker: Broker) -> None:
    write(broker, "t", 1)
    with reading(broker, "g", "t"):
        broker.wait_assigned("g")
        with pytest.raises(TimeoutError, match="group g has no stable assignment after"):
            broker.wait_assigned("g", members=2, timeout_s=0.2)
        with reading(broker, "g", "t"):
            broker.wait_assigned("g", members=2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_wait_lag_zero_counts_partitions_without_an_offset(broker: Broker, protocol: str) -> None:
    write(broker, "t", 40)
    chronik(broker, "groups", "reset-offsets", "g", "--topic", "t:0", "--to-latest")
    with pytest.raises(TimeoutError, match="has not read everything"):
        broker.wait_lag_zero("g", timeout_s=0.3)
    others = [record for record in broker.topic("t").records if record.partition]
    with reading(broker, "g", "t", **{"group.protocol": protocol}) as read:
        broker.wait_lag_zero("g")
        assert len(read) == len(others) < 40


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_wait_lag_zero_leaves_out_topics_that_are_read_no_more(
    broker: Broker, protocol: str
) -> None:
    write(broker, "old", 10)
    chronik(broker, "groups", "reset-offsets", "g", "--topic", "old", "--to-earliest")
    write(broker, "t", 10)
    with reading(broker, "g", "t", **{"group.protocol": protocol}) as read:
        broker.wait_lag_zero("g")
        assert len(read) == 10
        described = json.loads(chronik(broker, "groups", "describe", "g", "--json"))
        assert {each["topic"] for each in described["offsets"]} == {"old", "t"}


def test_wait_lag_zero_gives_up(broker: Broker) -> None:
    with pytest.raises(TimeoutError, match="group nobody has not read everything"):
        broker.wait_lag_zero("nobody", timeout_s=0.2)


def test_topic_records(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", b"v", key=b"k", partition=2, headers=[("h", b"x")], timestamp=1234)
    producer.produce("t", None, partition=0)
    producer.flush(10)
    tombstone, record = broker.topic("t").records
    assert (tombstone.partition, tombstone.value) == (0, None)
    assert (record.topic, record.partition, record.offset) == ("t", 2, 0)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"x"),))
    assert record.timestamp_ms == 1234


def test_topic_records_are_the_committed_ones(broker: Broker) -> None:
    config = {"bootstrap.servers": broker.bootstrap, "transactional.id": "tx", "log_level": 0}
    producer = Producer(config)
    producer.init_transactions(10)
    for number, end in enumerate(
        [producer.commit_transaction, producer.abort_transaction, producer.commit_transaction]
    ):
        producer.begin_transaction()
        producer.produce("t", str(number).encode())
        producer.flush(10)
        end(10)
        # Who has committed finds it at once.
        values = [record.value for record in broker.topic("t").records]
        assert sorted(values) == ([b"0"] if number < 2 else [b"0", b"2"])


def test_reset_forgets_everything_and_the_broker_goes_on(broker: Broker) -> None:
    write(broker, "t", 10)
    with reading(broker, "g", "t"):
        broker.wait_lag_zero("g")
    broker.reset()
    assert json.loads(chronik(broker, "topics", "list", "--internal", "--json")) == []
    assert json.loads(chronik(broker, "groups", "list", "--json")) == []
    write(broker, "t", 5)
    with reading(broker, "g", "t") as read:
        broker.wait_lag_zero("g")
        assert sorted(map(int, read)) == list(range(5))


def test_reset_forgets_what_was_set_at_run_time(broker: Broker) -> None:
    assert broker.node is not None
    metadata = broker.node.metadata
    before = metadata.image.brokers

    async def change(cluster: Cluster) -> None:
        admin = Admin(cluster)
        for name in ("", "1"):
            await admin.alter_configs(Resource.BROKER, name, sets={"log.retention.ms": "1000"})
        session = {"consumer.session.timeout.ms": "50000"}
        await admin.alter_configs(Resource.GROUP, "g", sets=session)
        await admin.change_cluster(MAINTENANCE_ON, 1)

    chronik(broker, "topics", "create", "t", "--config", "retention.ms=5")
    run(broker, change)
    assert len(metadata.image.configs) == 4
    broker.reset()
    assert not metadata.image.configs
    assert metadata.image.brokers == before
    chronik(broker, "topics", "create", "t")  # Which takes a broker that does not rest.


# Our own group consumer.


def run(broker: Broker, work: Callable[[Cluster], Any]) -> Any:
    async def connected() -> Any:
        async with Cluster(parse_bootstrap(broker.bootstrap)) as cluster:
            async with asyncio.timeout(20):
                return await work(cluster)

    return asyncio.run(connected())


async def take(consumer: GroupConsumer, count: int) -> list[int]:
    read: list[int] = []
    async for _, record in consumer:
        read.append(int(record.value or b""))
        if len(read) == count:
            break
    return read


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_group_consumer_goes_on_where_it_stopped(broker: Broker) -> None:
    write(broker, "t", 40)

    async def read(cluster: Cluster, count: int) -> list[int]:
        async with GroupConsumer(cluster, "g", ["t"]) as consumer:
            return await take(consumer, count)

    first = run(broker, lambda cluster: read(cluster, 15))
    # The fifteenth was taken out, and never said to be done.
    second = run(broker, lambda cluster: read(cluster, 26))
    assert sorted(first[:14] + second) == list(range(40))


def test_group_consumers_share_and_take_over(broker: Broker) -> None:
    write(broker, "t", 40)

    async def share(cluster: Cluster) -> None:
        async with GroupConsumer(cluster, "g", ["t"]) as one:
            await until(lambda: len(one.assignment) == 4)
            async with GroupConsumer(cluster, "g", ["t"]) as other:
                await until(lambda: len(one.assignment) == len(other.assignment) == 2)
                assert not one.assignment & other.assignment
            await until(lambda: len(one.assignment) == 4)
            assert sorted(await take(one, 40)) == list(range(40))

    run(broker, share)


def test_group_consumer_that_lost_its_session_joins_again(broker: Broker) -> None:
    write(broker, "t", 4)

    async def lose(cluster: Cluster) -> None:
        async with GroupConsumer(cluster, "g", ["t"]) as consumer:
            assert sorted(await take(consumer, 4)) == [0, 1, 2, 3]
            await asyncio.to_thread(broker.reset)  # The group is forgotten, and the topic too.
            await asyncio.to_thread(write, broker, "t", 3)
            assert sorted(await take(consumer, 3)) == [0, 1, 2]

    run(broker, lose)


def test_group_consumer_that_was_away_too_long_commits_nothing_and_joins_again() -> None:
    settings = {
        "group.consumer.heartbeat.interval.ms": 50,
        "group.consumer.min.session.timeout.ms": 400,
        "group.consumer.session.timeout.ms": 400,
    }
    with Broker(settings) as broker:
        write(broker, "t", 5)

        async def pause(cluster: Cluster) -> None:
            async with GroupConsumer(cluster, "g", ["t"]) as consumer:
                assert await take(consumer, 3) == [0, 1, 2]
                time.sleep(2)  # noqa: ASYNC251 The whole process stands still, heartbeats too.
                assert await consumer.commit() is False
                assert await take(consumer, 5) == [0, 1, 2, 3, 4]

        run(broker, pause)


# Commands.


def test_consume_with_a_group_commits_what_it_shows(broker: Broker) -> None:
    write(broker, "t", 20)
    consume = ("consume", "t", "--group", "g", "--from-beginning", "--timeout", "1")
    first = chronik(broker, *consume, "--max-messages", "7").split()
    assert len(first) == 7
    rest = chronik(broker, *consume).split()
    assert sorted(map(int, first + rest)) == list(range(20))
    described = json.loads(chronik(broker, "groups", "describe", "g", "--json"))
    assert described["state"] == "Empty"
    assert sum(each["lag"] for each in described["offsets"]) == 0


def test_groups_list_and_describe_members(broker: Broker) -> None:
    write(broker, "t", 8)
    with reading(broker, "classic", "t", **{"client.id": "me"}):
        broker.wait_lag_zero("classic")
        (listed,) = json.loads(chronik(broker, "groups", "list", "--json"))
        assert (listed["group"], listed["type"], listed["state"]) == (
            "classic",
            "classic",
            "Stable",
        )
        described = json.loads(chronik(broker, "groups", "describe", "classic", "--json"))
        (member,) = described["members"]
        assert member["client_id"] == "me"
        assert len(member["partitions"]) == 4
        table = chronik(broker, "groups", "describe", "classic")
        assert "lag 0" in table
        assert table.count("  me  ") == 4
        stop_first = refusal(
            broker, "groups", "reset-offsets", "classic", "--topic", "t", "--to-earliest"
        )
        assert "has members: stop them first" in stop_first
        assert "NON_EMPTY_GROUP" in refusal(broker, "groups", "delete", "classic")


@pytest.mark.parametrize(
    ("option", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "4"], 4),
        (["--to-offset", "99"], 10),
        (["--shift-by", "-3"], 7),
        (["--shift-by", "-99"], 0),
        (["--to-time", "2001-01-01"], 0),
        (["--to-time", "-0s"], 10),
    ],
)
def test_reset_offsets(broker: Broker, option: list[str], offset: int) -> None:
    chronik(broker, "topics", "create", "one", "--partitions", "1")
    write(broker, "one", 10)
    chronik(broker, "consume", "one", "--group", "g", "--from-beginning", "--max-messages", "10")
    reset = ("groups", "reset-offsets", "g", "--topic", "one", *option, "--json")
    shown = json.loads(chronik(broker, *reset, "--dry-run"))
    assert [each["offset"] for each in shown] == [offset]

    def committed() -> int:
        described = json.loads(chronik(broker, "groups", "describe", "g", "--json"))
        return int(described["offsets"][0]["committed"])

    assert committed() == 10
    chronik(broker, *reset)
    assert committed() == offset


def test_group_errors_are_one_line(broker: Broker) -> None:
    write(broker, "t", 1)
    assert "GROUP_ID_NOT_FOUND" in refusal(broker, "groups", "describe", "no")
    assert "GROUP_ID_NOT_FOUND" in refusal(broker, "groups", "delete", "no")
    reset = ("groups", "reset-offsets", "g", "--to-latest", "--topic")
    assert "t has no partition 9" in refusal(broker, *reset, "t:0,9")
    assert "there is no topic no" in refusal(broker, *reset, "no")
    shift = ("groups", "reset-offsets", "g", "--shift-by", "1", "--topic", "t:0")
    assert "has no offset of t-0 to shift" in refusal(broker, *shift)
    assert "there is no topic no" in refusal(broker, "consume", "no", "--group", "g")


def test_what_no_request_can_hold_is_one_line(broker: Broker) -> None:
    write(broker, "t", 1)
    bytes_ = "\udcff"  # as Python gives an argument that is no UTF-8
    chronik(broker, "produce", "t", "--key", bytes_, "--value", bytes_, "--header", f"h={bytes_}")
    record = broker.topic("t").records[-1]
    assert (record.key, record.value, record.headers) == (b"\xff", b"\xff", (("h", b"\xff"),))
    assert "surrogates not allowed" in refusal(broker, "topics", "describe", bytes_)
    assert "surrogates not allowed" in refusal(broker, "groups", "describe", bytes_)
    beyond = str(2**63 - 1)
    assert "OFFSET_OUT_OF_RANGE" in refusal(broker, "consume", "t", "--offset", beyond)
    abort = ("transactions", "abort", "--topic", "t", "--partition", HUGE, "--start-offset", HUGE)
    assert "t has no partition" in refusal(broker, *abort)
    assert "t has no partition" in refusal(broker, "produce", "t", "--value", "x", *abort[4:6])


def test_offsets_that_no_request_can_hold_are_taken_to_the_nearest_end(broker: Broker) -> None:
    chronik(broker, "topics", "create", "one", "--partitions", "1")
    write(broker, "one", 3)
    reset = ("groups", "reset-offsets", "g", "--topic", "one", "--json")
    (found,) = json.loads(chronik(broker, *reset, "--to-offset", HUGE))
    assert found["offset"] == 3
    (found,) = json.loads(chronik(broker, *reset, "--shift-by", f"-{HUGE}"))
    assert found["offset"] == 0


def test_groups_are_deleted_as_far_as_they_can_be(broker: Broker) -> None:
    write(broker, "t", 1)
    for name in ("a", "c", "d"):
        chronik(broker, "groups", "reset-offsets", name, "--topic", "t", "--to-earliest")
    delete = ("groups", "delete", "--bootstrap", broker.bootstrap)
    result = CliRunner().invoke(app, [*delete, "a", "b", "c", "a"])
    assert result.exit_code == 1
    assert result.stdout == "deleted a\ndeleted c\n"
    assert result.stderr == "chronik: group b (GROUP_ID_NOT_FOUND)\n"
    result = CliRunner().invoke(app, [*delete, "b", "d", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"deleted": ["d"], "failed": {"b": "GROUP_ID_NOT_FOUND"}}


def test_topics_are_deleted_as_far_as_they_can_be(broker: Broker) -> None:
    for name in ("a", "c", "d"):
        chronik(broker, "topics", "create", name)
    delete = ("topics", "delete", "--bootstrap", broker.bootstrap)
    result = CliRunner().invoke(app, [*delete, "a", "b", "c", "e"])
    assert result.exit_code == 1
    assert result.stdout == "deleted a\ndeleted c\n"
    unknown = "(UNKNOWN_TOPIC_OR_PARTITION)"
    assert result.stderr.splitlines() == [
        f"chronik: there is no topic b {unknown}",
        f"chronik: there is no topic e {unknown}",
    ]
    result = CliRunner().invoke(app, [*delete, "b", "d", "--json"])
    assert json.loads(result.stdout) == {"deleted": ["d"], "missing": ["b"], "failed": {}}


def test_delete_group(broker: Broker) -> None:
    write(broker, "t", 1)
    chronik(broker, "groups", "reset-offsets", "g", "--topic", "t", "--to-earliest")
    assert [each["group"] for each in json.loads(chronik(broker, "groups", "list", "--json"))] == [
        "g"
    ]
    assert chronik(broker, "groups", "delete", "g") == "deleted g\n"
    assert json.loads(chronik(broker, "groups", "list", "--json")) == []


def test_transactions_are_listed_described_and_aborted(broker: Broker) -> None:
    chronik(broker, "topics", "create", "one", "--partitions", "1")
    config = {"bootstrap.servers": broker.bootstrap, "transactional.id": "tx", "log_level": 0}
    producer = Producer(config)
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("one", b"open")
    producer.flush(10)
    (listed,) = json.loads(chronik(broker, "transactions", "list", "--json"))
    assert (listed["transactional_id"], listed["state"]) == ("tx", "Ongoing")
    assert "Ongoing" in chronik(broker, "transactions", "list", "--state", "Ongoing")
    described = json.loads(chronik(broker, "transactions", "describe", "tx", "--json"))
    assert described["partitions"] == [["one", 0]]
    assert "state Ongoing" in chronik(broker, "transactions", "describe", "tx")
    assert chronik(broker, "transactions", "abort", "tx") == "aborted tx\n"
    assert "is not open" in refusal(broker, "transactions", "abort", "tx")
    assert broker.topic("one").records == []
    with pytest.raises(Exception, match=r"fenced|epoch"):
        producer.commit_transaction(10)


def test_hanging_transactions_are_found_and_aborted(broker: Broker, say: Any) -> None:
    chronik(broker, "topics", "create", "one", "--partitions", "1")
    node, loop = broker.node, broker._loop
    assert node is not None
    assert loop is not None
    now_ms = 1_700_000_000_000
    data = say.batch(b"x", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)

    async def hang() -> None:
        partition = node.replicas.find(node.metadata.image.topics["one"], 0)
        partition.append(data, version=11, acks=1, now_ms=now_ms, verify=False)

    asyncio.run_coroutine_threadsafe(hang(), loop).result(10)
    write(broker, "one", 1)
    assert broker.topic("one").records == []
    (found,) = json.loads(chronik(broker, "transactions", "list", "--hanging", "--json"))
    assert (found["topic"], found["partition"], found["start_offset"]) == ("one", 0, 0)
    place = ("--topic", "one", "--partition", "0", "--start-offset")
    assert "no transaction that began at" in refusal(broker, "transactions", "abort", *place, "1")
    assert "producer 9 in one-0" in chronik(broker, "transactions", "abort", *place, "0")
    assert [record.value for record in broker.topic("one").records] == [b"0"]
    assert json.loads(chronik(broker, "transactions", "list", "--hanging", "--json")) == []
