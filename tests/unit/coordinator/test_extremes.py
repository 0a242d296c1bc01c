"""The longest strings and the largest numbers that a request can hold: each becomes a record.

A record that cannot be encoded takes its shard down, and with it every group of the shard. So what
a machine writes must fit, whatever came over the wire, and be the same when it is read back.
"""

import pytest
from consumer_world import GROUP, ClassicConsumer, Member
from consumer_world import World as ConsumerWorld
from group_world import Client, World, stable_group, subscription
from transaction_world import Driver

from chronik.coordinator.effects import Caller, ProducerStamp
from chronik.coordinator.transactions.records import TransactionRecordFormat
from chronik.model import TopicPartition
from chronik.protocol.codec import STRING_BYTES_MAX
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

# Of one byte a character, and of as many as there can be.
LONGEST = ["x" * STRING_BYTES_MAX, "\U0001f600" * (STRING_BYTES_MAX // 4)]
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)
longest = pytest.mark.parametrize("longest", LONGEST, ids=["ascii", "wide"])


@longest
@pytest.mark.parametrize("long", [LONG_MAX, LONG_MIN])
@pytest.mark.parametrize("epoch", [INT_MAX, INT_MIN])
@pytest.mark.parametrize("version", [1, 2, 4, 8, 9])
def test_offsets(longest, long, epoch, version):
    world = World(offset_metadata_max_bytes=INT_MAX)
    world.create("t")
    each = OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=long,
        committed_leader_epoch=epoch if version >= 6 else -1,
        commit_timestamp=long if version == 1 else -1,
        committed_metadata=longest,
    )
    request = OffsetCommitRequest(
        group_id=longest,
        retention_time_ms=long if 2 <= version <= 4 else -1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[each])],
    )
    caller = Caller(longest, f"/{longest}", version)
    answer = world.ask(
        lambda shard, token, now_ms: shard.offset_commit(request, caller, token, now_ms)
    )
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    found = world.state.offsets.get(longest, "t", 0)
    assert world.replayed().state.offsets.get(longest, "t", 0) == found
    assert (found.offset, found.metadata) == (long, longest)


@longest
@pytest.mark.parametrize("producer_id", [0, LONG_MAX])
def test_transactional_offsets(longest, producer_id):
    world = World()
    world.create("t")
    assert world.txn_commit(producer_id, {("t", 0): 1}, group=longest) is ErrorCode.NONE
    world.end(producer_id, committed=True)
    assert world.fetch(group=longest) == {("t", 0): 1}


@longest
@pytest.mark.parametrize("instance", [False, True])
@pytest.mark.parametrize("rebalance", [INT_MAX, 1])
def test_classic_members(longest, instance, rebalance):
    world = World(group_max_session_timeout_ms=INT_MAX)
    world.create("t")
    options = {
        "group": longest,
        "instance": longest if instance else None,
        "session": INT_MAX,
        "rebalance": rebalance,
        "type": longest,
        "protocols": {longest: b"\xff" * 100_000},
    }
    client = Client(world, longest, **options)
    client.enter()
    world.advance(3_000)
    assert client.joined().error_code == ErrorCode.NONE
    client.sync({client.member_id: b"\xff" * 100_000})
    assert client.synced().error_code == ErrorCode.NONE
    if instance:
        again = Client(world, longest, **options)
        assert again.enter().error_code == ErrorCode.NONE
    world.crash()
    assert world.group(longest).protocol_name == longest
    (member,) = world.group(longest).members.values()
    assert member.client_id == longest


@longest
@pytest.mark.parametrize("timeout_ms", [INT_MAX, INT_MIN])
def test_consumer_members(longest, timeout_ms):
    world = ConsumerWorld()
    world.create("t", 2)
    member = Member(
        world,
        longest,
        "t",
        longest,
        group_id=longest,
        instance_id=longest,
        rack_id=longest,
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_regex="t" * 4096,
    )
    assert member.join().error_code == ErrorCode.NONE
    assert member.count == 2
    assert member.beat(subscribed_topic_names=[longest]).error_code == ErrorCode.NONE
    world.check()
    world.crash()
    world.check()
    assert member.beat().error_code == ErrorCode.NONE


@longest
def test_classic_members_of_a_consumer_group(longest):
    world = ConsumerWorld()
    world.create("t", 2)
    Member(world, "m", "t").join()
    classic = ClassicConsumer(world, "", "t", longest, instance_id=longest, protocols=(longest,))
    classic.join(session_timeout_ms=INT_MAX, rebalance_timeout_ms=INT_MAX)
    assert world.group(GROUP).static_member(longest) is not None
    world.check()
    world.crash()
    world.check()


@longest
def test_members_that_change_the_protocol(longest):
    world = World()
    world.create("t")
    options = {"protocols": {longest: subscription("t", longest)}, "instance": longest}
    stable_group(world, Client(world, "c", **options))
    world.crash()
    upgraded = Client(world, "c", **options)
    upgraded.member_id = world.group().static_members[longest]
    assert upgraded.enter().error_code == ErrorCode.NONE


@longest
@pytest.mark.parametrize("version", [1, 2])
def test_transactional_ids(longest, version):
    driver = Driver()
    driver.next_id = LONG_MAX - 1
    # The longest timeout that the broker allows is a number of its own settings.
    stamp = driver.init(longest, timeout_ms=900_000).stamp
    partitions = frozenset([TopicPartition("t" * 249, INT_MAX)])
    driver.ask(
        lambda token, now: driver.shard.add_partitions(
            longest, stamp, partitions, version, token, now
        )
    )
    wrong = ProducerStamp(LONG_MIN, -(2**15))
    assert driver.init(longest, wrong).error_code is ErrorCode.PRODUCER_FENCED
    encoding = TransactionRecordFormat()
    assert driver.log
    for record in driver.log:
        assert encoding.decode(*encoding.encode(record)) == record
