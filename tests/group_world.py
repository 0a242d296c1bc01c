"""One shard of groups on virtual time, with its log and with clients that speak to it.

Every record goes to the log as bytes, markers among them; `crash` makes another machine from those
bytes. A token is answered once or the test fails. Clients know their member id and generation from
the answers that they got, as real ones do.
"""

from itertools import count

from chronik.config.effective import BrokerConfig
from chronik.coordinator.classic.group import ClassicGroup
from chronik.coordinator.effects import Caller, Effects, ProducerStamp
from chronik.coordinator.groups.records import GroupRecordFormat
from chronik.coordinator.groups.shard import GroupShard
from chronik.coordinator.groups.state import GroupConfig
from chronik.metadata.image import Image, id_text
from chronik.metadata.records import PartitionRecord, TopicRecord, TopicRemovedRecord
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    encode_subscription,
)
from chronik.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = "g"
FORMAT = GroupRecordFormat()


def subscription(*topics):
    return encode_subscription(ConsumerProtocolSubscription(topics=topics))


class World:
    """A shard, its log, and the answers that it gave."""

    def __init__(self, **settings):
        self.settings = {name.replace("_", "."): str(value) for name, value in settings.items()}
        config = BrokerConfig(static=self.settings, cluster={}, broker={})
        self.group_settings = {}  # by group id
        self._config = GroupConfig(lambda: config, lambda each: self.group_settings.get(each, {}))
        self.now_ms = 1_000_000
        self.log = []  # (key, value, producer) or a marker (producer, committed)
        self.answers = {}
        self.waiting = set()
        self.image = Image()
        self._ids = count(1)
        self._tokens = count(1)
        self.shard = self.fresh()
        self.take(self.shard.loaded(self.now_ms))

    def fresh(self):
        shard = GroupShard(self._config, lambda: str(next(self._ids)))
        shard.image = self.image
        return shard

    @property
    def state(self):
        return self.shard.state

    def group(self, group_id=GROUP) -> ClassicGroup:
        return self.state.groups[group_id]

    # Topics.

    def create(self, *names, partitions=2):
        for name in names:
            topic_id = id_text(next(self._ids).to_bytes(16, "big"))
            records = [
                PartitionRecord(
                    topic_id=topic_id, partition=each, replicas=(1,), isr=(1,), leader=1
                )
                for each in range(partitions)
            ]
            self._change(name, TopicRecord(name=name, topic_id=topic_id), *records)

    def delete(self, name):
        topic_id = self.image.topics[name].record.topic_id
        self._change(name, TopicRemovedRecord(topic_id=topic_id))

    def _change(self, name, *records):
        self.image = self.shard.image = self.image.apply(records)
        self.take(self.shard.on_topics_changed(frozenset([name]), self.now_ms))

    # Effects, time, crashes.

    def take(self, effects: Effects):
        for record in effects.records:
            self.log.append((*FORMAT.encode(record), effects.producer))
        for token, response in effects.replies:
            self.waiting.remove(token)
            self.answers[token] = response
        return effects

    def start(self, decide):
        """Ask, and have the token; the answer may be there already."""
        token = next(self._tokens)
        self.waiting.add(token)
        try:
            effects = decide(self.shard, token, self.now_ms)
        except KafkaError as error:
            effects = Effects(replies=[(token, error.code)])
        self.take(effects)
        return token

    def ask(self, decide):
        """Ask, and have the answer at once."""
        return self.answers[self.start(decide)]

    def advance(self, elapsed_ms):
        """Time passes, and every deadline is kept at its time."""
        end_ms = self.now_ms + elapsed_ms
        found = Effects()
        while (next_ms := self.shard.next_deadline_ms) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            found.add(self.take(self.shard.tick(self.now_ms)))
        self.now_ms = end_ms
        return found

    def end(self, producer_id, committed, epoch=0):
        stamp = ProducerStamp(producer_id, epoch)
        self.log.append((stamp, committed))
        self.shard.end_transaction(stamp, committed)

    def replayed(self):
        """A machine that knows nothing but the log."""
        shard = self.fresh()
        for entry in self.log:
            if len(entry) == 2:
                shard.end_transaction(*entry)
            else:
                key, value, producer = entry
                shard.replay(FORMAT.decode(key, value), producer)
        return shard

    def crash(self):
        """Whoever waits is refused, and the log is read anew."""
        for token in self.waiting:
            self.answers[token] = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.waiting.clear()
        self.shard = self.replayed()
        return self.take(self.shard.loaded(self.now_ms))

    # Offsets.

    def fetch(self, *partitions, group=GROUP, stable=False, version=9):
        """Offsets by partition; an error in place of one."""
        topics = None
        if partitions:
            names = dict.fromkeys(name for name, _ in partitions)
            topics = [
                OffsetFetchRequestTopic(
                    name=name, partition_indexes=[each for n, each in partitions if n == name]
                )
                for name in names
            ]
        request = OffsetFetchRequestGroup(group_id=group, topics=topics)
        caller = Caller("admin", "/h", version)
        response = self.ask(
            lambda shard, token, now_ms: shard.offset_fetch(request, caller, stable, token, now_ms)
        )
        return {
            (topic.name, each.partition_index): (
                ErrorCode(each.error_code) if each.error_code else each.committed_offset
            )
            for topic in response.topics
            for each in topic.partitions
        }

    def commit(self, offsets, group=GROUP, version=8, **fields):
        """Commit {(topic, partition): offset}; the error codes, or the one for all."""
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ]
        request = OffsetCommitRequest(group_id=group, topics=topics, **fields)
        caller = Caller("admin", "/h", version)
        return _codes(
            self.ask(
                lambda shard, token, now_ms: shard.offset_commit(request, caller, token, now_ms)
            )
        )

    def txn_commit(self, producer_id, offsets, group=GROUP, epoch=0, version=3, **fields):
        topics = [
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=None
                    )
                ],
            )
            for (topic, partition), offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=topics,
            **fields,
        )
        caller = Caller("producer", "/h", version)
        return _codes(
            self.ask(
                lambda shard, token, now_ms: shard.txn_offset_commit(request, caller, token, now_ms)
            )
        )


def _codes(response):
    if isinstance(response, ErrorCode):
        return response
    codes = [ErrorCode(each.error_code) for topic in response.topics for each in topic.partitions]
    return codes[0] if len(set(codes)) == 1 else codes


class Client:
    """A member: what it was told last is what it says next."""

    def __init__(self, world: World, name: str, group=GROUP, **options):
        self.world = world
        self.group = group
        self.name = name
        self.member_id = ""
        self.generation_id = -1
        self.instance_id = options.pop("instance", None)
        self.version = options.pop("version", 9)
        self.session_timeout_ms = options.pop("session", 10_000)
        self.rebalance_timeout_ms = options.pop("rebalance", 60_000)
        self.protocol_type = options.pop("type", "consumer")
        self.protocols = options.pop("protocols", {"range": subscription("t")})
        assert not options
        self.joining = None
        self.syncing = None
        self._noted = None

    @property
    def caller(self):
        return Caller(self.name, "/host", self.version)

    def join(self):
        """Send JoinGroup; the answer, or None while it waits."""
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms if self.version else -1,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=data)
                for name, data in self.protocols.items()
            ],
        )
        self.joining = self.world.start(
            lambda shard, token, now_ms: shard.join_group(request, self.caller, token, now_ms)
        )
        return self.joined()

    def joined(self) -> JoinGroupResponse | None:
        """The answer to the last JoinGroup, taken note of."""
        answer = self.world.answers.get(self.joining)
        if isinstance(answer, JoinGroupResponse) and self._noted != self.joining:
            self._noted = self.joining
            required = answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            if required or not answer.error_code:
                self.member_id = answer.member_id
            if not answer.error_code:
                self.generation_id = answer.generation_id
            elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        return answer

    def enter(self):
        """Join, with the id that has to be asked for first."""
        answer = self.join()
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.join()
        return answer

    def sync(self, assignments=None, **fields):
        """Send SyncGroup; the answer, or None while it waits."""
        named = {"protocol_type": self.protocol_type, "protocol_name": next(iter(self.protocols))}
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in (assignments or {}).items()
            ],
            **{**named, **fields},
        )
        caller = Caller(self.name, "/host", 5)
        self.syncing = self.world.start(
            lambda shard, token, now_ms: shard.sync_group(request, caller, token, now_ms)
        )
        return self.synced()

    def synced(self):
        return self.world.answers.get(self.syncing)

    def heartbeat(self, generation_id=None):
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation_id if generation_id is None else generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode(
            self.world.ask(
                lambda shard, token, now_ms: shard.heartbeat(request, self.caller, token, now_ms)
            ).error_code
        )

    def leave(self, version=5):
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(
            group_id=self.group, member_id=self.member_id, members=[identity]
        )
        caller = Caller(self.name, "/host", version)
        response = self.world.ask(
            lambda shard, token, now_ms: shard.leave_group(request, caller, token, now_ms)
        )
        return ErrorCode(response.members[0].error_code if version >= 3 else response.error_code)

    def commit(self, offsets, generation_id=None):
        return self.world.commit(
            offsets,
            group=self.group,
            generation_id_or_member_epoch=(
                self.generation_id if generation_id is None else generation_id
            ),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )


def stable_group(world, *clients):
    """Have these clients form a generation; the first one leads if the group is empty."""
    for client in clients:
        client.enter()
    # The second member extends the delay once.
    delay_ms = int(world.settings.get("group.initial.rebalance.delay.ms", 3_000))
    world.advance(delay_ms * min(len(clients), 2))
    assign(clients)


def assign(clients):
    """All have joined: the leader assigns, everybody fetches."""
    for client in clients:
        answer = client.joined()
        assert answer is not None, f"{client.name} has not joined"
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    shares = {client.member_id: client.name.encode() for client in clients}
    for client in clients:
        client.sync(shares if client.joined().leader == client.member_id else None)
    for client in clients:
        assert client.synced().assignment == client.name.encode()
