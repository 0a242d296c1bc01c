"""Random schedules of a consumer group: at most one owner, nothing lost by a crash, and an end."""

from consumer_world import GROUP, ClassicConsumer, Member, World, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chronik.coordinator.consumer.group import ConsumerState
from chronik.protocol.errors import ErrorCode

TOPICS = ("t", "u", "v")
EXPRESSIONS = ("", "t|v", "u.*", ".*")

subscriptions = st.tuples(
    st.lists(st.sampled_from(TOPICS), unique=True), st.sampled_from(EXPRESSIONS)
)


class Schedule(RuleBasedStateMachine):
    """Members that follow, dawdle, vanish and return; topics that come, grow and go."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.members = []
        self.names = 0

    @initialize()
    def topic(self):
        self.world.create("t", 4)

    def _made(self, subscription, instance_id):
        self.names += 1
        names, regex = subscription
        return Member(
            self.world,
            f"m{self.names}",
            *names,
            subscribed_topic_regex=regex,
            instance_id=instance_id,
        )

    @rule(subscription=subscriptions, instance=st.sampled_from([None, None, "one", "two"]))
    def join(self, subscription, instance):
        if len(self.members) < 5:
            member = self._made(subscription, instance)
            if member.join().error_code == ErrorCode.NONE:
                self.members = [
                    each
                    for each in self.members
                    if instance is None or each.instance_id != instance
                ]
                self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), silent=st.booleans(), subscription=st.none() | subscriptions)
    def beat(self, data, silent, subscription):
        member = data.draw(st.sampled_from(self.members))
        fields = {}
        if subscription is not None:
            names, regex = subscription
            fields = {"subscribed_topic_names": names, "subscribed_topic_regex": regex}
            member.fields.update(fields)
        response = member.beat(silent=silent, **fields)
        if response.error_code != ErrorCode.NONE:
            assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            self.members.remove(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def lose_the_answer(self, data):
        """The member goes on as if it had never asked."""
        member = data.draw(st.sampled_from(self.members))
        before = member.epoch, member.owned
        member.beat()
        member.epoch, member.owned = before
        response = member.beat(
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=member.fields["subscribed_topic_names"],
        )
        if response.error_code != ErrorCode.NONE:
            self.members.remove(member)
            if response.error_code == ErrorCode.FENCED_MEMBER_EPOCH:
                member.leave()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data, for_good):
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        epoch = -1 if for_good or member.instance_id is None else -2
        member.leave(epoch)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def vanish(self, data):
        self.members.remove(data.draw(st.sampled_from(self.members)))

    @rule()
    def crash(self):
        self.world.crash()

    @rule(elapsed_ms=st.sampled_from([100, 5_000, 30_000, 50_000]))
    def tick(self, elapsed_ms):
        self.world.tick(elapsed_ms)

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 9))
    def change_topic(self, name, count):
        topic = self.world.image.topics.get(name)
        if topic is None:
            self.world.create(name, count)
        elif count > len(topic.partitions):
            self.world.grow(name, count)
        else:
            self.world.delete(name)

    @rule()
    def everybody_is_honest(self):
        """Whoever is there heartbeats, whoever is not runs out of time: the group comes to rest."""
        for _ in range(12):
            self.world.tick(5_000)
            for member in list(self.members):
                if member.beat().error_code != ErrorCode.NONE:
                    member.join()
        group = self.world.group()
        if not self.members:
            assert group is None or not group.members
            return
        settle(self.world, self.members)
        assert group.state is ConsumerState.STABLE
        assert set(group.members) == {each.member_id for each in self.members}
        self._check_complete(group)

    def _check_complete(self, group):
        for member in self.members:
            logged = group.members[member.member_id].assigned
            assert member.owned == {topic: set(each) for topic, each in logged.items()}
        image = self.world.image
        wanted = {
            (image.topics[name].id, partition)
            for name in group.subscribed_topics
            if name in image.topics
            for partition in range(len(image.topics[name].partitions))
        }
        owned = [pair for each in group.members.values() for pair in each.owned_partitions()]
        assert sorted(owned) == sorted(wanted)

    @invariant()
    def what_always_holds(self):
        self.world.check()
        if (group := self.world.state.groups.get(GROUP)) is not None:
            for member in group.members.values():
                timer = ("consumer", "session", GROUP, member.member_id)
                assert self.world.state.timers.get(timer) is not None


class MixedSchedule(RuleBasedStateMachine):
    """Members of both protocols in a group that may not turn back."""

    def __init__(self):
        super().__init__()
        self.world = World(group_consumer_migration_policy="upgrade")
        self.world.create("t", 4)
        self.anchor = Member(self.world, "anchor", "t")
        assert self.anchor.join().error_code == ErrorCode.NONE
        self.classics = []
        self.consumers = [self.anchor]
        self.names = 0

    @rule(is_classic=st.booleans())
    def join(self, is_classic):
        self.names += 1
        if len(self.classics) + len(self.consumers) >= 5:
            return
        if is_classic:
            member = ClassicConsumer(self.world, f"m{self.names}", "t")
            self.classics.append(member)
        else:
            member = Member(self.world, f"m{self.names}", "t")
            self.consumers.append(member)
        assert member.join().error_code == ErrorCode.NONE

    @rule(data=st.data())
    def beat(self, data):
        data.draw(st.sampled_from(self.consumers)).beat()

    @precondition(lambda self: self.classics)
    @rule(data=st.data(), step=st.sampled_from(["beat", "join", "sync"]))
    def step(self, data, step):
        getattr(data.draw(st.sampled_from(self.classics)), step)()

    @precondition(lambda self: self.classics)
    @rule(data=st.data())
    def leave(self, data):
        member = data.draw(st.sampled_from(self.classics))
        self.classics.remove(member)
        member.leave()

    @precondition(lambda self: self.classics)
    @rule(data=st.data())
    def change_protocol(self, data):
        member = data.draw(st.sampled_from(self.classics))
        self.classics.remove(member)
        again = Member(self.world, member.member_id, "t")
        if again.join().error_code == ErrorCode.NONE:
            self.consumers.append(again)

    @rule(elapsed_ms=st.sampled_from([100, 5_000, 12_000, 40_000]))
    def tick(self, elapsed_ms):
        # One is always there: an empty group would give way to a classic one.
        assert self.anchor.beat().error_code == ErrorCode.NONE
        self.world.tick(elapsed_ms)

    @rule(count=st.integers(5, 12))
    def grow(self, count):
        if count > len(self.world.image.topics["t"].partitions):
            self.world.grow("t", count)

    @rule()
    def crash(self):
        self.world.crash()

    @rule()
    def everybody_is_honest(self):
        for _ in range(20):
            for member in self.classics:
                self._follow(member)
            for member in self.consumers:
                if member.beat().error_code != ErrorCode.NONE:
                    assert member.join().error_code == ErrorCode.NONE
            self.world.check()
        group = self.world.group()
        assert group.state is ConsumerState.STABLE
        counts = [each.count for each in (*self.classics, *self.consumers)]
        assert sum(counts) == len(self.world.image.topics["t"].partitions)
        assert max(counts) - min(counts) <= 1

    def _follow(self, member):
        if member.must_sync and member.sync().error_code == ErrorCode.NONE:
            return
        if member.beat().error_code != ErrorCode.NONE:
            if member.member_id not in self.world.group().members:
                member.owned = {}
            assert member.join().error_code == ErrorCode.NONE
            assert member.sync().error_code == ErrorCode.NONE

    @invariant()
    def what_always_holds(self):
        self.world.check()


MixedSchedule.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestMixedSchedule = MixedSchedule.TestCase
Schedule.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSchedule = Schedule.TestCase
