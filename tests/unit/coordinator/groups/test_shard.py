"""The facade of one shard: which machine gets what, and groups that change their protocol."""

import pytest
from group_world import Client, World, stable_group, subscription

from chronik.coordinator.classic.group import ClassicGroup, ClassicState
from chronik.coordinator.consumer.group import ConsumerGroup
from chronik.coordinator.effects import Caller, Record
from chronik.coordinator.groups.records import GroupMetadataKey, GroupRecordFormat
from chronik.coordinator.transactions.records import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionRecordFormat,
)
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from chronik.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    encode_assignment,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
)

T0, T1 = ("t", 0), ("t", 1)


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    return world


def beat(world, member_id="m", epoch=0, group="g", **fields):
    """A heartbeat of the consumer protocol."""
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": (),
            **fields,
        }
    request = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member_id, member_epoch=epoch, **fields
    )
    caller = Caller("c", "/h", 1)
    return world.ask(
        lambda shard, token, now_ms: shard.consumer_group_heartbeat(request, caller, token, now_ms)
    )


def describe(world, group="g", version=6):
    caller = Caller("c", "/h", version)
    return world.ask(lambda shard, token, _: shard.describe_group(group, caller, 5, token))


def delete(world, group="g"):
    answer = world.ask(lambda shard, token, now_ms: shard.delete_group(group, token, now_ms))
    return ErrorCode(answer.error_code)


def listed(world, states=(), types=()):
    found = world.shard.list_groups(states, types)
    return [
        (each.group_id, each.protocol_type, each.group_state, each.group_type) for each in found
    ]


# What operators ask.


def test_list_with_filters(world):
    stable_group(world, Client(world, "a"))
    beat(world, group="k")
    world.commit({T0: 1}, group="simple")
    g = ("g", "consumer", "Stable", "classic")
    k = ("k", "consumer", "Stable", "consumer")
    simple = ("simple", "", "Empty", "classic")
    assert listed(world) == [g, k, simple]
    assert listed(world, states=["EMPTY"]) == [simple]
    assert listed(world, states=["stable"], types=["Classic"]) == [g]
    assert listed(world, types=["consumer"]) == [k]
    assert listed(world, states=["Dead"]) == []


def test_describe_a_stable_group(world):
    a = Client(world, "a", instance="i")
    stable_group(world, a)
    found = describe(world)
    assert (found.group_state, found.protocol_type) == ("Stable", "consumer")
    assert (found.protocol_data, found.authorized_operations) == ("range", 5)
    (member,) = found.members
    assert (member.member_id, member.group_instance_id) == (a.member_id, "i")
    assert (member.client_id, member.client_host) == ("a", "/host")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"a")


def test_describe_a_group_that_rebalances(world):
    a = Client(world, "a")
    stable_group(world, a)
    Client(world, "b").enter()
    found = describe(world)
    assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
    assert all(member.member_metadata == b"" for member in found.members)


def test_describe_what_is_no_classic_group(world):
    beat(world)
    for group in ("g", "nobody"):
        found = describe(world, group)
        assert (found.error_code, found.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        found = describe(world, group, version=5)
        assert (found.error_code, found.group_state) == (ErrorCode.NONE, "Dead")


def test_describe_a_consumer_group(world):
    beat(world)
    found = world.ask(lambda shard, token, _: shard.describe_consumer_group("g", 5, token))
    assert (found.error_code, found.authorized_operations) == (ErrorCode.NONE, 5)
    assert [member.member_id for member in found.members] == ["m"]
    found = world.ask(lambda shard, token, _: shard.describe_consumer_group("x", 5, token))
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_delete_a_group(world, protocol):
    assert delete(world) is ErrorCode.GROUP_ID_NOT_FOUND
    if protocol == "classic":
        a = Client(world, "a")
        stable_group(world, a)
        assert delete(world) is ErrorCode.NON_EMPTY_GROUP
        a.leave()
    else:
        beat(world)
        assert delete(world) is ErrorCode.NON_EMPTY_GROUP
        beat(world, epoch=-1)
    world.commit({T0: 1, T1: 2})
    assert delete(world) is ErrorCode.NONE
    assert world.fetch() == {}
    for shard in (world.shard, world.replayed()):
        assert shard.state.groups == {}
        assert shard.state.offsets.groups == {}


# Deadlines.


def test_late_tick_keeps_who_was_answered_in_it(world):
    """The join phase and a session end in one tick: the first has begun the second anew."""
    a, b = (Client(world, name, session=6_000, rebalance=5_000) for name in "ab")
    stable_group(world, a, b)
    world.crash()
    assert a.join() is None
    world.now_ms += 10_000
    world.take(world.shard.tick(world.now_ms))
    assert a.joined().error_code == ErrorCode.NONE
    assert a.heartbeat() is ErrorCode.NONE
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_next_deadline_is_that_of_the_first_timer(world):
    begin_ms = world.now_ms
    assert world.shard.next_deadline_ms == begin_ms + 600_000
    Client(world, "a", version=3).join()
    assert world.shard.next_deadline_ms == begin_ms + 3_000


# Consumer groups.


def test_consumer_protocol_can_be_switched_off():
    world = World(group_coordinator_rebalance_protocols="classic")
    assert beat(world).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_commits_follow_member_epochs(world):
    epoch = beat(world).member_epoch
    member = {"member_id": "m", "version": 9}
    good = world.commit({T0: 4}, generation_id_or_member_epoch=epoch, **member)
    assert good is ErrorCode.NONE
    newer = world.commit({T0: 5}, generation_id_or_member_epoch=epoch + 1, **member)
    assert newer is ErrorCode.STALE_MEMBER_EPOCH
    in_transaction = {"member_id": "m", "generation_id": epoch + 1}
    assert world.txn_commit(7, {T0: 1}, **in_transaction) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit({T0: 5}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.fetch(T0) == {T0: 4}


@pytest.mark.parametrize("version", [9, 10])
def test_commit_of_an_older_epoch_counts_for_what_was_owned_since(world, version):
    old = beat(world).member_epoch
    beat(world, "n")
    beat(world, epoch=old)
    topic_id = world.image.topics["t"].id
    (kept,) = world.group().members["m"].assigned[topic_id]
    own = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=[kept])]
    assert beat(world, epoch=old, topic_partitions=own).member_epoch > old

    topic = {"name": "t"} if version < 10 else {"topic_id": topic_id}
    caller = Caller("c", "/h", version)

    def commit(*partitions):
        each = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=1, committed_metadata=None
            )
            for index in partitions
        ]
        request = OffsetCommitRequest(
            group_id="g",
            member_id="m",
            generation_id_or_member_epoch=old,
            topics=[OffsetCommitRequestTopic(partitions=each, **topic)],
        )
        return world.ask(
            lambda shard, token, now_ms: shard.offset_commit(request, caller, token, now_ms)
        )

    assert commit(kept).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert commit(kept, 1 - kept) is ErrorCode.STALE_MEMBER_EPOCH
    member = {"member_id": "m", "generation_id": old}
    assert world.txn_commit(7, {("t", kept): 1}, **member) is ErrorCode.NONE
    revoked = {("t", kept): 1, ("t", 1 - kept): 1}
    assert world.txn_commit(7, revoked, **member) is ErrorCode.ILLEGAL_GENERATION
    stranger = {**member, "member_id": "x"}
    assert world.txn_commit(7, {T0: 1}, **stranger) is ErrorCode.UNKNOWN_MEMBER_ID


def test_deadlines_of_a_group_of_the_other_protocol_are_nobodys(world):
    beat(world)
    world.state.timers.set(("classic", "join", "g"), world.now_ms)
    world.advance(0)
    assert isinstance(world.group(), ConsumerGroup)


def test_late_removal_of_a_classic_group_spares_its_successor(world):
    beat(world)
    world.log.append((*GroupRecordFormat().encode(Record(GroupMetadataKey(group="g"), None)), None))
    world.crash()
    assert isinstance(world.group(), ConsumerGroup)
    assert world.image is world.shard.image


def test_offsets_of_a_consumer_group_stay_while_it_reads_the_topic(world):
    world.create("u")
    epoch = beat(world).member_epoch
    member = {"member_id": "m", "version": 9, "generation_id_or_member_epoch": epoch}
    assert world.commit({T0: 4, ("u", 0): 5}, **member) is ErrorCode.NONE
    for _ in range(8 * 24 * 120):
        world.advance(30_000)
        beat(world, epoch=epoch)
    assert world.fetch() == {T0: 4}


def test_fetch_follows_member_epochs(world):
    epoch = beat(world).member_epoch
    caller = Caller("c", "/h", 9)

    def fetch(member_id, member_epoch):
        request = OffsetFetchRequestGroup(
            group_id="g", member_id=member_id, member_epoch=member_epoch, topics=()
        )
        return world.ask(
            lambda shard, token, now_ms: shard.offset_fetch(request, caller, False, token, now_ms)
        )

    assert fetch("m", epoch).error_code == ErrorCode.NONE
    assert fetch(None, -1).error_code == ErrorCode.NONE
    assert fetch("m", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", epoch) is ErrorCode.UNKNOWN_MEMBER_ID


def test_empty_consumer_group_gives_way_to_a_classic_one(world):
    beat(world)
    beat(world, epoch=-1)
    world.commit({T0: 3})
    a = Client(world, "a")
    stable_group(world, a)
    assert isinstance(world.group(), ClassicGroup)
    assert world.fetch(T0) == {T0: 3}
    world.crash()
    assert world.group().state is ClassicState.STABLE
    assert world.fetch(T0) == {T0: 3}


def test_empty_classic_group_gives_way_to_a_consumer_group(world):
    a = Client(world, "a")
    stable_group(world, a)
    a.commit({T0: 3})
    a.leave()
    assert beat(world).error_code == ErrorCode.NONE
    world.crash()
    assert isinstance(world.group(), ConsumerGroup)
    assert world.fetch(T0) == {T0: 3}


def assignment(*partitions):
    topics = [ConsumerProtocolTopicPartition(topic="t", partitions=partitions)]
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics))


def classic_member(world, name, *partitions):
    """A stable classic group of one, which reads these partitions."""
    client = Client(world, name)
    client.enter()
    world.advance(3_000)
    client.joined()
    client.sync({client.member_id: assignment(*partitions)})
    return client


def test_upgrade_and_downgrade_while_the_group_lives(world):
    a = classic_member(world, "a", 0, 1)
    a.commit({T0: 7})
    epoch = beat(world).member_epoch
    assert isinstance(world.group(), ConsumerGroup)
    assert set(world.group().members) == {a.member_id, "m"}
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS

    a.join()
    a.generation_id = a.joined().generation_id
    found = decode_assignment(a.sync().assignment)[1].assigned_partitions
    assert sum(len(topic.partitions) for topic in found) == 1
    beat(world, epoch=epoch, topic_partitions=())

    beat(world, epoch=-1)
    assert isinstance(world.group(), ClassicGroup)
    assert set(world.group().members) == {a.member_id}
    assert world.fetch(T0) == {T0: 7}
    assert a.heartbeat() in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
    assert a.join().error_code == ErrorCode.NONE
    a.sync({a.member_id: assignment(0, 1)})
    world.crash()
    assert world.group().state is ClassicState.STABLE
    assert a.heartbeat() is ErrorCode.NONE


def test_classic_member_leaves_a_consumer_group(world):
    a = classic_member(world, "a", 0, 1)
    beat(world)
    assert a.leave() is ErrorCode.NONE
    assert set(world.group().members) == {"m"}


def test_static_member_comes_back_with_the_classic_protocol(world):
    beat(world, instance_id="i")
    beat(world, epoch=-2, instance_id="i")
    a = Client(world, "a", instance="i")
    assert a.join().error_code == ErrorCode.NONE
    assert isinstance(world.group(), ClassicGroup)
    assert list(world.group().members) == [a.member_id]
    assert world.group().is_subscribed_to("t")
    assert a.heartbeat() is ErrorCode.NONE
    found = decode_assignment(a.sync().assignment)[1].assigned_partitions
    assert [topic.partitions for topic in found] == [[0, 1]]


def test_upgrade_sends_waiting_members_back(world):
    a = classic_member(world, "a", 0)
    b = Client(world, "b", version=3)
    assert b.join() is None
    assert beat(world).error_code == ErrorCode.NONE
    assert b.joined().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.waiting == set()
    world.advance(5_000)
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_abandoned_members_of_an_upgraded_group_time_out(world):
    classic_member(world, "a", 0)
    beat(world)
    world.advance(200_000)
    assert world.group().members == {}
    assert not world.waiting


# Records.


def test_records_of_other_types_are_passed_over():
    assert GroupRecordFormat().decode(b"\x00\x63rest", b"") is None
    assert TransactionRecordFormat().decode(b"\x00\x63rest", b"") is None


def test_record_formats_round_trip():
    removal = Record(GroupMetadataKey(group="g"), None)
    assert GroupRecordFormat().decode(*GroupRecordFormat().encode(removal)) == removal
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=2,
        transaction_timeout_ms=3,
        transaction_status=0,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=4,
        transaction_start_timestamp_ms=5,
    )
    for each in (value, None):
        record = Record(TransactionLogKey(transactional_id="x"), each)
        found = TransactionRecordFormat()
        assert found.decode(*found.encode(record)) == record
