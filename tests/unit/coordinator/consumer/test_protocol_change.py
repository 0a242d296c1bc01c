"""A group that goes from the classic protocol to the consumer protocol and back, on one shard."""

from itertools import count

import pytest
from consumer_world import GROUP, ClassicConsumer, Member, World

from chronik.coordinator.classic.group import ClassicGroup, ClassicState
from chronik.coordinator.consumer.group import ConsumerGroup, ConsumerState
from chronik.coordinator.effects import Record
from chronik.coordinator.groups.records import decode_key, decode_value
from chronik.coordinator.groups.shard import GroupShard
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartition,
    encode_assignment,
)
from chronik.protocol.messages.groups import SyncGroupRequest, SyncGroupRequestAssignment

NONE = ErrorCode.NONE
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS


class ShardWorld(World):
    """The same world with both machines, as the runtime has them."""

    def start(self):
        ids = count(1)
        self.shard = GroupShard(self._config, lambda: f"uuid-{next(ids)}")
        self.shard.image = self.image
        self.state = self.shard.state
        self.machine = self

    def on_image_changed(self, names, now_ms):
        return self.shard.on_topics_changed(frozenset(names), now_ms)

    def heartbeat(self, *request):
        return self.shard.consumer_group_heartbeat(*request)

    def classic_join(self, *request):
        return self.shard.join_group(*request)

    def classic_sync(self, *request):
        return self.shard.sync_group(*request)

    def classic_heartbeat(self, *request):
        return self.shard.heartbeat(*request)

    def classic_leave(self, *request):
        return self.shard.leave_group(*request)

    def tick(self, elapsed_ms):
        self.now_ms += elapsed_ms
        self.take(self.shard.tick(self.now_ms))

    def ask(self, call, request, version=1, host="/10.0.0.1"):
        try:
            return super().ask(call, request, version, host)
        except KeyError as waiting:
            return _Waits(self, waiting.args[0])

    def replayed(self):
        scratch = ShardWorld()
        for key, value in self.log:
            decoded = decode_key(key)
            scratch.shard.replay(Record(decoded, decode_value(decoded, value)), None)
        return scratch.state.groups


class _Waits:
    """An answer that comes later: what it says when it is there."""

    def __init__(self, world, token):
        self._answer = lambda: world.replies[token]
        self.member_id = None
        self.error_code = None

    def now(self):
        return self._answer()


class Classic(ClassicConsumer):
    """A classic consumer whose JoinGroup may have to wait."""

    def come(self):
        name = self.member_id
        self.answer = self.join()
        self.member_id = name

    def joined(self):
        response = self.answer.now() if isinstance(self.answer, _Waits) else self.answer
        assert response.error_code == NONE
        self.generation = response.generation_id
        return response


@pytest.fixture
def world():
    made = ShardWorld()
    made.create("t", 6)
    return made


def sync_all(world, leader, shares):
    assignments = [
        SyncGroupRequestAssignment(
            member_id=member.member_id,
            assignment=encode_assignment(
                ConsumerProtocolAssignment(
                    assigned_partitions=[
                        ConsumerProtocolTopicPartition(topic="t", partitions=partitions)
                    ]
                )
            ),
        )
        for member, partitions in shares.items()
    ]
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=leader.generation,
        member_id=leader.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    assert world.ask(world.classic_sync, request, 5).error_code == NONE
    for member, partitions in shares.items():
        assert member.sync().error_code == NONE
        assert member.owned == {"t": set(partitions)}


@pytest.fixture
def classics(world):
    """A stable classic group of two."""
    members = [Classic(world, "", "t"), Classic(world, "", "t")]
    for each in members:
        assert each.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
        each.come()
    world.tick(3_000)
    world.tick(3_000)
    leader_id = members[0].joined().leader
    members[1].joined()
    members.sort(key=lambda each: each.member_id != leader_id)
    sync_all(world, members[0], {members[0]: [0, 1, 2], members[1]: [3, 4, 5]})
    assert world.group().state is ClassicState.STABLE
    return members


def test_there_and_back(world, classics):
    generation = world.group().generation_id
    consumer = Member(world, "new", "t")
    assert consumer.join().error_code == NONE
    assert isinstance(world.group(), ConsumerGroup)
    assert world.group().group_epoch == generation + 1
    assert "consumer" in _timers(world)
    assert "classic" not in _timers(world)

    for _ in range(8):
        for each in classics:
            each.follow()
        consumer.beat()
        world.check()
    assert world.group().state is ConsumerState.STABLE
    assert [each.count for each in (*classics, consumer)] == [2, 2, 2]

    assert consumer.leave().error_code == NONE
    group = world.group()
    assert isinstance(group, ClassicGroup)
    assert group.state is ClassicState.PREPARING_REBALANCE
    assert "consumer" not in _timers(world)
    assert world.replayed()[GROUP].generation_id == group.generation_id
    assert world.replayed()[GROUP].members.keys() == group.members.keys()

    for each in classics:
        assert each.beat().error_code == AGAIN
        each.come()
    leader_id = classics[0].joined().leader
    classics[1].joined()
    classics.sort(key=lambda each: each.member_id != leader_id)
    assert classics[0].generation == generation + 2
    sync_all(world, classics[0], {classics[0]: [0, 1, 2], classics[1]: [3, 4, 5]})
    assert world.group().state is ClassicState.STABLE


def test_a_rebalance_that_was_under_way_goes_on_in_the_other_protocol(world, classics):
    first, second = classics
    first.topics = ("t", "u")
    first.come()
    assert world.group().state is ClassicState.PREPARING_REBALANCE
    consumer = Member(world, "new", "t")
    assert consumer.join().error_code == NONE
    assert first.answer.now().error_code == AGAIN
    for _ in range(8):
        first.follow()
        second.follow()
        consumer.beat()
        world.check()
    assert world.group().state is ConsumerState.STABLE


def test_an_upgraded_group_survives_a_crash(world, classics):
    consumer = Member(world, "new", "t")
    consumer.join()
    groups = world.replayed()
    world.start()
    world.state.groups.update(groups)
    world.take(world.shard.loaded(world.now_ms))
    for _ in range(8):
        for each in classics:
            each.follow()
        consumer.beat()
        world.check()
    assert world.group().state is ConsumerState.STABLE


def test_a_topic_that_is_gone_is_not_carried_over(world, classics):
    world.delete("t")
    world.create("t", 2)
    consumer = Member(world, "new", "t")
    assert consumer.join().error_code == NONE
    world.delete("t")
    assert consumer.leave().error_code == NONE
    assert isinstance(world.group(), ClassicGroup)
    assert isinstance(world.replayed()[GROUP], ClassicGroup)


def test_an_empty_consumer_group_gives_way_to_a_classic_one(world):
    consumer = Member(world, "new", "t")
    consumer.join()
    consumer.leave()
    late = Classic(world, "an old id", "t")
    assert late.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    late.member_id = ""
    assert late.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert isinstance(world.group(), ClassicGroup)
    assert isinstance(world.replayed().get(GROUP, world.group()), ClassicGroup)


def _timers(world):
    return {key[0] for key in world.state.timers._deadlines}
