"""The client matrix for transactions: what is committed is seen, and nothing else is.

A cell is `test_case[client]`. To see that something is not there, a case writes one plain record
after it and reads up to that one. kcat's transaction is one run of it, whose input it reads to the
end before it sends anything: it commits or, interrupted, aborts, and the other cases are for the
clients with an API (`abilities`).
"""

from __future__ import annotations

import pytest
from clients.abilities import CLIENTS, able, clients, members, numbered, values
from clients.conftest import eventually

INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_TXN_TIMEOUT = 50
PRODUCER_FENCED = 90
FENCED = {INVALID_PRODUCER_EPOCH, PRODUCER_FENCED}

END = b"end"


class Transactions:
    """Transactional producers of one client, in the words that fit kcat too."""

    def __init__(self, client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.one_topic = "transactions" not in CLIENTS[client.name].can

    def open(self, producer: str, name: str | None = None, **settings) -> None:
        where = {"topic": self.topic} if self.one_topic else {}
        transactional_id = f"{self.topic}-{name or producer}"
        self.client.txn_open(
            producer=f"{self.topic}-{producer}",
            transactional_id=transactional_id,
            **where,
            **settings,
        )

    def begin(self, producer: str) -> None:
        if not self.one_topic:
            self.client.txn_begin(producer=f"{self.topic}-{producer}")

    def write(self, producer: str, records, topic: str | None = None, partition: int = 0) -> None:
        where = {} if self.one_topic else {"topic": topic or self.topic, "partition": partition}
        self.client.txn_produce(f"{self.topic}-{producer}", records, **where)

    def commit(self, producer: str) -> None:
        self.client.txn_commit(producer=f"{self.topic}-{producer}")

    def abort(self, producer: str) -> None:
        self.client.txn_abort(producer=f"{self.topic}-{producer}")

    def refusal(self, producer: str, op: str, **args):
        return self.client.refusal(f"txn_{op}", producer=f"{self.topic}-{producer}", **args)

    def send_offsets(self, producer: str, member, offsets, **args) -> None:
        # aiokafka names the group; the others speak for a member of it.
        name = {"group": f"group-{self.topic}"}
        if self.client.name != "aiokafka":
            name = {"member": member.name}
        self.client.txn_offsets(
            producer=f"{self.topic}-{producer}", offsets=offsets, **name, **args
        )


@pytest.fixture
def transactions(client, topic) -> Transactions:
    return Transactions(client, topic)


def seen(client, reference, topic, count, isolation="read_committed", partition=0):
    """The values of the first `count` records, which must be all that comes before the end mark."""
    reference.produce(topic, [{"value": END}], partition=partition)
    told = client.consume(topic, "earliest", count + 1, isolation=isolation, partition=partition)
    assert told[-1]["value"] == END
    return values(told)[:-1]


def arrived(reference, topic, offset) -> None:
    """Wait until the broker has what a client wrote: the end that readers of all records see."""
    eventually(lambda: reference.offset(topic=topic, at="latest") >= offset)


@pytest.mark.parametrize(
    ("client", "codec"),
    [(name, codec) for name in able("transactional") for codec in sorted(CLIENTS[name].codecs)],
    indirect=["client"],
)
def test_a_commit_shows_all(client, reference, topic, transactions, codec):
    reference.create_topic(topic=topic)
    records = numbered(20, prefix="abc" * 50)
    transactions.open("one", codec=codec)
    transactions.begin("one")
    transactions.write("one", records)
    transactions.commit("one")
    assert seen(client, reference, topic, 20) == values(records)


@pytest.mark.parametrize("client", ["kcat"], indirect=True)
def test_an_interrupted_run_aborts(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    transactions.open("one")
    transactions.write("one", numbered(5, prefix="aborted"))
    transactions.abort("one")
    assert seen(client, reference, topic, 0) == []


@clients("transactions")
def test_an_abort_shows_nothing(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    transactions.open("one")
    transactions.begin("one")
    transactions.write("one", numbered(5, prefix="aborted"))
    arrived(reference, topic, 5)
    transactions.abort("one")
    assert seen(client, reference, topic, 0) == []
    told = client.consume(topic, "earliest", 5, isolation="read_uncommitted")
    assert values(told) == values(numbered(5, prefix="aborted"))


@clients("transactions")
def test_an_open_transaction_holds_readers_back(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    reference.produce(topic, numbered(2, prefix="before"))
    transactions.open("one")
    transactions.begin("one")
    transactions.write("one", numbered(3))
    arrived(reference, topic, 5)
    reference.produce(topic, numbered(1, prefix="after"))
    before, after = numbered(2, prefix="before"), numbered(1, prefix="after")
    # Only what lies before the last stable offset, though there is more.
    assert values(client.consume(topic, "earliest", 2)) == values(before)
    assert client.consume(topic, 5, 1, isolation="read_uncommitted")[0]["value"] == b"after-0"
    transactions.commit("one")
    told = client.consume(topic, "earliest", 6, isolation="read_committed")
    assert values(told) == values(before + numbered(3) + after)


@clients("transactions")
def test_two_producers_interleaved(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    for producer in ("one", "two"):
        transactions.open(producer)
        transactions.begin(producer)
    written = 0
    for turn in range(3):
        for producer in ("one", "two"):
            transactions.write(producer, numbered(2, prefix=f"{producer}-{turn}"))
            written += 2
            arrived(reference, topic, written)
    transactions.abort("one")
    transactions.commit("two")
    committed = [values(numbered(2, prefix=f"two-{turn}")) for turn in range(3)]
    assert seen(client, reference, topic, 6) == [value for some in committed for value in some]


@clients("transactions")
def test_a_second_producer_fences_the_first(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    transactions.open("old", "same")
    transactions.begin("old")
    transactions.write("old", numbered(3, prefix="old"))
    arrived(reference, topic, 3)
    transactions.open("young", "same")
    transactions.begin("young")
    transactions.write("young", numbered(3, prefix="young"))
    # The old one's records, their abort marker, and the young one's.
    arrived(reference, topic, 7)
    refused = transactions.refusal("old", "commit")
    assert refused.code in FENCED, refused
    transactions.commit("young")
    assert seen(client, reference, topic, 3) == values(numbered(3, prefix="young"))


@clients("transactions")
def test_a_transaction_times_out(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    transactions.open("slow", timeout_ms=1000)
    transactions.begin("slow")
    transactions.write("slow", numbered(3, prefix="slow"))
    # The three records, and the marker of the broker's own abort.
    arrived(reference, topic, 4)
    refused = transactions.refusal("slow", "commit")
    # Where each end has a new epoch, the abort has given it, and only the commit is wrong.
    expected = {INVALID_TXN_STATE} if client.name == "java-4" else FENCED
    assert refused.code in expected, refused
    assert seen(client, reference, topic, 0) == []


@clients("transactions")
def test_many_topics_and_partitions(client, reference, topic, transactions):
    topics = [f"{topic}-{i}" for i in range(3)]
    for name in topics:
        reference.create_topic(topic=name, partitions=2)
    transactions.open("one")
    for outcome in ("commit", "abort", "commit"):
        transactions.begin("one")
        for name in topics:
            for partition in range(2):
                records = numbered(2, prefix=f"{outcome}-{partition}")
                transactions.write("one", records, topic=name, partition=partition)
        getattr(transactions, outcome)("one")
    for name in topics:
        for partition in range(2):
            told = seen(client, reference, name, 4, partition=partition)
            assert told == values(numbered(2, prefix=f"commit-{partition}")) * 2


@clients("transactions")
def test_an_empty_transaction(client, reference, topic, transactions):
    reference.create_topic(topic=topic)
    transactions.open("one")
    for outcome in ("commit", "abort", "commit"):
        transactions.begin("one")
        getattr(transactions, outcome)("one")
    transactions.begin("one")
    transactions.write("one", numbered(1))
    transactions.commit("one")
    assert seen(client, reference, topic, 1) == values(numbered(1))


@clients("transactions")
def test_a_timeout_above_the_limit(topic, transactions):
    settings = {"transactional_id": topic, "timeout_ms": 1_000_000_000}
    refused = transactions.refusal("one", "open", **settings)
    # Java and kafka-python wrap it in an error of their own, which keeps the words.
    wrapped = ("[Error 50]", "transaction timeout is larger")
    assert refused.code == INVALID_TXN_TIMEOUT or any(w in str(refused) for w in wrapped), refused


def committed(reference, group: str) -> list[int]:
    return [told[2] for told in reference.group_offsets(group=group)]


@members("transactions")
def test_consume_transform_produce(client, protocol, reference, topic, transactions, join):
    group, output = f"group-{topic}", f"{topic}-out"
    for name in (topic, output):
        reference.create_topic(topic=name)
    reference.produce(topic, numbered(6))
    modern = {} if protocol == "classic" else {"protocol": protocol}
    member = join(client, topics=[topic], **modern)
    eventually(lambda: len(member.values) == 6, lambda: member.errors)
    transactions.open("one")
    for outcome, upto in (("commit", 2), ("abort", 4), ("commit", 6)):
        before = committed(reference, group)
        start = before[0] if before else 0
        transactions.begin("one")
        taken = [{"value": value.upper()} for value in member.values[start:upto]]
        transactions.write("one", taken, topic=output)
        transactions.send_offsets("one", member, [[topic, 0, upto, ""]])
        assert committed(reference, group) == before
        getattr(transactions, outcome)("one")
        after = [upto] if outcome == "commit" else before
        # An Apache Kafka answers the commit before it shows the offset.
        eventually(lambda wanted=after: committed(reference, group) == wanted)
    wanted = [value.upper() for value in member.values]
    assert seen(client, reference, output, 6) == wanted


@pytest.mark.parametrize("client", ["java-3.9", "java-4"], indirect=True)
def test_offsets_of_an_old_generation_are_refused(client, reference, topic, transactions, join):
    """Only Java's client lets an application say which generation it speaks for."""
    reference.create_topic(topic=topic)
    reference.produce(topic, numbered(3))
    member = join(client, topics=[topic])
    eventually(lambda: len(member.values) == 3, lambda: member.errors)
    transactions.open("one")
    transactions.begin("one")
    refused = transactions.refusal(
        "one", "offsets", member=member.name, offsets=[[topic, 0, 3, ""]], generations_ago=1
    )
    assert "CommitFailedException" in str(refused)
    transactions.abort("one")
    assert reference.group_offsets(group=f"group-{topic}") == []
