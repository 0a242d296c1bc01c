"""Groups with members of both protocols: upgrade, life together, and downgrade."""

import pytest
from consumer_world import GROUP, ClassicConsumer, Member, World, settle

from chronik.coordinator.classic.group import ClassicGroup, ClassicMember, ClassicState
from chronik.coordinator.consumer.checks import check_commit, check_fetch
from chronik.coordinator.consumer.group import ConsumerGroup, ConsumerState
from chronik.coordinator.effects import Effects
from chronik.coordinator.groups.records import GroupMetadataKey, decode_key, decode_value
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    encode_assignment,
)
from chronik.protocol.messages.groups import (
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
)

NONE = ErrorCode.NONE
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS


def assignment(**topics):
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolTopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ]
        )
    )


@pytest.fixture
def world():
    made = World()
    made.create("t", 6)
    return made


def classic_group(world, shares, **fields):
    """A stable classic group in generation 5, as the classic machine would have made it."""
    group = ClassicGroup(
        **{
            "group_id": GROUP,
            "state": ClassicState.STABLE,
            "generation_id": 5,
            "protocol_type": "consumer",
            "protocol_name": "range",
            **fields,
        }
    )
    members = []
    for member_id, partitions in shares.items():
        member = ClassicConsumer(world, member_id, "t")
        member.generation = 5
        member.owned = {"t": set(partitions)}
        members.append(member)
        group.members[member_id] = ClassicMember(
            member_id=member_id,
            instance_id=None,
            client_id="client",
            client_host="/10.0.0.2",
            rebalance_timeout_ms=30_000,
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(("range", member.metadata()),),
            assignment=assignment(t=partitions),
        )
    world.state.groups[GROUP] = group
    return group, members


def together(world, classics, *consumers):
    for _ in range(20):
        for each in classics:
            each.follow()
        for each in consumers:
            each.beat()
        world.check()
        if world.group().state is ConsumerState.STABLE:
            return
    raise AssertionError(world.group())


# Upgrade.


def test_a_classic_group_is_upgraded_by_its_first_new_member(world):
    told = []
    world.machine.on_upgrade = told.append
    group, (first, second) = classic_group(world, {"a": [0, 1, 2], "b": [3, 4, 5]})
    group.members["a"].join_token = "waits to join"
    group.members["b"].sync_token = "waits to sync"
    third = Member(world, "c", "t")
    assert third.join().error_code == NONE
    assert told == [group]
    assert world.replies["waits to join"].error_code == AGAIN
    assert world.replies["waits to sync"].error_code == AGAIN
    assert (decode_key(world.log[0][0]), world.log[0][1]) == (GroupMetadataKey(group=GROUP), None)

    upgraded = world.group()
    assert isinstance(upgraded, ConsumerGroup)
    assert upgraded.group_epoch == 6
    assert third.count == 0, "what others own is not given away"
    world.check()
    together(world, [first, second], third)
    assert (first.count, second.count, third.count) == (2, 2, 2)
    described = world.machine.describe_group(GROUP)
    assert [each.member_type for each in described.members] == [0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "fields", "reason"),
    [
        ({"group_consumer_migration_policy": "disabled"}, {}, "online upgrade is disabled."),
        ({"group_consumer_migration_policy": "downgrade"}, {}, "online upgrade is disabled."),
        ({}, {"protocol_type": "connect"}, "does not use the consumer embedded protocol."),
        ({"group_consumer_max_size": 1}, {}, "exceeds the consumer group maximum size."),
    ],
)
def test_not_every_classic_group_can_be_upgraded(settings, fields, reason):
    world = World(**settings)
    world.create("t", 2)
    group, _ = classic_group(world, {"a": [0], "b": [1]}, **fields)
    refused = Member(world, "c", "t").join()
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message.endswith(reason)
    assert world.group() is group
    assert world.log == []


def test_assignors_of_their_own_are_not_upgraded(world):
    group, _ = classic_group(world, {"a": [0]})
    data = ConsumerProtocolAssignment(assigned_partitions=[], user_data=b"mine")
    group.members["a"].assignment = encode_assignment(data)
    refused = Member(world, "c", "t").join()
    assert "custom assignor" in refused.error_message
    group.members["a"].assignment = b"\0\0junk"
    assert "malformed" in Member(world, "c", "t").join().error_message
    assert world.group() is group


def test_a_heartbeat_to_a_classic_group_is_refused(world):
    classic_group(world, {"a": [0]})
    stranger = Member(world, "c", "t")
    stranger.epoch = 3
    refused = stranger.beat()
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == "Group g is not a consumer group."


def test_an_empty_classic_group_is_replaced(world):
    world.state.groups[GROUP] = ClassicGroup(group_id=GROUP, protocol_type="connect")
    member = Member(world, "c", "t")
    assert member.join().member_epoch == 1
    assert (decode_key(world.log[0][0]), world.log[0][1]) == (GroupMetadataKey(group=GROUP), None)
    world.check()


# Life together.


@pytest.fixture
def mixed(world):
    consumer = Member(world, "c", "t")
    consumer.join()
    classic = ClassicConsumer(world, "", "t")
    assert classic.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert classic.join().error_code == NONE
    assert classic.sync().error_code == NONE
    assert classic.count == 0
    together(world, [classic], consumer)
    assert (classic.count, consumer.count) == (3, 3)
    yield world, classic, consumer
    if isinstance(world.group(), ConsumerGroup):
        world.check()


def test_a_classic_member_is_told_to_give_back_and_to_take_over(mixed):
    world, classic, consumer = mixed
    late = Member(world, "d", "t")
    late.join()
    assert classic.beat().error_code == AGAIN
    before = set(classic.owned["t"])
    assert classic.join().generation_id == 2, "it has not given back yet"
    classic.sync()
    assert classic.owned["t"] < before
    assert classic.beat().error_code == AGAIN
    together(world, [classic], consumer, late)
    assert (classic.count, consumer.count, late.count) == (2, 2, 2)

    late.leave()
    consumer.beat()
    together(world, [classic], consumer)
    assert (classic.count, consumer.count) == (3, 3)


def test_a_member_that_waits_for_others_is_told_when_they_are_done(world):
    consumer = Member(world, "c", "t")
    consumer.join()
    classic = ClassicConsumer(world, "x", "t")
    classic.join()
    assert classic.sync().error_code == NONE
    assert classic.beat().error_code == NONE, "there is nothing to take over yet"
    consumer.beat()
    consumer.beat()
    assert classic.beat().error_code == AGAIN
    classic.follow()
    assert classic.count == 3


def test_wrong_generations_and_members_are_refused(mixed):
    world, classic, consumer = mixed
    classic.generation += 1
    assert classic.beat().error_code == ErrorCode.ILLEGAL_GENERATION
    assert classic.sync().error_code == ErrorCode.ILLEGAL_GENERATION
    classic.generation -= 1
    assert classic.sync(protocol_name="other").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert classic.sync(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert classic.sync(protocol_type=None, protocol_name=None).error_code == NONE
    imposter = ClassicConsumer(world, consumer.member_id, "t")
    imposter.generation = consumer.epoch
    assert imposter.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stranger = ClassicConsumer(world, "nobody", "t")
    assert stranger.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave().members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave(version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_protocols_must_fit(mixed):
    world, _, _ = mixed
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert ClassicConsumer(world, "x", "t", protocols=("mine",)).join().error_code == wrong
    assert ClassicConsumer(world, "x", "t").join(protocol_type="connect").error_code == wrong
    assert ClassicConsumer(world, "x", "t").join(protocols=[]).error_code == wrong
    junk = [JoinGroupRequestProtocol(name="range", metadata=b"\0")]
    assert ClassicConsumer(world, "x", "t").join(protocols=junk).error_code == wrong


def test_classic_members_are_refused_without_migration():
    world = World(group_consumer_migration_policy="disabled")
    world.create("t", 1)
    Member(world, "c", "t").join()
    refused = ClassicConsumer(world, "x", "t").join()
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_full_group_takes_no_classic_member():
    world = World(group_consumer_max_size=1)
    world.create("t", 1)
    Member(world, "c", "t").join()
    refused = ClassicConsumer(world, "x", "t").join()
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("step", ["silent", "does not join", "does not sync"])
def test_a_classic_member_that_is_late_is_removed(mixed, step):
    world, classic, consumer = mixed
    if step != "silent":
        Member(world, "d", "t").join()
        assert classic.beat().error_code == AGAIN
    if step == "does not sync":
        assert classic.join().error_code == NONE
    for _ in range(7):
        world.tick(4_500)
        consumer.beat()
        if step != "silent":
            classic.beat()
    assert classic.member_id not in world.group().members


def test_a_classic_member_commits_by_its_generation(mixed):
    world, classic, _ = mixed

    def commit(generation):
        check_commit(
            world.group(),
            classic.member_id,
            None,
            generation,
            8,
            is_transactional=False,
            partitions=[TopicPartition("t", 0), TopicPartition("t", 5), TopicPartition("x", 0)],
            image=world.image,
        )

    commit(classic.generation)
    for wrong in (classic.generation + 1, classic.generation - 1):
        with pytest.raises(KafkaError) as refused:
            commit(wrong)
        assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(KafkaError) as refused:
        check_fetch(world.group(), classic.member_id, 77)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_a_member_changes_its_protocol(mixed):
    world, classic, consumer = mixed
    again = Member(world, classic.member_id, "t")
    assert again.join().error_code == NONE
    settle(world, [again, consumer])
    assert (again.count, consumer.count) == (3, 3)
    world.tick(20_000)
    assert len(world.group().members) == 2, "the deadlines of the classic protocol are gone"


def test_a_static_classic_member_is_replaced(world):
    consumer = Member(world, "c", "t")
    consumer.join()
    first = ClassicConsumer(world, "", "t", instance_id="one")
    assert first.join().error_code == NONE
    first.sync()
    together(world, [first], consumer)
    second = ClassicConsumer(world, "", "t", instance_id="one")
    assert second.join().error_code == NONE
    assert second.sync().error_code == NONE
    assert second.owned == first.owned
    assert first.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert first.join().error_code == ErrorCode.FENCED_INSTANCE_ID
    world.check()


def test_classic_calls_to_other_groups_are_refused(world):
    stranger = ClassicConsumer(world, "x", "t")
    assert stranger.join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stranger.sync().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stranger.beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stranger.leave().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    consumer = Member(world, "c", "t")
    consumer.join()
    consumer.leave()
    assert stranger.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID, "nobody is there"


def test_a_member_that_syncs_late_is_told_to_join_again(mixed):
    world, classic, _ = mixed
    Member(world, "d", "t").join()
    assert classic.sync().error_code == AGAIN
    assert world.state.timers.get(("consumer", "join", GROUP, classic.member_id)) is not None


def test_a_static_member_leaves_by_its_instance(world):
    consumer = Member(world, "c", "t", instance_id="one")
    consumer.join()
    Member(world, "d", "t").join()
    leaver = ClassicConsumer(world, "", "t", instance_id="one")
    assert leaver.leave().members[0].error_code == NONE
    assert set(world.group().members) == {"d"}
    assert leaver.leave().members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_version_of_a_join_has_one_timeout(world):
    Member(world, "c", "t").join()
    classic = ClassicConsumer(world, "x", "t")
    assert classic.join(version=0, rebalance_timeout_ms=-1).error_code == NONE
    assert world.group().members["x"].rebalance_timeout_ms == 10_000


# Downgrade.


def downgrades(world):
    told = []

    def taken_over(group, rebalance, now_ms, effects):
        assert isinstance(effects, Effects)
        assert now_ms == world.now_ms
        told.append((group, rebalance))

    world.machine.on_downgrade = taken_over
    return told


def check_downgraded(world, told, classic, *, rebalance):
    [(group, asked)] = told
    assert asked is rebalance
    assert world.group() is group
    assert set(group.members) == {classic.member_id}
    assert (group.state, group.protocol_name, group.leader_id) == (
        ClassicState.STABLE,
        "range",
        classic.member_id,
    )
    key, value = world.log[-1]
    record = decode_value(decode_key(key), value)
    assert record.generation == group.generation_id
    assert record.members[0].assignment == group.members[classic.member_id].assignment
    assert world.replayed() == {}, "no record of the consumer group is left"
    assert len(world.state.timers) == 0, "its deadlines are those of the classic machine now"
    return group


def test_the_group_turns_back_when_only_classic_members_stay(mixed):
    world, classic, consumer = mixed
    told = downgrades(world)
    assert consumer.leave().error_code == NONE
    group = check_downgraded(world, told, classic, rebalance=True)
    assert group.generation_id == classic.generation
    _, assigned = decode_assignment(group.members[classic.member_id].assignment)
    assert {each.topic: set(each.partitions) for each in assigned.assigned_partitions} == (
        classic.owned
    )


def test_the_group_turns_back_when_its_last_new_member_is_silent(mixed):
    world, classic, _ = mixed
    told = downgrades(world)
    for _ in range(10):
        world.tick(4_600)
        if isinstance(world.group(), ConsumerGroup):
            classic.beat()
    check_downgraded(world, told, classic, rebalance=True)


def test_a_static_member_turns_the_group_back_by_its_protocol(world):
    consumer = Member(world, "c", "t", instance_id="one")
    consumer.join()
    consumer.leave(-2)
    told = downgrades(world)
    back = ClassicConsumer(world, "", "t", instance_id="one")
    assert back.join().error_code == NONE
    group = check_downgraded(world, told, back, rebalance=False)
    assert group.static_members == {"one": back.member_id}
    assert group.generation_id == back.generation


def test_without_downgrades_the_group_stays_as_it_is():
    world = World(group_consumer_migration_policy="upgrade")
    world.create("t", 6)
    consumer = Member(world, "c", "t")
    consumer.join()
    classic = ClassicConsumer(world, "x", "t")
    classic.join()
    classic.sync()
    together(world, [classic], consumer)
    consumer.leave()
    assert isinstance(world.group(), ConsumerGroup)
    together(world, [classic])
    assert classic.count == 6


def test_all_leave_at_once(mixed):
    world, classic, consumer = mixed
    request = LeaveGroupRequest(
        group_id=GROUP,
        members=[
            MemberIdentity(member_id=each)
            for each in (classic.member_id, consumer.member_id, "nobody", classic.member_id)
        ],
    )
    response = world.ask(world.machine.classic_leave, request, 5)
    assert [each.error_code for each in response.members] == [
        NONE,
        NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        NONE,
    ]
    assert world.group().state is ConsumerState.EMPTY


def test_a_group_is_upgraded_and_turned_back(world):
    told = downgrades(world)
    _, (first, second) = classic_group(world, {"a": [0, 1, 2], "b": [3, 4, 5]})
    third = Member(world, "c", "t")
    third.join()
    together(world, [first, second], third)
    third.leave()
    [(group, rebalance)] = told
    assert rebalance
    assert set(group.members) == {"a", "b"}
    assert group.generation_id == 6
    shares = [decode_assignment(each.assignment)[1] for each in group.members.values()]
    assert all(len(each.assigned_partitions[0].partitions) == 2 for each in shares)
