"""A shard of consumer groups on virtual time, its log, and members that behave or do not.

Every record goes to the log as bytes; `reload` makes another machine from those bytes, as a crash
would. `check` compares the two, and looks for partitions with two owners.
"""

from itertools import count

from chronik.config.effective import BrokerConfig
from chronik.coordinator.consumer.group import ConsumerGroup
from chronik.coordinator.consumer.groups import ConsumerGroups
from chronik.coordinator.effects import Caller
from chronik.coordinator.groups.records import decode_key, decode_value, encode_key, encode_value
from chronik.coordinator.groups.state import GroupConfig, GroupState
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import PartitionRecord, TopicRecord, TopicRemovedRecord
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from chronik.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    encode_subscription,
)
from chronik.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)

GROUP = "g"


class World:
    """One shard, and what happens to it."""

    def __init__(self, **settings):
        names = {name.replace("_", "."): str(value) for name, value in settings.items()}
        config = BrokerConfig(static=names, cluster={}, broker={})
        self.group_settings = {}  # by group id
        self._config = GroupConfig(lambda: config, lambda each: self.group_settings.get(each, {}))
        self.now_ms = 1_000_000
        self.log = []
        self.replies = {}
        self.ids = count(1)
        self.tokens = count(1)
        self.image = Image()
        self.start()

    def start(self):
        """A machine with nothing loaded."""
        self.state = GroupState(config=self._config, new_id=lambda: f"id-{next(self.ids)}")
        self.state.image = self.image
        self.machine = ConsumerGroups(self.state)

    def group(self, group_id=GROUP):
        return self.state.groups.get(group_id)

    # Topics.

    def create(self, name, partitions):
        topic_id = id_text(next(self.ids).to_bytes(16, "big"))
        self._change(name, TopicRecord(name=name, topic_id=topic_id))
        self.grow(name, partitions)

    def grow(self, name, partitions):
        topic = self.image.topics[name]
        records = [
            PartitionRecord(
                topic_id=topic.record.topic_id, partition=each, replicas=(1,), isr=(1,), leader=1
            )
            for each in range(len(topic.partitions), partitions)
        ]
        self._change(name, *records)

    def delete(self, name):
        self._change(name, TopicRemovedRecord(topic_id=self.image.topics[name].record.topic_id))

    def _change(self, name, *records):
        self.image = self.state.image = self.image.apply(records)
        self.take(self.machine.on_image_changed([name], self.now_ms))

    def topic_id(self, name):
        return self.image.topics[name].id

    # Effects, time, crashes.

    def take(self, effects):
        for key, value in effects.records:
            data = None if value is None else encode_value(value)
            self.log.append((encode_key(key), data))
        self.replies.update(effects.replies)
        return effects

    def ask(self, call, request, version=1, host="/10.0.0.1"):
        token = next(self.tokens)
        effects = call(request, Caller("client", host, version), token, self.now_ms)
        self.take(effects)
        return self.replies.pop(token)

    def tick(self, elapsed_ms):
        """Time passes, and every deadline is kept at its time."""
        end_ms = self.now_ms + elapsed_ms
        while (next_ms := self.state.timers.next_deadline_ms) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            for key in self.state.timers.due(self.now_ms):
                self.take(self.machine.timer(key, self.now_ms))
        self.now_ms = end_ms

    def replayed(self):
        """The groups that the log says there are."""
        scratch = World()
        scratch.image = self.image
        scratch.start()
        for key, value in self.log:
            decoded = decode_key(key)
            scratch.machine.replay(decoded, decode_value(decoded, value))
        return scratch.state.groups

    def crash(self):
        """The node is back, with nothing but its log."""
        groups = self.replayed()
        self.start()
        self.state.groups.update(groups)
        self.machine.loaded(self.now_ms)

    def check(self):
        """What always holds."""
        live = {key: each for key, each in self.state.groups.items() if type(each) is ConsumerGroup}
        assert live == self.replayed()
        for group in live.values():
            owned = [
                pair for member in group.members.values() for pair in member.owned_partitions()
            ]
            assert len(owned) == len(set(owned)), "a partition has two owners"
            noted = {(topic, each) for topic, all_ in group.owners.items() for each in all_}
            assert noted == set(owned)
            assert group.target.keys() <= group.members.keys()
            assert group.group_epoch >= group.assignment_epoch


class Member:
    """A consumer with the consumer protocol."""

    def __init__(self, world, member_id, *topics, group_id=GROUP, **fields):
        self.world = world
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = 0
        self.owned = {}  # topic id to partitions
        self.fields = {
            "subscribed_topic_names": list(topics),
            "rebalance_timeout_ms": 60_000,
            **fields,
        }
        self.instance_id = self.fields.pop("instance_id", None)

    def join(self):
        self.epoch = 0
        self.owned = {}
        return self.send(topic_partitions=[], **self.fields)

    def beat(self, *, silent=False, **fields):
        """A heartbeat that says what the member owns, unless it keeps silent about it."""
        if not silent:
            fields["topic_partitions"] = [
                HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in self.owned.items()
            ]
        return self.send(**fields)

    def leave(self, epoch=-1):
        self.epoch = epoch
        return self.send()

    def send(self, version=1, **fields):
        response = self.world.ask(
            self.world.machine.heartbeat,
            ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                **fields,
            ),
            version=version,
        )
        if response.error_code == ErrorCode.NONE and self.epoch >= 0:
            self.member_id = response.member_id
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = {
                    each.topic_id: set(each.partitions)
                    for each in response.assignment.topic_partitions
                }
        return response

    @property
    def count(self):
        return sum(map(len, self.owned.values()))


class ClassicConsumer:
    """A consumer with the classic protocol and a cooperative assignor."""

    def __init__(self, world, member_id, *topics, instance_id=None, protocols=("range",)):
        self.world = world
        self.member_id = member_id
        self.instance_id = instance_id
        self.topics = topics
        self.protocols = protocols
        self.generation = -1
        self.owned = {}
        self.must_sync = False  # it has joined and does not know its assignment yet

    def metadata(self):
        owned = [
            ConsumerProtocolTopicPartition(topic=topic, partitions=sorted(each))
            for topic, each in self.owned.items()
        ]
        return encode_subscription(
            ConsumerProtocolSubscription(topics=list(self.topics), owned_partitions=owned)
        )

    def join(self, version=9, **fields):
        request = JoinGroupRequest(
            **{
                "group_id": GROUP,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 30_000,
                "member_id": self.member_id,
                "group_instance_id": self.instance_id,
                "protocol_type": "consumer",
                "protocols": [
                    JoinGroupRequestProtocol(name=name, metadata=self.metadata())
                    for name in self.protocols
                ],
                **fields,
            }
        )
        response = self.world.ask(self.world.machine.classic_join, request, version)
        self.member_id = response.member_id
        if response.error_code == ErrorCode.NONE:
            self.generation = response.generation_id
            self.must_sync = True
        return response

    def sync(self, **fields):
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=(),
            **{"protocol_type": "consumer", "protocol_name": self.protocols[0], **fields},
        )
        response = self.world.ask(self.world.machine.classic_sync, request, 5)
        if response.error_code == ErrorCode.NONE:
            self.must_sync = False
            _, assignment = decode_assignment(response.assignment)
            self.owned = {
                each.topic: set(each.partitions) for each in assignment.assigned_partitions
            }
        return response

    def beat(self):
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return self.world.ask(self.world.machine.classic_heartbeat, request, 4)

    def leave(self, version=5):
        request = LeaveGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            members=[MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)],
        )
        return self.world.ask(self.world.machine.classic_leave, request, version)

    def follow(self):
        """Heartbeat, and join and sync again for as long as it is told to."""
        for _ in range(5):
            if self.beat().error_code == ErrorCode.NONE:
                return
            assert self.join().error_code == ErrorCode.NONE
            assert self.sync().error_code == ErrorCode.NONE

    @property
    def count(self):
        return sum(map(len, self.owned.values()))


def settle(world, members, rounds=20):
    """Everybody beats honestly until nothing changes any more; how many rounds it took."""
    for each in range(rounds):
        if world.group(members[0].group_id).state.value == "Stable":
            return each
        for member in members:
            if member.beat().error_code != ErrorCode.NONE:
                assert member.join().error_code == ErrorCode.NONE
    raise AssertionError(f"not stable: {world.group(members[0].group_id)}")
