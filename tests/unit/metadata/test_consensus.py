"""Several metadata runtimes in one loop: agreement, forwarding, catching up."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from chronik.config import limits
from chronik.metadata import consensus
from chronik.metadata.commands import (
    AllocateProducerIds,
    AlterConfig,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    InSyncChange,
    RegisterBroker,
    RemoveBroker,
    UpdateISR,
)
from chronik.metadata.image import TOPIC, id_text
from chronik.metadata.journal import Journal, begin_votes
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.messages import InstallSnapshot, Message
from chronik.raft.types import Membership
from chronik.storage.commit import GroupCommit
from chronik.storage.memory import MemoryDisk

EVERYBODY = frozenset([1, 2, 3])


class Group:
    """Three nodes; those in `away` hear and say nothing."""

    def __init__(self) -> None:
        self.disks = {node_id: FullDisk() for node_id in EVERYBODY}
        for disk in self.disks.values():
            begin_votes(disk, "/metadata")
        self.nodes: dict[int, MetadataRuntime] = {}
        self.journals: dict[int, Journal] = {}
        self.away: set[int] = set()
        self.snapshots = 0
        self.held: list[tuple[InstallSnapshot, bytes]] | None = None  # snapshots on their way

    def start(self, node_id: int) -> MetadataRuntime:
        disk = self.disks[node_id]
        journal = Journal(disk, "/metadata", lambda: 1)
        commit = GroupCommit(
            disk, lambda _: node.on_durable(), lambda _, error: node.on_failed(error)
        )
        node = MetadataRuntime(
            journal,
            commit,
            node_id,
            disk,
            directory_id=f"d{node_id}",
            send=lambda message: self.send(message),
            call=self.call,
            founding=Membership(EVERYBODY),
        )
        self.nodes[node_id], self.journals[node_id] = node, journal
        node.start()
        node.consensus.run()
        return node

    def send(self, message: Message) -> None:
        if not {message.sender, message.recipient} & self.away:
            asyncio.get_running_loop().call_soon(self.deliver, message)

    def deliver(self, message: Message) -> None:
        node = self.nodes.get(message.recipient)
        if node is None:
            return
        data = b""
        if isinstance(message, InstallSnapshot):
            self.snapshots += 1
            data = self.journals[message.sender].snapshot_data(message.snapshot)
            if self.held is not None:
                self.held.append((message, data))
                return
        node.consensus.step(message, data)

    async def call(self, node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        if node_id in self.away:
            raise ConnectionError
        assert method == "submit"
        return await self.nodes[node_id].on_submit(body)

    async def leader(self) -> MetadataRuntime:
        while True:
            leading = [
                node
                for node_id, node in self.nodes.items()
                if node.is_leading and node_id not in self.away
            ]
            if len(leading) == 1 and leading[0].consensus.node.has_committed_in_term:
                return leading[0]
            await asyncio.sleep(0.01)

    async def agree(self) -> None:
        """Wait until all have applied the same."""
        while len({node.applied_index for node in self.nodes.values()}) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first, *others = [node.image for node in self.nodes.values()]
        assert all(other == first for other in others)


def play(work: Callable[[Group], Awaitable[None]]) -> None:
    async def run() -> None:
        group = Group()
        for node_id in EVERYBODY:
            group.start(node_id)
        async with asyncio.timeout(20):
            await work(group)
        for node in group.nodes.values():
            node.close()

    asyncio.run(run())


def registration(node_id: int) -> RegisterBroker:
    return RegisterBroker(
        node_id=node_id, incarnation_id="i", directory_id=f"d{node_id}", host="h", port=node_id
    )


def topic(number: int) -> CreateTopic:
    return CreateTopic(name=f"t{number}", topic_id=id_text(number.to_bytes(16)), partition_count=1)


def test_whoever_is_asked_answers_once_it_shows_the_change() -> None:
    async def work(group: Group) -> None:
        for node_id, node in group.nodes.items():
            await node.submit(registration(node_id))
            assert node_id in node.image.brokers
        for node_id, node in group.nodes.items():
            created = await node.submit(topic(node_id))
            assert created.name == f"t{node_id}"
            assert f"t{node_id}" in node.image.topics
        await group.agree()

    play(work)


def test_a_refusal_is_the_leaders() -> None:
    async def work(group: Group) -> None:
        leader = await group.leader()
        follower = next(node for node in group.nodes.values() if node is not leader)
        await follower.submit(registration(1))
        await follower.submit(topic(1))
        with pytest.raises(KafkaError) as refused:
            await follower.submit(CreateTopic(name="t1", topic_id=id_text(bytes(16))))
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        # Its own success, asked for again, is no refusal.
        assert (await follower.submit(topic(1))).name == "t1"

    play(work)


def test_a_request_that_comes_late_is_not_decided_in_another_term() -> None:
    """Its node has asked again by then, and the client may have been told of a refusal."""

    async def work(group: Group) -> None:
        first = await group.leader()
        follower = next(node for node in group.nodes.values() if node is not first)
        await follower.submit(registration(1))
        sent: list[bytes] = []
        call = group.call

        async def hold(node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
            sent.append(body)
            return await call(node_id, method, body, timeout_s)

        follower.call = hold
        await follower.submit(topic(1))
        assert len(sent) == 1
        group.away.add(first.node_id)
        second = await group.leader()
        group.away.clear()
        late = (
            sent[0]
            .replace(b'"t1"', b'"t2"')
            .replace(topic(1).topic_id.encode(), topic(2).topic_id.encode())
        )
        with pytest.raises(KafkaError) as refused:
            await second.on_submit(late)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await group.agree()
        assert set(second.image.topics) == {"t1"}

    play(work)


def test_a_new_leader_goes_on_where_the_old_one_stopped() -> None:
    async def work(group: Group) -> None:
        old = await group.leader()
        await old.submit(registration(1))
        group.away.add(old.node_id)
        new = await group.leader()
        assert new.term > old.term
        await new.submit(topic(1))
        waiting = old.submit(topic(2))
        with pytest.raises(KafkaError) as lost:
            await waiting
        assert lost.value.code is ErrorCode.REQUEST_TIMED_OUT
        group.away.clear()
        await group.agree()
        assert "t1" in old.image.topics

    play(work)


def test_who_was_away_too_long_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_ENTRY_COUNT", 10)

    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        away = next(node_id for node_id in EVERYBODY if node_id != leader.node_id)
        group.away.add(away)
        for number in range(30):
            await leader.submit(topic(number))
        group.away.clear()
        await group.agree()
        assert group.snapshots
        group.nodes.pop(away).close()
        again = group.start(away)
        await group.agree()
        assert len(again.image.topics) == 30

    play(work)


def test_a_second_snapshot_comes_while_the_first_one_waits_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_ENTRY_COUNT", 10)

    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        away = next(node_id for node_id in EVERYBODY if node_id != leader.node_id)
        group.away.add(away)
        group.held = held = []
        for number in range(15):
            await leader.submit(topic(number))
        group.away.clear()
        while not held:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for number in range(15, 30):
            await leader.submit(topic(number))
        while held[-1][0].snapshot.index == held[0][0].snapshot.index:
            leader.consensus.node.snapshot_failed(away)
            await asyncio.sleep(0.01)
        group.held = None
        for message, data in (held[0], held[-1]):
            group.nodes[away].consensus.step(message, data)
        await group.agree()
        assert group.nodes[away].failure is None

    play(work)


def test_a_restart_of_all_shows_what_was_committed_at_once() -> None:
    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        await leader.submit(topic(1))
        await group.agree()
        for node in group.nodes.values():
            node.close()
        for node_id in EVERYBODY:
            assert "t1" in group.start(node_id).image.topics
        await group.leader()
        await group.agree()

    play(work)


class FullDisk(MemoryDisk):
    """A disk that has no room while it is full."""

    is_full = False
    refusals = 0

    def append(self, path: str, buffers: Sequence[Any]) -> None:
        self._check_room()
        super().append(path, buffers)

    def write(self, path: str, data: Any) -> None:
        self._check_room()
        super().write(path, data)

    def _check_room(self) -> None:
        if self.is_full:
            self.refusals += 1
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_full_disk_stops_nobody_else(whose: str) -> None:
    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        full = leader.node_id if whose == "leader" else next(iter(EVERYBODY - {leader.node_id}))
        other = next(iter(EVERYBODY - {leader.node_id, full}))
        disk = group.disks[full]
        assert isinstance(disk, FullDisk)
        disk.is_full = True
        if whose == "leader":
            with pytest.raises(KafkaError, match="No space left"):
                await leader.submit(topic(0))
            leader.consensus.transfer(other)  # As the broker does.
        await group.nodes[other].submit(topic(1))
        assert group.nodes[full].failure is None
        disk.is_full = False
        await group.nodes[full].submit(topic(2))
        await group.agree()
        assert {"t1", "t2"} <= set(group.nodes[full].image.topics)

    play(work)


def test_what_comes_committed_with_what_does_not_fit_is_applied() -> None:
    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        await group.agree()
        full = next(iter(EVERYBODY - {leader.node_id}))
        group.away.add(full)
        for number in range(3):
            await leader.submit(topic(number))
        group.disks[full].is_full = True
        saved_index = group.journals[full].last_index
        told: list[str] = []
        group.nodes[full].subscribe(lambda old, new, records: told.extend(new.topics))
        group.away.clear()  # One message brings the entries, and that they are committed.
        await leader.submit(topic(3))
        await group.agree()
        assert "t0" in told
        # None of it is on its own disk, and nobody was told that it is.
        assert group.journals[full].last_index == saved_index
        assert group.nodes[full].consensus.node.log.saved_index == saved_index
        assert leader.consensus.node.progress[full].match_index == saved_index
        assert group.journals[full].state.commit_index <= saved_index
        group.disks[full].is_full = False
        while leader.consensus.node.progress[full].match_index < leader.last_index:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    play(work)


def test_a_vote_that_does_not_fit_is_not_given() -> None:
    async def work(group: Group) -> None:
        old = await group.leader()
        others = EVERYBODY - {old.node_id}
        for node_id in others:
            group.disks[node_id].is_full = True
        group.away.add(old.node_id)
        await asyncio.sleep(1.0)  # Time for an election, and another.
        assert not any(group.nodes[each].is_leading for each in others)
        assert all(group.journals[each].state.term == old.term for each in others)
        for node_id in others:
            group.disks[node_id].is_full = False
        await group.leader()

    play(work)


def test_what_a_full_leader_refused_and_others_commit_is_applied_once() -> None:
    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        await leader.submit(topic(1))
        seen: list[int] = []
        leader.subscribe(lambda old, new, records: seen.append(len(new.topics)))
        group.disks[leader.node_id].is_full = True
        deletion = DeleteTopic(topic_id=topic(1).topic_id)
        with pytest.raises(KafkaError, match="No space left"):
            await leader.submit(deletion)
        await group.agree()
        while leader.image.topics:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert seen == [0]
        assert leader._pending == leader.image
        assert leader._in_flight.bytes_uncommitted == len(leader._in_flight) == 0
        group.disks[leader.node_id].is_full = False
        assert (await leader.submit(topic(1))).name == "t1"

    play(work)


def test_one_timer_tries_a_full_disk_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus, "RETRY_S", 0.05)

    async def work(group: Group) -> None:
        leader = await group.leader()
        await leader.submit(registration(1))
        disk = group.disks[leader.node_id]
        disk.is_full = True
        for number in range(20):
            with pytest.raises(KafkaError, match="No space left"):
                await leader.submit(topic(number))
        before = disk.refusals
        await asyncio.sleep(0.5)
        assert 3 <= disk.refusals - before <= 11
        disk.is_full = False

    play(work)


def test_a_forwarded_command_waits_until_somebody_with_room_leads() -> None:
    async def work(group: Group) -> None:
        old = await group.leader()
        await old.submit(registration(1))
        follower, other = (node for node in group.nodes.values() if node is not old)
        group.disks[old.node_id].is_full = True
        # The first is appended before the leader knows that its disk is full; the second is not.
        first = follower.submit(topic(0))
        while old.consensus.full is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        last_index = old.last_index
        second = follower.submit(topic(1))
        await asyncio.sleep(0.1)
        assert old.last_index == last_index
        old.consensus.transfer(other.node_id)  # As the broker does.
        assert [each.name for each in await asyncio.gather(first, second)] == ["t0", "t1"]
        group.disks[old.node_id].is_full = False

    play(work)


def stop_when_called(
    group: Group, asker: MetadataRuntime, *, is_done: bool
) -> "asyncio.Future[None]":
    """The first node that is asked stops at once, or when it has done what it was asked for."""
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def call(node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        if stopped.done():
            return await group.call(node_id, method, body, timeout_s)
        if is_done:
            await group.nodes[node_id].on_submit(body)
        group.away.add(node_id)
        stopped.set_result(None)
        await asyncio.sleep(timeout_s)
        raise ConnectionError

    asker.call = call
    return stopped


def test_what_a_stopped_leader_was_asked_is_asked_of_the_next_one() -> None:
    async def work(group: Group) -> None:
        old = await group.leader()
        follower = next(node for node in group.nodes.values() if node is not old)
        await follower.submit(registration(1))
        stop_when_called(group, follower, is_done=False)
        async with asyncio.timeout(5):
            assert (await follower.submit(topic(1))).name == "t1"
        assert follower.term > old.term
        group.away.clear()
        await group.agree()

    play(work)


def test_a_leader_that_is_slow_and_leads_on_is_not_asked_again() -> None:
    async def work(group: Group) -> None:
        leader = await group.leader()
        follower = next(node for node in group.nodes.values() if node is not leader)
        await follower.submit(registration(1))
        asked: list[int] = []

        async def call(node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
            asked.append(node_id)
            await asyncio.sleep(1)
            # Its heartbeats come late, too, but it is not deposed.
            follower.consensus.node.leader_id = None
            follower._on_role()
            follower.consensus.node.leader_id = leader.node_id
            follower._on_role()
            return await group.call(node_id, method, body, timeout_s)

        follower.call = call
        await follower.submit(topic(1))
        assert asked == [leader.node_id]

    play(work)


SHRINK = InSyncChange(
    topic_id=topic(1).topic_id, partition=0, isr=(1,), leader_epoch=0, partition_epoch=0
)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (topic(2), "t2"),
        (registration(3), None),
        (AllocateProducerIds(node_id=1, broker_epoch=0), None),
        (AlterConfig(resource=TOPIC, resource_name="t1", changes={"retention.ms": "5"}), None),
        (DeleteTopic(topic_id=topic(1).topic_id), None),
        (CreatePartitions(name="t1", count=2), ErrorCode.REQUEST_TIMED_OUT),
        (RemoveBroker(node_id=2, accepts_loss=True), ErrorCode.REQUEST_TIMED_OUT),
        # The asker sees by then that it is so: it was told of no change that is under way.
        (UpdateISR(node_id=1, broker_epoch=0, changes=(SHRINK,)), "done before"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_stopped_leader_has_done_is_not_refused(command: Command, outcome: Any) -> None:
    async def work(group: Group) -> None:
        old = await group.leader()
        follower = next(node for node in group.nodes.values() if node is not old)
        epoch = await follower.submit(registration(1))
        await follower.submit(registration(2))
        created = replace(topic(1), partition_count=-1, assignments={0: [1, 2]})
        await follower.submit(created)
        stop_when_called(group, follower, is_done=True)
        asked = (
            replace(command, broker_epoch=epoch) if hasattr(command, "broker_epoch") else command
        )
        async with asyncio.timeout(5):
            if isinstance(outcome, ErrorCode):
                with pytest.raises(KafkaError) as unknown:
                    await follower.submit(asked)
                assert unknown.value.code is outcome
                return
            response = await follower.submit(asked)
        match asked:
            case CreateTopic():
                assert response.name == outcome
            case RegisterBroker():
                assert response == follower.image.brokers[3].epoch
            case AllocateProducerIds():
                assert response.stop == follower.image.next_producer_id
            case UpdateISR():
                assert response == (ErrorCode.INVALID_UPDATE_VERSION,)
                assert follower.image.topics["t1"].partitions[0].isr == (1,)
            case _:
                assert response is None

    play(work)
