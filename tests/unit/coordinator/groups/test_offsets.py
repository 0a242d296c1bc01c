"""Committed offsets: who may commit and fetch what, transactions, deletion and expiry."""

from time import perf_counter

import pytest
from group_world import FORMAT, Client, World, stable_group

from chronik.coordinator.effects import Caller, ProducerStamp, Record
from chronik.coordinator.groups.records import GroupMetadataKey
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
WEEK_MS = 7 * 24 * 3_600_000
CHECK_MS = 600_000


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t", "u")
    return world


def commit(world, version=8, partition=0, offset=1, **fields):
    """One commit of topic t as it is on the wire; its error code."""
    options = {"committed_metadata": None}
    for name in ("commit_timestamp", "committed_metadata", "committed_leader_epoch"):
        if name in fields:
            options[name] = fields.pop(name)
    topic = {"name": "t"} if version < 10 else {"topic_id": world.image.topics["t"].id}
    topic |= fields.pop("topic", {})
    each = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, **options
    )
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(partitions=[each], **topic)], **fields
    )
    caller = Caller("c", "/h", version)
    answer = world.ask(
        lambda shard, token, now_ms: shard.offset_commit(request, caller, token, now_ms)
    )
    if isinstance(answer, ErrorCode):
        return answer
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def delete(world, *partitions, group="g"):
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
        )
        for name, index in partitions
    ]
    request = OffsetDeleteRequest(group_id=group, topics=topics)
    answer = world.ask(lambda shard, token, now_ms: shard.offset_delete(request, token, now_ms))
    if isinstance(answer, ErrorCode):
        return answer
    return [ErrorCode(each.partitions[0].error_code) for each in answer.topics]


# Commits.


def test_commit_without_membership_makes_a_group(world):
    assert world.commit({T0: 5, T1: 6}) is ErrorCode.NONE
    assert world.fetch(T0, T1, U0) == {T0: 5, T1: 6, U0: -1}
    assert world.fetch() == {T0: 5, T1: 6}
    assert world.group().protocol_type is None
    world.crash()
    assert world.fetch() == {T0: 5, T1: 6}


@pytest.mark.parametrize("version", range(10))
def test_commit_in_every_version(world, version):
    assert commit(world, version, offset=version) is ErrorCode.NONE
    assert world.fetch(T0) == {T0: version}


def test_commit_by_topic_id(world):
    assert commit(world, 10, offset=3) is ErrorCode.NONE
    assert world.fetch(T0) == {T0: 3}
    unknown = commit(world, 10, topic={"topic_id": b"x" * 16})
    assert unknown is ErrorCode.UNKNOWN_TOPIC_ID


def test_commit_for_a_topic_that_does_not_exist(world):
    codes = world.commit({T0: 1, ("nowhere", 0): 1})
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.fetch() == {T0: 1}


@pytest.mark.parametrize("partition", [-1, 2, 2**31 - 1])
def test_commit_for_a_partition_that_does_not_exist(world, partition):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.commit({T0: 5, ("t", partition): 6}) == [ErrorCode.NONE, unknown]
    assert commit(world, version=10, partition=partition) is unknown
    assert world.txn_commit(7, {T1: 5, ("t", partition): 6}) == [ErrorCode.NONE, unknown]
    world.end(7, committed=True)
    assert world.fetch() == {T0: 5, T1: 5}


def test_metadata_and_epoch_are_kept_as_given(world):
    commit(world, committed_metadata="note", committed_leader_epoch=4)
    value = world.state.offsets.get("g", "t", 0)
    assert (value.metadata, value.leader_epoch) == ("note", 4)
    assert value.commit_timestamp == world.now_ms
    assert value.topic_id == world.image.topics["t"].id


def test_metadata_has_a_limit(world):
    assert commit(world, committed_metadata="x" * 4_096) is ErrorCode.NONE
    too_large = commit(world, committed_metadata="x" * 4_097)
    assert too_large is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_commit_timestamp_of_version_1(world):
    commit(world, 1, commit_timestamp=77)
    assert world.state.offsets.get("g", "t", 0).commit_timestamp == 77


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_generation_of_a_group_that_nobody_knows(world, version, code):
    assert commit(world, version, generation_id_or_member_epoch=1, member_id="m") is code
    assert world.state.groups == {}


def test_only_members_of_the_generation_commit(world):
    a = Client(world, "a")
    stable_group(world, a)
    assert a.commit({T0: 1}) is ErrorCode.NONE
    assert a.commit({T0: 2}, generation_id=9) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit({T0: 2}) is ErrorCode.UNKNOWN_MEMBER_ID
    stranger = {"generation_id_or_member_epoch": 1, "member_id": "stranger"}
    assert world.commit({T0: 2}, **stranger) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.fetch(T0) == {T0: 1}
    a.leave()
    assert world.commit({T0: 2}) is ErrorCode.NONE


def test_commit_between_join_and_sync(world):
    a = Client(world, "a")
    a.enter()
    world.advance(3_000)
    a.joined()
    assert a.commit({T0: 1}) is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_while_others_join(world):
    a = Client(world, "a")
    stable_group(world, a)
    Client(world, "b").enter()
    assert a.commit({T0: 4}) is ErrorCode.NONE


def test_fenced_static_member_cannot_commit(world):
    old = Client(world, "a", instance="i")
    stable_group(world, old)
    Client(world, "a", instance="i").join()
    assert old.commit({T0: 1}) is ErrorCode.FENCED_INSTANCE_ID


# Fetches.


def test_group_that_nobody_knows_has_no_offsets(world):
    assert world.fetch(T0) == {T0: -1}
    assert world.fetch() == {}


def test_fetch_by_topic_id(world):
    world.commit({T0: 5})
    topics = [
        OffsetFetchRequestTopic(topic_id=topic_id, partition_indexes=[0])
        for topic_id in (world.image.topics["t"].id, b"x" * 16)
    ]
    caller = Caller("c", "/h", 10)
    for asked in (topics, None):
        request = OffsetFetchRequestGroup(group_id="g", topics=asked)
        answer = world.ask(
            lambda shard, token, now_ms, request=request: shard.offset_fetch(
                request, caller, False, token, now_ms
            )
        )
        assert answer.topics[0].topic_id == world.image.topics["t"].id
        assert answer.topics[0].partitions[0].committed_offset == 5
        if asked is not None:
            assert answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_all_offsets_by_topic_id_leave_out_topics_that_are_gone(world):
    world.commit({T0: 5, U0: 6})
    shard, world.shard = world.shard, world.fresh()  # Another machine hears of it.
    world.delete("u")
    world.shard = shard
    world.shard.image = world.image
    assert world.fetch(version=9) == {T0: 5, U0: 6}
    request = OffsetFetchRequestGroup(group_id="g", topics=None)
    caller = Caller("c", "/h", 10)
    answer = world.ask(
        lambda shard, token, now_ms: shard.offset_fetch(request, caller, False, token, now_ms)
    )
    assert [topic.topic_id for topic in answer.topics] == [world.image.topics["t"].id]


# Transactions.


def test_transactional_offsets_count_once_committed(world):
    world.commit({T0: 1})
    assert world.txn_commit(7, {T0: 5, T1: 6}) is ErrorCode.NONE
    assert world.fetch(T0, T1) == {T0: 1, T1: -1}
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert world.fetch(T0, T1, U0, stable=True) == {T0: unstable, T1: unstable, U0: -1}
    world.end(7, committed=True)
    assert world.fetch(T0, T1, stable=True) == {T0: 5, T1: 6}


def test_aborted_offsets_are_never_seen(world):
    world.txn_commit(7, {T0: 5})
    world.end(7, committed=False)
    assert world.fetch(T0, stable=True) == {T0: -1}
    assert world.state.offsets.pending == world.state.offsets.open == {}


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(("plain_first", "expected"), [(True, 5), (False, 1)])
def test_of_plain_and_transactional_the_later_record_counts(world, plain_first, expected, crashes):
    if plain_first:
        world.commit({T0: 1})
    world.txn_commit(7, {T0: 5})
    if not plain_first:
        world.commit({T0: 1})
    if crashes:
        world.crash()
    world.end(7, committed=True)
    assert world.fetch(T0) == {T0: expected}
    world.crash()
    assert world.fetch(T0) == {T0: expected}


def test_transactions_of_two_producers_are_apart(world):
    world.txn_commit(7, {T0: 5})
    world.txn_commit(8, {T0: 6})
    world.end(8, committed=False)
    assert world.fetch(T0, stable=True) == {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    world.end(7, committed=True, epoch=1)
    assert world.fetch(T0, stable=True) == {T0: 5}


def test_transactional_commit_bears_the_producer(world):
    world.txn_commit(7, {T0: 5}, epoch=3)
    assert world.log[-1][2] == ProducerStamp(7, 3)


def test_transactional_commit_is_fenced_by_generation(world):
    a = Client(world, "a")
    stable_group(world, a)
    member = {"member_id": a.member_id, "generation_id": 1}
    assert world.txn_commit(7, {T0: 1}, **member) is ErrorCode.NONE
    assert world.txn_commit(7, {T0: 1}) is ErrorCode.NONE  # A producer before version 3.
    old = {**member, "generation_id": 0}
    assert world.txn_commit(7, {T0: 1}, **old) is ErrorCode.ILLEGAL_GENERATION
    gone = {**member, "member_id": "gone"}
    assert world.txn_commit(7, {T0: 1}, **gone) is ErrorCode.UNKNOWN_MEMBER_ID
    nobody = {"group": "nobody", "generation_id": 1, "member_id": "m"}
    assert world.txn_commit(7, {T0: 1}, **nobody) is ErrorCode.ILLEGAL_GENERATION
    unknown = world.txn_commit(7, {("nowhere", 0): 1}, **member)
    assert unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleting_the_group_forgets_what_is_pending(world):
    world.txn_commit(7, {T0: 5})
    world.ask(lambda shard, token, now_ms: shard.delete_group("g", token, now_ms))
    world.end(7, committed=True)
    assert world.state.groups == {}
    assert world.fetch() == {}
    world.crash()
    assert world.fetch() == {}


# Deletion.


def test_delete_offsets(world):
    assert delete(world, T0) is ErrorCode.GROUP_ID_NOT_FOUND
    world.commit({T0: 1, U0: 2})
    codes = delete(world, T0, ("nowhere", 0))
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.fetch() == {U0: 2}
    world.crash()
    assert world.fetch() == {U0: 2}


def test_delete_offsets_of_partitions_that_do_not_exist(world):
    world.commit({T0: 5})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(world, ("t", 2), ("t", -1), T0) == [unknown, unknown, ErrorCode.NONE]


def test_only_plain_commits_may_name_no_group(world):
    assert world.commit({T0: 5}, group="") is ErrorCode.NONE
    assert world.txn_commit(7, {T0: 6}, group="") is ErrorCode.INVALID_GROUP_ID
    assert delete(world, T0, group="") is ErrorCode.INVALID_GROUP_ID


def test_offsets_of_subscribed_topics_stay(world):
    a = Client(world, "a")
    stable_group(world, a)
    a.commit({T0: 1, U0: 2})
    assert delete(world, T0, U0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert world.fetch() == {T0: 1}


def test_offsets_of_other_protocols_stay_while_there_are_members(world):
    a = Client(world, "a", type="connect")
    stable_group(world, a)
    a.commit({T0: 1})
    assert delete(world, T0) is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert delete(world, T0) == [ErrorCode.NONE]


def test_offsets_go_with_their_topic(world):
    world.commit({T0: 1, U0: 2})
    world.txn_commit(7, {T1: 3})
    world.delete("t")
    world.end(7, committed=True)
    assert world.fetch() == {U0: 2}
    world.create("t")
    assert world.fetch(T0) == {T0: -1}
    world.crash()
    assert world.fetch() == {U0: 2}


def test_topic_that_was_created_anew_meanwhile_inherits_nothing(world):
    world.commit({T0: 1, U0: 2})
    shard, world.shard = world.shard, world.fresh()  # Another machine hears of it.
    world.delete("t")
    world.create("t")
    world.shard = shard
    world.shard.image = world.image
    assert world.fetch(T0) == {T0: -1}
    world.crash()
    assert world.fetch() == {U0: 2}
    assert world.replayed().state.offsets.get("g", "t", 0) is None


def test_delete_what_is_not_there(world):
    world.commit({T0: 1})
    assert delete(world, U0) == [ErrorCode.NONE]
    assert world.fetch() == {T0: 1}


def test_one_of_several_pending_offsets_is_deleted(world):
    world.txn_commit(7, {T0: 1, T1: 2})
    assert delete(world, T0) == [ErrorCode.NONE]
    world.end(7, committed=True)
    assert world.fetch() == {T1: 2}


def test_offsets_without_a_group_record_make_a_group_when_loaded(world):
    world.commit({T0: 1})
    world.log.append((*FORMAT.encode(Record(GroupMetadataKey(group="g"), None)), None))
    world.crash()
    assert world.fetch() == {T0: 1}
    assert world.group().protocol_type is None


# Expiry.


def test_offsets_without_membership_expire_after_the_last_commit(world):
    world.commit({T0: 1})
    world.advance(WEEK_MS // 2)
    world.commit({T1: 2})
    world.advance(WEEK_MS // 2 + CHECK_MS)
    assert world.fetch() == {T1: 2}
    world.advance(WEEK_MS)
    assert world.fetch() == {}
    assert world.state.groups == {}
    assert world.replayed().state.groups == {}


def test_offsets_of_an_empty_group_expire_after_it_became_empty(world):
    a = Client(world, "a", session=1_800_000, type="connect")
    stable_group(world, a)
    a.commit({T0: 1})
    for _ in range(WEEK_MS // 1_000_000 + 2):
        world.advance(1_000_000)
        assert a.heartbeat() is ErrorCode.NONE
    assert world.fetch() == {T0: 1}
    a.leave()
    world.advance(WEEK_MS - CHECK_MS)
    assert world.fetch() == {T0: 1}
    world.advance(2 * CHECK_MS)
    assert world.fetch() == {}
    assert "g" not in world.state.groups


def test_offsets_of_topics_that_are_read_no_more_expire(world):
    a = Client(world, "a", session=1_800_000)
    stable_group(world, a)
    a.commit({T0: 1, U0: 2})
    for _ in range(WEEK_MS // 1_000_000 + 2):
        world.advance(1_000_000)
        assert a.heartbeat() is ErrorCode.NONE
    assert world.fetch() == {T0: 1}


def test_retention_of_a_commit_counts(world):
    commit(world, 2, retention_time_ms=2 * CHECK_MS)
    world.advance(CHECK_MS)
    world.crash()
    assert world.fetch() == {T0: 1}
    world.advance(2 * CHECK_MS)
    assert world.fetch() == {}


def test_retention_for_ever_fits_into_the_record(world):
    assert world.commit({T0: 5}, version=4, retention_time_ms=2**63 - 1) is ErrorCode.NONE
    world.crash()
    world.advance(100 * WEEK_MS)
    assert world.fetch(T0) == {T0: 5}


def test_pending_offsets_hold_up_expiry(world):
    world.commit({T0: 1})
    world.txn_commit(7, {T0: 2})
    world.advance(WEEK_MS + CHECK_MS)
    assert world.fetch(T0) == {T0: 1}
    world.end(7, committed=False)
    world.advance(CHECK_MS)
    assert world.fetch(T0) == {T0: -1}


def test_much_that_expires_is_logged_in_pieces():
    world = World()
    world.create("t", partitions=3_000)
    world.commit({("t", each): each for each in range(1_500)}, group="a")
    world.commit({("t", each): each for each in range(1_500)}, group="b")
    written = len(world.log)
    world.now_ms += 2 * WEEK_MS
    world.take(world.shard.tick(world.now_ms))
    assert len(world.log) - written == 1_501
    world.advance(0)
    assert world.state.groups == {}


def test_speed():
    world = World()
    world.create("t", partitions=10_000)
    begin = perf_counter()
    for each in range(2_000):
        world.commit({("t", each): each})
    each_us = (perf_counter() - begin) / 2_000 * 1e6
    world.commit({("t", each): each for each in range(10_000)})
    request = OffsetFetchRequestGroup(group_id="g", topics=None)
    begin = perf_counter()
    world.shard.offset_fetch(request, Caller("c", "/h", 9), True, None, 0)
    fetch_ms = (perf_counter() - begin) * 1e3
    # Ten times what it takes: only something that is not linear fails here.
    assert each_us < 1_000, each_us
    assert fetch_ms < 500, fetch_ms
