"""Consumer groups: joins, leaves, epochs, fencing, static members, expressions, deadlines."""

import pytest
from consumer_world import GROUP, Member, World, settle

from chronik.coordinator.consumer.change import SETTLING_MS
from chronik.coordinator.consumer.checks import check_commit, check_fetch
from chronik.coordinator.consumer.group import ConsumerGroup, ConsumerState, MemberState
from chronik.coordinator.effects import Effects
from chronik.coordinator.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    OffsetCommitKey,
    decode_key,
)
from chronik.model import TopicPartition
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import HeartbeatTopicPartitions

NONE = ErrorCode.NONE


@pytest.fixture
def world():
    made = World()
    made.create("t", 6)
    yield made
    made.check()


def joined(world, *members):
    for member in members:
        assert member.join().error_code == NONE
    settle(world, members)
    return members


def pair(world, **fields):
    return joined(world, Member(world, "a", "t", **fields), Member(world, "b", "t", **fields))


def code(call, *args, **fields):
    with pytest.raises(KafkaError) as refused:
        call(*args, **fields)
    return refused.value.code


# Joining, staying, leaving.


def test_the_first_member_gets_everything(world):
    member = Member(world, "a", "t")
    response = member.join()
    assert (response.member_id, response.member_epoch) == ("a", 1)
    assert member.owned == {world.topic_id("t"): set(range(6))}
    assert world.group().state is ConsumerState.STABLE


def test_the_assignment_is_told_only_when_it_changed_or_all_was_told(world):
    member = Member(world, "a", "t")
    member.join()
    assert member.beat().assignment is None
    assert member.beat(silent=True).assignment is None
    assert member.beat(rebalance_timeout_ms=60_000, subscribed_topic_names=["t"]).assignment


def test_a_second_member_waits_for_what_the_first_gives_back(world):
    first, second = Member(world, "a", "t"), Member(world, "b", "t")
    first.join()
    assert second.join().assignment.topic_partitions == []
    assert world.group().state is ConsumerState.RECONCILING

    told = first.beat()
    assert told.member_epoch == 1, "it stays in its epoch until it has given back"
    assert first.count == 3
    world.check()
    second.beat()
    assert second.count == 0, "not before the first has said so"

    assert first.beat().member_epoch == 2
    second.beat()
    assert (first.count, second.count) == (3, 3)
    assert world.group().state is ConsumerState.STABLE


def test_members_that_have_nothing_to_do_go_on(world):
    world.create("big", 500)
    members = joined(world, *(Member(world, f"m{each}", "big") for each in range(5)))
    before = {each.member_id: each.owned[world.topic_id("big")] for each in members}
    late = Member(world, "late", "big")
    late.join()
    settle(world, [*members, late])
    assert late.count == 83
    for each in members:
        assert each.owned[world.topic_id("big")] <= before[each.member_id]


def test_what_a_leaver_owned_goes_to_the_others(world):
    first, second = pair(world)
    response = first.leave()
    assert (response.error_code, response.member_epoch) == (NONE, -1)
    assert world.group().state is ConsumerState.ASSIGNING
    second.beat()
    assert second.count == 6
    assert world.group().state is ConsumerState.STABLE


def test_the_last_leaver_leaves_an_empty_group(world):
    member = Member(world, "a", "t")
    member.join()
    member.leave()
    group = world.group()
    assert group.state is ConsumerState.EMPTY
    assert Member(world, "b", "t").join().member_epoch == 3, "epochs go on"


def test_brokers_give_ids_to_old_clients_only(world):
    old = Member(world, "", "t")
    fields = {"topic_partitions": [], "rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"]}
    assert old.send(version=0, **fields).member_id.startswith("id-")
    assert Member(world, "", "t").join().error_code == ErrorCode.INVALID_REQUEST


def test_a_member_may_join_again(world):
    first, second = pair(world)
    before = dict(first.owned)
    epoch = world.group().group_epoch
    assert first.join().error_code == NONE
    assert first.owned == before
    assert world.group().group_epoch == epoch
    assert second.beat().assignment is None


def test_subscriptions_change(world):
    world.create("u", 2)
    member = Member(world, "a", "t")
    member.join()
    member.beat(subscribed_topic_names=["u"])
    assert member.owned == {}, "what is unsubscribed is taken back first"
    member.beat()
    assert member.owned == {world.topic_id("u"): {0, 1}}


def test_each_member_gets_only_what_it_subscribes_to(world):
    world.create("u", 2)
    joined(world, Member(world, "a", "t"), Member(world, "b", "u"), Member(world, "c", "t", "u"))
    for member in world.group().members.values():
        names = {world.image.topic_names[each] for each in member.assigned}
        assert names <= member.subscribed_topic_names


@pytest.mark.parametrize(("assignor", "share"), [("range", {0, 1, 2}), ("uniform", {0, 1, 2})])
def test_members_may_choose_the_assignor(world, assignor, share):
    members = joined(
        world, *(Member(world, each, "t", server_assignor=assignor) for each in ("a", "b"))
    )
    described = world.machine.describe_group(GROUP)
    assert described.assignor_name == assignor
    if assignor == "range":
        assert members[0].owned[world.topic_id("t")] == share


def test_the_assignor_of_most_members_is_used(world):
    joined(
        world,
        Member(world, "a", "t", server_assignor="range"),
        Member(world, "b", "t", server_assignor="range"),
        Member(world, "c", "t", server_assignor="uniform"),
        Member(world, "d", "t"),
    )
    assert world.machine.describe_group(GROUP).assignor_name == "range"


# What is refused.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": " "}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
    ],
)
def test_heartbeats_that_make_no_sense(world, fields, message):
    member = Member(world, "a", "t")
    member.group_id = fields.pop("group_id", GROUP)
    member.instance_id = fields.pop("instance_id", None)
    member.epoch = fields.pop("member_epoch", 0)
    response = member.send(**{**member.fields, "topic_partitions": [], **fields})
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert world.log == []
    assert world.group() is None


def test_unknown_assignors_members_and_groups(world):
    refused = Member(world, "a", "t", server_assignor="mine").join()
    assert refused.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert refused.error_message == (
        "ServerAssignor mine is not supported. Supported assignors: uniform, range."
    )
    stranger = Member(world, "x", "t")
    stranger.epoch = 1
    assert stranger.beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    Member(world, "a", "t").join()
    assert stranger.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_a_largest_size():
    world = World(group_consumer_max_size=1)
    world.create("t", 1)
    member = Member(world, "a", "t")
    member.join()
    refused = Member(world, "b", "t").join()
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.join().error_code == NONE


def test_epochs_that_are_not_the_members_are_fenced(world):
    first, second = pair(world)
    world.grow("t", 8)
    settle(world, [first, second])
    for wrong in (first.epoch + 1, first.epoch - 2):
        zombie = Member(world, "a", "t")
        zombie.epoch = wrong
        refused = zombie.beat()
        assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert "must abandon all its partitions and rejoin" in refused.error_message


def test_a_lost_answer_may_be_asked_for_again(world):
    first, second = Member(world, "a", "t"), Member(world, "b", "t")
    first.join()
    second.join()
    first.beat()
    lost = first.epoch
    assert first.beat().member_epoch == lost + 1
    first.epoch = lost
    assert first.beat().member_epoch == lost + 1

    again = Member(world, "a", "t")
    again.epoch = lost
    assert again.beat(silent=True).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again.owned = {world.topic_id("t"): set(range(6))}
    assert again.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH


# Static members.


def test_a_static_member_keeps_its_partitions(world):
    first, second = joined(
        world,
        Member(world, "a", "t", instance_id="one"),
        Member(world, "b", "t", instance_id="two"),
    )
    before = dict(first.owned)
    epoch = world.group().group_epoch
    assert first.leave(-2).member_epoch == -2
    assert second.beat().assignment is None

    back = Member(world, "c", "t", instance_id="one")
    assert back.join().member_epoch == epoch
    assert back.owned == before
    assert world.group().group_epoch == epoch, "nobody else has to move"
    assert world.group().state is ConsumerState.STABLE
    assert set(world.group().members) == {"b", "c"}

    first.epoch = epoch
    assert first.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert first.leave().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_place_that_is_taken_is_not_given_away(world):
    joined(world, Member(world, "a", "t", instance_id="one"))
    refused = Member(world, "b", "t", instance_id="one").join()
    assert refused.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert refused.error_message == (
        "Static member b with instance id one cannot join the group because the instance id is "
        "owned by a member."
    )


def test_an_unknown_instance_is_refused(world):
    joined(world, Member(world, "a", "t"))
    stranger = Member(world, "b", "t", instance_id="nobody")
    stranger.epoch = 1
    assert stranger.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave(-2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_come_back_is_removed(world):
    (member,) = joined(world, Member(world, "a", "t", instance_id="one"))
    member.leave(-2)
    world.tick(45_001)
    assert world.group().state is ConsumerState.EMPTY
    assert world.group().static_members == {}


def test_a_static_member_that_is_away_does_not_keep_the_others_busy(world):
    first, second = joined(
        world,
        Member(world, "a", "t", instance_id="one"),
        Member(world, "b", "t", instance_id="two"),
    )
    world.tick(10_000)
    first.leave(-2)
    assert second.beat().heartbeat_interval_ms == 5000


# Topics.


def test_new_partitions_are_assigned(world):
    members = pair(world)
    epoch = world.group().group_epoch
    world.grow("t", 8)
    assert world.group().group_epoch == epoch + 1
    settle(world, members)
    assert [each.count for each in members] == [4, 4]


def test_a_topic_that_comes_later_is_assigned(world):
    member = Member(world, "a", "later")
    assert member.join().assignment.topic_partitions == []
    world.create("later", 3)
    member.beat()
    assert member.count == 3


def test_a_topic_that_is_deleted_is_taken_back(world):
    world.create("u", 2)
    member = Member(world, "a", "t", "u")
    member.join()
    gone = world.topic_id("u")
    world.delete("u")
    member.beat()
    assert gone not in member.owned
    member.beat()
    assert world.group().state is ConsumerState.STABLE


def test_a_topic_that_is_made_again_is_another_one(world):
    member = Member(world, "a", "t")
    member.join()
    old = world.topic_id("t")
    world.delete("t")
    world.create("t", 2)
    settle(world, [member])
    assert old != world.topic_id("t")
    assert member.owned == {world.topic_id("t"): {0, 1}}


def test_other_topics_do_not_matter(world):
    member = Member(world, "a", "t")
    member.join()
    written = len(world.log)
    world.create("other", 3)
    assert len(world.log) == written


def test_topics_that_changed_while_nobody_looked_are_noticed(world):
    member = Member(world, "a", "t", subscribed_topic_regex="u.*")
    member.join()
    world.crash()
    assert member.beat().assignment is None, "nothing changed"
    world.state.image = world.image  # a change that the dead node did not see
    machine, world.machine = world.machine, _Deaf()
    world.grow("t", 8)
    world.create("u1", 1)
    world.machine = machine
    world.crash()
    member.beat()
    assert member.count == 9


class _Deaf:
    def on_image_changed(self, names, now_ms):
        return Effects()


# Regular expressions.


def test_an_expression_follows_the_topics(world):
    world.create("orders-1", 2)
    member = Member(world, "a", subscribed_topic_regex="orders-.*")
    member.join()
    assert member.owned == {world.topic_id("orders-1"): {0, 1}}
    world.create("orders-2", 1)
    world.create("x-orders-3", 1)
    member.beat()
    assert member.count == 3
    world.delete("orders-1")
    settle(world, [member])
    assert member.owned == {world.topic_id("orders-2"): {0}}


def test_expressions_and_names_add_up(world):
    world.create("u", 1)
    member = Member(world, "a", "t", subscribed_topic_regex="u")
    member.join()
    assert member.count == 7
    assert world.group().regexes.keys() == {"u"}
    member.beat(subscribed_topic_regex="")
    member.beat()
    assert member.count == 6
    assert world.group().regexes == {}


def test_an_expression_is_forgotten_with_its_last_member(world):
    first = Member(world, "a", subscribed_topic_regex="t+")
    second = Member(world, "b", subscribed_topic_regex="t+")
    joined(world, first, second)
    first.leave()
    assert world.group().regexes.keys() == {"t+"}
    second.beat(subscribed_topic_regex="t*")
    assert world.group().regexes.keys() == {"t*"}
    second.leave()
    assert world.group().regexes == {}


def test_a_member_may_match_what_another_one_names(world):
    first = Member(world, "a", "t")
    second = Member(world, "b", subscribed_topic_regex="(t|u)")
    joined(world, first, second)
    world.create("u", 2)
    settle(world, [first, second])
    assert (first.count, second.count) == (4, 4)


def test_what_is_no_expression_is_refused(world):
    refused = Member(world, "a", subscribed_topic_regex="(").join()
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.group() is None


def test_expressions_are_looked_at_again_in_time(world):
    member = Member(world, "a", subscribed_topic_regex="u.*")
    member.join()
    machine, world.machine = world.machine, _Deaf()
    world.create("u1", 1)
    world.machine = machine
    for _ in range(20):
        world.tick(30_000)
        member.beat()
    assert member.count == 1
    assert world.state.timers.get(("consumer", "regex", GROUP)) is not None


# Deadlines.


def test_a_silent_member_is_removed(world):
    first, second = pair(world)
    world.tick(44_000)
    second.beat()
    world.tick(1_001)
    assert set(world.group().members) == {"b"}
    settle(world, [second])
    assert second.count == 6
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_back_is_removed(world):
    first = Member(world, "a", "t", rebalance_timeout_ms=20_000)
    second = Member(world, "b", "t")
    first.join()
    second.join()
    assert first.beat().assignment is not None
    for _ in range(4):
        assert first.beat(silent=True).error_code == NONE
        world.tick(4_900)
    assert "a" in world.group().members
    world.tick(1_000)
    assert "a" not in world.group().members
    settle(world, [second])
    assert second.count == 6


def test_a_member_that_gave_back_has_no_deadline(world):
    first, second = Member(world, "a", "t", rebalance_timeout_ms=1_000), Member(world, "b", "t")
    first.join()
    second.join()
    first.beat()
    first.beat()
    world.tick(5_000)
    assert set(world.group().members) == {"a", "b"}


def test_deadlines_are_there_after_a_crash(world):
    first = Member(world, "a", "t", rebalance_timeout_ms=20_000)
    second = Member(world, "b", "t")
    first.join()
    second.join()
    first.beat()
    assert world.group().members["a"].state is MemberState.UNREVOKED_PARTITIONS
    world.crash()
    timers = world.state.timers
    assert timers.get(("consumer", "rebalance", GROUP, "a")) == world.now_ms + 20_000
    assert timers.get(("consumer", "session", GROUP, "b")) == world.now_ms + 45_000
    world.tick(20_001)
    assert set(world.group().members) == {"b"}


def test_members_come_often_while_the_group_changes(world):
    first, second = Member(world, "a", "t"), Member(world, "b", "t")
    assert first.join().heartbeat_interval_ms == 100
    world.tick(10_000)
    assert first.beat().heartbeat_interval_ms == 5000
    second.join()
    world.tick(10_000)
    assert first.beat(silent=True).heartbeat_interval_ms == 500, "one is still waited for"
    settle(world, [first, second])
    assert first.beat().heartbeat_interval_ms == 5000


def test_large_groups_do_not_flood_the_broker(world):
    world.create("wide", 1)
    for each in range(60):
        interval_ms = Member(world, f"m{each}", "wide").join().heartbeat_interval_ms
    assert interval_ms == 600


def test_deadlines_of_what_is_gone_mean_nothing(world):
    member = Member(world, "a", subscribed_topic_regex="t")
    member.join()
    for key in (
        ("consumer", "session", GROUP, "gone"),
        ("consumer", "regex", "gone"),
        ("consumer", "regex", GROUP),
    ):
        assert world.machine.timer(key, world.now_ms).records == []


# Describing, deleting, offsets.


def test_a_group_is_described(world):
    first, _ = pair(world)
    group = world.machine.describe_group(GROUP, operations=328)
    missing = world.machine.describe_group("none")
    assert group.authorized_operations == 328
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert group.assignor_name == "uniform"
    member = next(each for each in group.members if each.member_id == "a")
    assert (member.client_id, member.client_host, member.member_type) == ("client", "/10.0.0.1", 1)
    assert member.assignment == member.target_assignment
    topic = member.assignment.topic_partitions[0]
    assert topic.topic_name == "t"
    assert set(topic.partitions) == first.owned[world.topic_id("t")]
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert missing.error_message == "Group none not found."


def test_a_deleted_topic_is_not_described(world):
    joined(world, Member(world, "a", "t"))
    world.delete("t")
    [member] = world.machine.describe_group(GROUP).members
    assert member.assignment.topic_partitions == []


def test_an_empty_group_can_be_removed(world):
    member = Member(world, "a", subscribed_topic_regex="t")
    member.join()
    effects = Effects()
    assert not world.machine.delete_if_empty(GROUP, effects)
    member.leave()
    assert world.machine.delete_if_empty(GROUP, effects)
    world.take(effects)
    assert world.group() is None
    assert world.replayed() == {}
    assert not world.machine.delete_if_empty(GROUP, effects)


def commit(world, member_id, epoch, version=9, **fields):
    check_commit(
        world.group(),
        member_id,
        None,
        epoch,
        version,
        **{"is_transactional": False, "partitions": (), "image": world.image, **fields},
    )


def test_only_members_commit(world):
    first, _ = pair(world)
    commit(world, "a", first.epoch)
    assert code(commit, world, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(commit, world, "x", first.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(commit, world, "a", first.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert code(commit, world, "a", first.epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    commit(world, "", -1, is_transactional=True)
    commit(world, "a", first.epoch, version=3, is_transactional=True)


def test_anyone_commits_to_an_empty_group(world):
    member = Member(world, "a", "t")
    member.join()
    member.leave()
    commit(world, "", -1)


def test_an_older_epoch_commits_what_it_owned_then(world):
    first, second = pair(world)
    old = second.epoch
    world.grow("t", 10)
    settle(world, [first, second])
    assert second.epoch > old
    member = world.group().members["b"]
    [partitions] = member.assigned.values()
    kept = next(each for each, epoch in partitions.items() if epoch <= old)
    given = next(each for each, epoch in partitions.items() if epoch > old)
    foreign = next(iter(first.owned[world.topic_id("t")]))
    commit(world, "b", old, partitions=[TopicPartition("t", kept)])
    for refused in (given, foreign):
        found = code(commit, world, "b", old, partitions=[TopicPartition("t", refused)])
        assert found is ErrorCode.STALE_MEMBER_EPOCH


def test_offsets_are_told_to_members_in_their_epoch(world):
    first, _ = pair(world)
    check_fetch(world.group(), None, -1)
    check_fetch(world.group(), "a", first.epoch)
    assert code(check_fetch, world.group(), "a", first.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert code(check_fetch, world.group(), "x", 1) is ErrorCode.UNKNOWN_MEMBER_ID


# Records.


def test_a_heartbeat_that_changes_nothing_writes_nothing(world):
    members = pair(world)
    written = len(world.log)
    for each in members:
        each.beat()
    assert len(world.log) == written


def test_records_of_others_are_left_to_them(world):
    assert not world.machine.replay(OffsetCommitKey(group=GROUP, topic="t", partition=0), None)
    assert world.machine.replay(ConsumerGroupPartitionMetadataKey(group_id=GROUP), None)
    assert world.machine.replay(ConsumerGroupMetadataKey(group_id="gone"), None)
    assert world.state.groups == {}


def test_what_compaction_leaves_is_enough(world):
    members = pair(world)
    world.grow("t", 9)
    settle(world, members)
    members[0].leave()
    latest = dict(world.log)
    world.log = [
        (key, value)
        for position, (key, value) in enumerate(world.log)
        if latest[key] is value and all(key != later for later, _ in world.log[position + 1 :])
    ]
    world.check()


def test_a_state_that_only_a_newer_release_knows_is_left_with_nothing_owned(world):
    (member,) = joined(world, Member(world, "a", "t"))
    for key, value in list(world.log):
        if type(decode_key(key)) is ConsumerGroupCurrentMemberAssignmentKey:
            changed = bytearray(value)
            changed[10] = 9  # the state, after a version and two epochs
            world.log.append((key, bytes(changed)))
            break
    world.crash()
    assert world.group().members["a"].state is MemberState.UNKNOWN
    assert member.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    member.join()
    assert member.count == 6


def test_groups_do_not_touch_each_other(world):
    joined(world, Member(world, "a", "t"))
    joined(world, Member(world, "a", "t", group_id="h"))
    assert all(isinstance(each, ConsumerGroup) for each in world.state.groups.values())
    Member(world, "a", group_id="h").leave()
    assert world.group().state is ConsumerState.STABLE


def test_a_report_of_the_member_decides_not_its_silence(world):
    first, second = Member(world, "a", "t"), Member(world, "b", "t")
    first.join()
    second.join()
    first.beat()
    everything = [HeartbeatTopicPartitions(topic_id=world.topic_id("t"), partitions=list(range(6)))]
    assert first.send(topic_partitions=everything).member_epoch == 1
    assert first.send().member_epoch == 1
    assert first.beat().member_epoch == 2


def test_a_group_has_its_own_interval_and_session_timeout(world):
    world.group_settings["g"] = {
        "consumer.heartbeat.interval.ms": "7000",
        "consumer.session.timeout.ms": "50000",
    }
    (member,) = joined(world, Member(world, "a", "t"))
    (other,) = joined(world, Member(world, "a", "t", group_id="other"))
    world.tick(SETTLING_MS)
    assert member.beat().heartbeat_interval_ms == 7_000
    assert other.beat().heartbeat_interval_ms == 5_000
    world.tick(45_000)
    assert (len(world.group().members), len(world.group("other").members)) == (1, 0)
    world.tick(5_000)
    assert not world.group().members


def test_a_change_of_the_session_timeout_counts_from_the_next_heartbeat(world):
    (member,) = joined(world, Member(world, "a", "t"))
    world.group_settings["g"] = {"consumer.session.timeout.ms": "60000"}
    assert member.beat().error_code == NONE
    world.tick(59_999)
    assert world.group().members
    world.tick(1)
    assert not world.group().members
