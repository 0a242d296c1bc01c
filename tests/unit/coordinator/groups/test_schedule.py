"""Random schedules against one shard: members, commits, transactions, crashes, in any order.

What must hold after every step is in `check`. A failure is shrunk to the shortest schedule.
"""

from group_world import Client, World
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.coordinator.classic.group import ClassicState
from chronik.protocol.errors import ErrorCode

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
CLIENT = st.integers(0, 4)
PARTITION = st.sampled_from(PARTITIONS)
PRODUCER = st.sampled_from([7, 8])

STEPS = st.one_of(
    st.tuples(st.just("join"), CLIENT),
    st.tuples(st.just("join"), CLIENT),
    st.tuples(st.just("sync"), CLIENT),
    st.tuples(st.just("sync"), CLIENT),
    st.tuples(st.just("heartbeat"), CLIENT),
    st.tuples(st.just("leave"), CLIENT),
    st.tuples(st.just("restart"), CLIENT),
    st.tuples(st.just("settle")),
    st.tuples(st.just("advance"), st.sampled_from([500, 3_000, 9_000, 61_000])),
    st.tuples(st.just("commit"), CLIENT, PARTITION),
    st.tuples(st.just("commit_alone"), PARTITION),
    st.tuples(st.just("txn_commit"), PRODUCER, PARTITION),
    st.tuples(st.just("end"), PRODUCER, st.booleans()),
    st.tuples(st.just("crash")),
)


class Schedule:
    """The shard, its clients, and what they may rely on."""

    def __init__(self):
        self.world = World()
        self.world.create("t", "u")
        self.clients = [
            Client(self.world, "a", version=3),
            Client(self.world, "b"),
            Client(self.world, "c"),
            Client(self.world, "d", instance="i"),
            Client(self.world, "e", instance="i"),
        ]
        self.crash_count = 0
        self.record_count = 0
        self.committed = {}  # partition to (number of the record, offset)
        self.pending = {}  # producer to those
        self.leaders = {}
        self.assignments = {}

    # Steps.

    def join(self, index):
        self.clients[index].join()

    def sync(self, index):
        client = self.clients[index]
        self.record_count += 1
        group = self.world.state.groups.get("g")
        shares = {}
        if group is not None and group.leader_id == client.member_id:
            share = b"%d" % self.record_count
            shares = dict.fromkeys(group.members, share)
        client.sync(shares)

    def heartbeat(self, index):
        self.clients[index].heartbeat()

    def leave(self, index):
        if self.clients[index].leave() is ErrorCode.NONE:
            self.clients[index].member_id = ""

    def restart(self, index):
        self.clients[index].member_id = ""
        self.clients[index].join()

    def settle(self):
        """All dynamic members come to a stable generation."""
        for client in self.clients[:3]:
            client.enter()
        for _ in range(13):  # Whoever is gone is waited for, a minute at most.
            self.world.advance(5_000)
            if all(client.joined() is not None for client in self.clients[:3]):
                break
        for index in range(3):
            self.sync(index)

    def advance(self, elapsed_ms):
        self.world.advance(elapsed_ms)

    def commit(self, index, partition):
        self.record_count += 1
        if self.clients[index].commit({partition: self.record_count}) is ErrorCode.NONE:
            self.committed[partition] = (self.record_count, self.record_count)

    def commit_alone(self, partition):
        self.record_count += 1
        if self.world.commit({partition: self.record_count}) is ErrorCode.NONE:
            self.committed[partition] = (self.record_count, self.record_count)

    def txn_commit(self, producer_id, partition):
        self.record_count += 1
        code = self.world.txn_commit(producer_id, {partition: self.record_count})
        assert code is ErrorCode.NONE
        pending = self.pending.setdefault(producer_id, {})
        pending[partition] = (self.record_count, self.record_count)

    def end(self, producer_id, committed):
        self.world.end(producer_id, committed)
        for partition, offset in self.pending.pop(producer_id, {}).items():
            if committed:
                self.committed[partition] = max(offset, self.committed.get(partition, (0, 0)))

    def crash(self):
        self.crash_count += 1
        self.world.crash()

    # What holds.

    def check(self):
        for client in self.clients:
            self.check_join(client.joined())
            self.check_sync(client)
        self.check_offsets()
        self.check_replay()

    def check_join(self, answer):
        """A generation has one leader, and its members are one per client or instance."""
        if answer is None or isinstance(answer, ErrorCode) or answer.error_code:
            return
        # A generation that was never assigned is not logged: its number is given again.
        key = (self.crash_count, answer.generation_id)
        if (answer.generation_id, answer.member_id) in self.leaders:
            return  # Seen before a crash.
        self.leaders[answer.generation_id, answer.member_id] = True
        name = answer.leader.rsplit("-", 1)[0]
        assert self.leaders.setdefault(key, name) == name
        instances = [each.group_instance_id for each in answer.members if each.group_instance_id]
        assert len(instances) == len(set(instances))

    def check_sync(self, client):
        """A generation is assigned once."""
        answer = client.synced()
        if answer is None or isinstance(answer, ErrorCode) or answer.error_code:
            return
        client.syncing = None
        known = self.assignments.setdefault(client.generation_id, answer.assignment)
        assert answer.assignment == known

    def check_offsets(self):
        expected = {partition: offset for partition, (_, offset) in self.committed.items()}
        assert self.world.fetch() == expected
        unstable = {each for pending in self.pending.values() for each in pending}
        found = self.world.fetch(*PARTITIONS, stable=True)
        for partition in PARTITIONS:
            if partition in unstable:
                assert found[partition] is ErrorCode.UNSTABLE_OFFSET_COMMIT
            else:
                assert found[partition] == expected.get(partition, -1)

    def check_replay(self):
        """The log says what the machine knows, except of a rebalance that is under way."""
        live, replayed = self.world.state, self.world.replayed().state
        assert values(live.offsets.groups) == values(replayed.offsets.groups)
        assert live.offsets.pending.keys() == replayed.offsets.pending.keys()
        assert live.offsets.open == replayed.offsets.open
        assert live.groups.keys() == replayed.groups.keys()
        for group_id, group in live.groups.items():
            if group.state in (ClassicState.STABLE, ClassicState.EMPTY):
                assert group == replayed.groups[group_id]

    def finish(self):
        """In the end everybody has an answer."""
        for producer_id in (7, 8):
            self.end(producer_id, True)
        self.world.advance(1_000_000)
        assert not self.world.waiting
        assert all(not group.members for group in self.world.state.groups.values())
        self.check_offsets()


def values(groups):
    return {
        (group_id, topic, partition): committed.value
        for group_id, topics in groups.items()
        for topic, partitions in topics.items()
        for partition, committed in partitions.items()
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_schedule(steps):
    schedule = Schedule()
    for name, *arguments in steps:
        getattr(schedule, name)(*arguments)
        schedule.check()
    schedule.finish()


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=10, max_size=40))
def test_any_schedule_of_a_stable_group(steps):
    schedule = Schedule()
    schedule.settle()
    assert schedule.world.group().state is ClassicState.STABLE
    for name, *arguments in steps:
        getattr(schedule, name)(*arguments)
        schedule.check()
    schedule.finish()
