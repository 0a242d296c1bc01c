"""The client matrix for consumer groups: the same cases with every client, in both protocols.

A cell is `test_case[client]`, or `test_case[client-kip848]` where the client also has
`group.protocol=consumer`. Members poll in threads of the drivers; a cell opens them, waits for what
they must have, and never for a time. What a client has no API for is written in `abilities`.
"""

from __future__ import annotations

import signal

import pytest
from clients.abilities import CLIENTS, clients, members, numbered, values
from clients.conftest import eventually

ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FENCED_INSTANCE_ID = 82
GROUP_SUBSCRIBED_TO_TOPIC = 86
UNRELEASED_INSTANCE_ID = 111
STALE_MEMBER_EPOCH = 113
# The last one is a client's own word, if its heartbeat has heard of it before it commits.
ZOMBIE = {ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, REBALANCE_IN_PROGRESS}

# Short enough to wait for, long enough that a busy machine's member does not miss it.
SESSION_MS = 1500


def partitions(topic: str, count: int) -> set[tuple[str, int]]:
    return {(topic, partition) for partition in range(count)}


def filled(reference, topic: str, count: int, each: int = 10) -> list[bytes]:
    """A topic of `count` partitions with `each` records in each; their values."""
    reference.create_topic(topic=topic, partitions=count)
    return more(reference, topic, count, each, "first")


def more(reference, topic: str, count: int, each: int, prefix: str) -> list[bytes]:
    written = []
    for partition in range(count):
        records = numbered(each, prefix=f"{prefix}-{partition}")
        reference.produce(topic, records, partition=partition)
        written += values(records)
    return sorted(written)


def has_all(member, wanted) -> None:
    """Wait until a member owns exactly these partitions."""
    eventually(lambda: member.assigned == wanted, lambda: (member.assigned, member.errors))


def share(one, two, wanted) -> None:
    """Wait until two members own all of `wanted` between them, each something."""

    def shared() -> bool:
        first, second = one.assigned, two.assigned
        return bool(first and second) and not first & second and first | second == wanted

    eventually(shared, lambda: (one.assigned, one.errors, two.assigned, two.errors))


def reads(member, wanted) -> None:
    """Wait until a member has read exactly these values, in whatever order of partitions."""
    eventually(lambda: len(member.values) >= len(wanted), lambda: (member.values, member.errors))
    assert sorted(member.values) == sorted(wanted)


def commit_all(member) -> None:
    """Commit what was read; kcat does so by itself when it ends."""
    if "commit" in CLIENTS[member.client.name].can:
        member.call("commit")


# Reading.


@members()
def test_reads_from_the_start_and_goes_on_after_its_commits(
    client, protocol, reference, topic, join
):
    written = filled(reference, topic, 3)
    first = join(client, topics=[topic], **spoken(protocol))
    reads(first, written)
    assert first.assigned == partitions(topic, 3)
    commit_all(first)
    first.close()
    later = more(reference, topic, 3, 5, "later")
    reads(join(client, topics=[topic], **spoken(protocol)), later)


def spoken(protocol: str) -> dict[str, str]:
    """The setting of a member that is not of the classic protocol."""
    return {} if protocol == "classic" else {"protocol": protocol}


@members()
def test_two_members_share_and_the_last_takes_over(client, protocol, reference, topic, join):
    reference.create_topic(topic=topic, partitions=4)
    one = join(client, topics=[topic], **spoken(protocol))
    has_all(one, partitions(topic, 4))
    two = join(client, topics=[topic], **spoken(protocol))
    share(one, two, partitions(topic, 4))
    written = more(reference, topic, 4, 10, "shared")
    eventually(lambda: len(one.values) + len(two.values) >= 40)
    assert sorted(one.values + two.values) == written
    for member in (one, two):
        assert {record[:2] for record in member.records} == member.assigned
    commit_all(one)
    one.close()
    has_all(two, partitions(topic, 4))
    # What it had read without a commit comes again; the new records come in any case.
    rest = more(reference, topic, 4, 1, "rest")
    eventually(lambda: set(two.values) >= set(rest), lambda: two.values)


@members()
def test_a_killed_members_partitions_move(client, protocol, reference, topic, join, spare):
    reference.create_topic(topic=topic, partitions=4)
    victim = join(spare(client.name), topics=[topic], session_ms=SESSION_MS, **spoken(protocol))
    has_all(victim, partitions(topic, 4))
    other = join(client, topics=[topic], session_ms=SESSION_MS, **spoken(protocol))
    share(victim, other, partitions(topic, 4))
    victim.closed = True
    victim.client.signal(signal.SIGKILL)
    has_all(other, partitions(topic, 4))
    reads(other, more(reference, topic, 4, 5, "after"))


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
@members()
def test_where_a_group_without_offsets_begins(client, protocol, reference, topic, join, reset):
    before = filled(reference, topic, 1)
    member = join(client, topics=[topic], reset=reset, **spoken(protocol))
    if reset == "earliest":
        return reads(member, before)
    if reset == "none":
        eventually(lambda: member.errors)
        assert member.values == []
        return None
    has_all(member, partitions(topic, 1))

    def something_new() -> bool:
        # It stands at the end at some time after its assignment: what is written then arrives.
        reference.produce(topic, numbered(1, prefix="new"))
        return bool(member.values)

    eventually(something_new)
    assert set(member.values) == {b"new-0"}
    return None


@members()
def test_subscribes_by_pattern(client, protocol, reference, topic, join):
    for name in (f"{topic}-a", f"{topic}-b", f"other-{topic}-a"):
        filled(reference, name, 1, 3)
    member = join(client, pattern=f"{topic}-.*", **spoken(protocol))
    has_all(member, {(f"{topic}-a", 0), (f"{topic}-b", 0)})
    filled(reference, f"{topic}-c", 1, 3)
    has_all(member, {(f"{topic}-a", 0), (f"{topic}-b", 0), (f"{topic}-c", 0)})
    wanted = {f"{topic}-{end}" for end in "abc"}
    eventually(lambda: {record[0] for record in member.records} == wanted, lambda: member.records)


# Offsets.


@members("commit")
def test_commits_come_back_as_given(client, protocol, reference, topic, join):
    filled(reference, topic, 2)
    member = join(client, topics=[topic], **spoken(protocol))
    has_all(member, partitions(topic, 2))
    assert member.call("committed", topic=topic) is None
    member.call("commit", offsets=[[topic, 0, 3, "a note, ünïcode"]])
    assert member.call("committed", topic=topic) == [3, "a note, ünïcode"]
    assert member.call("committed", topic=topic, partition=1) is None
    member.call("commit", offsets=[[topic, 0, 2, ""], [topic, 1, 7, ""]])
    assert member.call("committed", topic=topic) == [2, ""]
    assert member.call("committed", topic=topic, partition=1) == [7, ""]
    other = join(client, topics=[topic], group=f"other-{topic}", **spoken(protocol))
    assert other.call("committed", topic=topic) is None


@members("commit")
def test_position_and_seek(client, protocol, reference, topic, join):
    written = filled(reference, topic, 1)
    member = join(client, topics=[topic], **spoken(protocol))
    reads(member, written)
    assert member.call("position", topic=topic) == 10
    member.call("seek", topic=topic, offset=4)
    reads(member, written + sorted(written)[4:])
    assert member.call("position", topic=topic) == 10
    # Positions are the member's own: nothing was committed.
    assert member.call("committed", topic=topic) is None


@clients("commit")
def test_commits_without_membership(client, reference, topic, join):
    written = filled(reference, topic, 1)
    first = join(client, assign=[[topic, 0]])
    reads(first, written)
    first.call("commit", offsets=[[topic, 0, 6, "by hand"]])
    first.close()
    second = join(client, assign=[[topic, 0]])
    reads(second, sorted(written)[6:])
    assert second.call("committed", topic=topic) == [6, "by hand"]


# Members.


@pytest.mark.parametrize(
    ("client", "assignor"),
    [(name, assignor) for name, told in CLIENTS.items() for assignor in told.assignors],
    indirect=["client"],
)
def test_assignor(client, reference, topic, join, assignor):
    topics = [f"{topic}-{i}" for i in range(2)]
    for name in topics:
        reference.create_topic(topic=name, partitions=3)
    wanted = {at for name in topics for at in partitions(name, 3)}
    written = [value for name in topics for value in more(reference, name, 3, 1, name)]
    one = join(client, topics=topics, assignors=[assignor])
    has_all(one, wanted)
    reads(one, written)
    two = join(client, topics=topics, assignors=[assignor])
    share(one, two, wanted)
    counts = {len(one.assigned), len(two.assigned)}
    assert counts == ({2, 4} if assignor == "range" else {3})
    group = f"group-{topic}"
    if assignor == "cooperative-sticky":
        # What a member keeps is never taken from it, so that it reads nothing twice.
        assert sorted(one.values) == sorted(written)
    # A cooperative group may have one more rebalance to go.
    eventually(lambda: reference.describe_group(group=group)["assignor"] == assignor)
    two.close()
    has_all(one, wanted)


@members("static")
def test_a_static_member_restarts_without_a_rebalance(client, protocol, reference, topic, join):
    written = filled(reference, topic, 4)
    settings = {"topics": [topic]} | spoken(protocol)
    one = join(client, instance="one", **settings)
    # One after the other: kafka-python 3.x was seen without its assignment when two join at once,
    # with an Apache Kafka too.
    has_all(one, partitions(topic, 4))
    two = join(client, instance="two", **settings)
    share(one, two, partitions(topic, 4))
    eventually(lambda: set(one.values) | set(two.values) == set(written))
    before, rebalances = one.assigned, two.rebalances
    one.close()
    again = join(client, instance="one", **settings)
    has_all(again, before)
    assert two.rebalances == rebalances
    described = reference.describe_group(group=f"group-{topic}")["members"]
    assert sorted(told["instance"] for told in described) == ["one", "two"]


@clients("fenced")
def test_a_second_static_member_fences_the_first(client, reference, topic, join):
    filled(reference, topic, 1)
    first = join(client, topics=[topic], instance="same")
    has_all(first, partitions(topic, 1))
    second = join(client, topics=[topic], instance="same")
    has_all(second, partitions(topic, 1))
    if client.name == "kafka-python-3":
        # It only logs the error of its heartbeat; an application meets it when it commits.
        assert first.refusal("commit", offsets=[[topic, 0, 1, ""]]).code == FENCED_INSTANCE_ID
    else:
        eventually(lambda: any(told["code"] == FENCED_INSTANCE_ID for told in first.errors))


@clients("consumer_protocol")
def test_a_second_static_member_waits_for_the_first(client, reference, topic, join):
    """With group.protocol=consumer it is the second that is refused, while the first lives."""
    filled(reference, topic, 1)
    settings = {"topics": [topic], "instance": "same", "protocol": "consumer"}
    first = join(client, **settings)
    has_all(first, partitions(topic, 1))
    second = join(client, **settings)
    eventually(lambda: second.errors)
    assert second.errors[0]["code"] == UNRELEASED_INSTANCE_ID
    assert first.errors == []
    first.call("commit", offsets=[[topic, 0, 5, ""]])


@members("commit")
def test_a_paused_member_commits_nothing(client, protocol, reference, topic, join, spare):
    filled(reference, topic, 1)
    settings = {"topics": [topic], "session_ms": SESSION_MS} | spoken(protocol)
    zombie = join(spare(client.name), **settings)
    has_all(zombie, partitions(topic, 1))
    zombie.call("hold")
    zombie.client.signal(signal.SIGSTOP)
    try:
        other = join(client, **settings)
        has_all(other, partitions(topic, 1))
        other.call("commit", offsets=[[topic, 0, 8, "the owner's"]])
    finally:
        zombie.client.signal(signal.SIGCONT)
    refused = zombie.refusal("commit", offsets=[[topic, 0, 2, "the zombie's"]])
    # librdkafka gives the number; the others have one exception for all that it may be.
    assert refused.code in ZOMBIE or "CommitFailed" in str(refused), refused
    assert other.call("committed", topic=topic) == [8, "the owner's"]
    zombie.call("hold", held=False)
    # Awake, it comes back as an ordinary member, of which one has nothing.
    other.close()
    has_all(zombie, partitions(topic, 1))


# The admin client.


@clients("describe_groups")
def test_list_and_describe(client, reference, topic, join):
    group = f"group-{topic}"
    filled(reference, topic, 2)
    member = join(reference, topics=[topic], instance="instance", assignors=["roundrobin"])
    has_all(member, partitions(topic, 2))
    # Its metadata comes back to others with a null at its end, which confluent-kafka has sent.
    member.call("commit", offsets=[[topic, 1, 4, ""]])
    assert group in client.list_groups()
    told = client.describe_group(group=group)
    assert (told["state"], told["assignor"]) == ("Stable", "roundrobin")
    (described,) = told["members"]
    assert described["assigned"] == [[topic, 0], [topic, 1]]
    assert [told[:3] for told in client.group_offsets(group=group)] == [[topic, 1, 4]]
    assert client.group_offsets(group=f"no-{group}") == []


@clients("delete_groups")
def test_delete_a_group(client, reference, topic, join):
    group = f"group-{topic}"
    filled(reference, topic, 1)
    member = join(reference, topics=[topic])
    has_all(member, partitions(topic, 1))
    member.call("commit", offsets=[[topic, 0, 4, ""]])
    assert client.refusal("delete_group", group=group).code == NON_EMPTY_GROUP
    member.close()
    assert client.describe_group(group=group)["state"] == "Empty"
    client.delete_group(group=group)
    assert group not in client.list_groups()
    assert client.group_offsets(group=group) == []
    assert client.refusal("delete_group", group=group).code == GROUP_ID_NOT_FOUND


@clients("alter_group_offsets")
def test_alter_a_groups_offsets(client, reference, topic, join):
    group = f"group-{topic}"
    written = filled(reference, topic, 1)
    client.alter_group_offsets(group=group, offsets=[[topic, 0, 7, "altered"]])
    assert client.group_offsets(group=group) == [[topic, 0, 7, "altered"]]
    member = join(reference, topics=[topic])
    reads(member, sorted(written)[7:])
    refused = client.refusal("alter_group_offsets", group=group, offsets=[[topic, 0, 1, ""]])
    assert refused.code == UNKNOWN_MEMBER_ID
    assert client.group_offsets(group=group) == [[topic, 0, 7, "altered"]]


@clients("delete_group_offsets")
def test_delete_a_groups_offsets(client, reference, topic, join):
    group = f"group-{topic}"
    filled(reference, topic, 2)
    member = join(reference, topics=[topic])
    has_all(member, partitions(topic, 2))
    member.call("commit", offsets=[[topic, 0, 4, ""], [topic, 1, 5, ""]])
    refused = client.refusal("delete_group_offsets", group=group, topic=topic)
    assert refused.code == GROUP_SUBSCRIBED_TO_TOPIC
    member.close()
    client.delete_group_offsets(group=group, topic=topic, partition=0)
    assert [told[:3] for told in client.group_offsets(group=group)] == [[topic, 1, 5]]


# What only group.protocol=consumer has.


@pytest.mark.parametrize("assignor", ["range", "uniform"])
@clients("consumer_protocol")
def test_assignor_of_the_broker(client, reference, topic, join, assignor):
    topics = [f"{topic}-{i}" for i in range(2)]
    for name in topics:
        reference.create_topic(topic=name, partitions=3)
    wanted = {at for name in topics for at in partitions(name, 3)}
    settings = {"topics": topics, "protocol": "consumer", "remote_assignor": assignor}
    one = join(client, **settings)
    has_all(one, wanted)
    two = join(client, **settings)
    share(one, two, wanted)
    assert {len(one.assigned), len(two.assigned)} == ({2, 4} if assignor == "range" else {3})
    assert reference.describe_group(group=f"group-{topic}")["assignor"] == assignor


@clients("server_pattern")
def test_a_pattern_that_the_broker_matches(client, reference, topic, join):
    for name in (f"{topic}-a", f"{topic}-b", f"other-{topic}-a"):
        filled(reference, name, 1, 3)
    member = join(client, server_pattern=f"{topic}-.*", protocol="consumer")
    has_all(member, {(f"{topic}-a", 0), (f"{topic}-b", 0)})
    eventually(lambda: len(member.values) >= 6)
    assert {record[0] for record in member.records} == {f"{topic}-a", f"{topic}-b"}


@clients("consumer_protocol")
def test_a_group_moves_to_the_new_protocol_and_back(client, reference, topic, join):
    filled(reference, topic, 4)
    classic = join(client, topics=[topic], assignors=["range"])
    has_all(classic, partitions(topic, 4))
    modern = join(client, topics=[topic], protocol="consumer")
    share(classic, modern, partitions(topic, 4))
    classic.call("commit", offsets=[[*min(classic.assigned), 3, "classic"]])
    modern.call("commit", offsets=[[*min(modern.assigned), 5, "modern"]])
    offsets = reference.group_offsets(group=f"group-{topic}")
    assert sorted(told[2:] for told in offsets) == [[3, "classic"], [5, "modern"]]
    classic.close()
    has_all(modern, partitions(topic, 4))
    again = join(client, topics=[topic], assignors=["range"])
    share(modern, again, partitions(topic, 4))
    modern.close()
    has_all(again, partitions(topic, 4))
