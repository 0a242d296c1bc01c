"""What campaigns of whole brokers have found, each as a schedule of its own."""

import uuid

import pytest
from sim.world.cluster import HOST, INTERNAL_PORT, SNAPSHOT_ENTRIES, Cluster

from chronik.metadata.commands import CreateTopic, RegisterBroker, RemoveBroker
from chronik.metadata.image import id_text
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.messages import AppendEntries
from chronik.raft.types import Role
from chronik.server.members import Remove


@pytest.fixture
def cluster():
    """Three nodes that serve, and a leader."""
    yield from started(0)


def started(seed):
    with Cluster(seed).existing() as cluster:
        for node_id in cluster.machines:
            cluster.start(node_id)
        assert cluster.scheduler.run_until(lambda: len(cluster.serving) == 3, 10.0)
        cluster.scheduler.run(2.0)
        yield cluster


def create(process, name, partition_count=1, replication_factor=1):
    """Ask a node for a topic; the answer to wait for."""
    command = CreateTopic(
        name=name,
        topic_id=id_text(uuid.uuid4().bytes),
        partition_count=partition_count,
        replication_factor=replication_factor,
    )
    return process.do(lambda: process.metadata.submit(command))


def others(cluster):
    """Everybody but the leader."""
    leader = cluster.leader
    return [each for each in cluster.processes.values() if each is not leader]


def links(one, many):
    pairs = [(one.node_id, other.node_id) for other in many]
    return pairs + [(b, a) for a, b in pairs]


def everything(leader, follower):
    """A message with all that a leader has and a follower may lack."""
    node, known = leader.node, follower.node.commit_index
    return AppendEntries(
        term=node.term,
        sender=node.node_id,
        recipient=follower.node_id,
        previous_index=known,
        previous_term=node.log.term_at(known),
        entries=node.log.between(known + 1, node.log.last_index),
        commit_index=node.commit_index,
    )


def agree(cluster):
    """Everybody serves, and has applied the same."""

    def is_so():
        indexes = {each.metadata.applied_index for each in cluster.serving}
        return len(cluster.serving) == 3 and len(indexes) == 1

    assert cluster.scheduler.run_until(is_so, 20.0)
    cluster.scheduler.run(2.0)
    assert len({frozenset(each.metadata.image.topics) for each in cluster.serving}) == 1


def test_a_leader_that_was_replaced_does_not_take_another_entry_for_its_own(cluster):
    deposed, rest = cluster.leader, others(cluster)
    cut = links(deposed, rest)
    cluster.network.break_links(cut)
    lost = create(deposed, "lost")
    assert cluster.scheduler.run_until(lambda: cluster.leader is not deposed, 10.0)
    won = [create(cluster.leader, f"won-{each}") for each in range(3)]
    assert cluster.scheduler.run_until(lambda: all(each.done() for each in won), 1.0)
    assert deposed.node.role is Role.LEADER  # It does not know yet.
    # The first word of the new leader that gets through has everything in it.
    deposed.do(lambda: deposed.metadata.consensus.step(everything(cluster.leader, deposed)))
    cluster.network.mend_links(cut)
    agree(cluster)
    assert lost.exception().code is ErrorCode.REQUEST_TIMED_OUT
    assert "lost" not in deposed.metadata.image.topics


def test_a_leader_decides_once_it_has_applied_what_earlier_ones_left(cluster):
    first, (heir, other) = cluster.leader, others(cluster)
    # The heir gets the entry; nobody learns that it has it.
    cluster.network.break_links([*links(first, [other]), (heir.node_id, first.node_id)])
    create(first, "twice")
    has_entry = cluster.scheduler.run_until(
        lambda: heir.node.log.last_index > heir.node.commit_index, 1.0
    )
    assert has_entry
    cluster.kill(first.node_id)
    assert cluster.scheduler.run_until(lambda: heir.node.role is Role.LEADER, 10.0)
    again = create(heir, "twice")
    assert cluster.scheduler.run_until(again.done, 20.0)
    assert isinstance(again.exception(), KafkaError)
    assert again.exception().code is ErrorCode.TOPIC_ALREADY_EXISTS
    cluster.network.cut.clear()
    cluster.start(first.node_id)
    agree(cluster)


def test_a_command_during_a_transfer_is_done_by_the_next_leader(cluster):
    leader, (heir, other) = cluster.leader, others(cluster)
    cluster.network.break_links(links(leader, [heir]))

    def hand_over():
        leader.metadata.consensus.transfer(heir.node_id)

    leader.do(hand_over)
    answers = [create(each, f"from-{each.node_id}") for each in (leader, other)]
    cluster.scheduler.run(0.1)
    cluster.network.cut.clear()
    cluster.network.mend_links([])
    assert cluster.scheduler.run_until(lambda: all(each.done() for each in answers), 20.0)
    assert [each.exception() for each in answers] == [None, None]


def test_a_leader_that_hands_over_already_stops_like_any_other(cluster):
    leader, (other, _) = cluster.leader, others(cluster)
    agreed = create(leader, "t", 3, 3)  # so that whoever stops has something to resign from
    assert cluster.scheduler.run_until(agreed.done, 10.0)
    cluster.scheduler.run(2.0)
    last_index = leader.node.log.last_index
    cluster.stop(leader.node_id)
    assert cluster.scheduler.run_until(lambda: leader.node.log.last_index > last_index, 1.0)
    leader.do(lambda: leader.metadata.consensus.transfer(other.node_id))
    assert cluster.scheduler.run_until(lambda: cluster.leader is other, 2.0)
    assert cluster.scheduler.run_until(lambda: leader.loop.is_dead, 10.0)


@pytest.mark.parametrize("wait_s", [0.5, 1.0, 1.5, 2.5])
def test_a_node_whose_disk_is_behind_stops_and_starts_again(cluster, wait_s):
    slow = others(cluster)[0]
    slow.machine.platter.slow_until = cluster.scheduler.now + 60.0
    for each in range(SNAPSHOT_ENTRIES + 10):
        create(cluster.leader, f"topic-{each}")
        cluster.scheduler.run(0.01)
    # A vote takes the disk's time too, and entries wait behind it.
    leader = cluster.leader
    to = next(each for each in others(cluster) if each is not slow)
    leader.do(lambda: leader.metadata.consensus.transfer(to.node_id))
    cluster.scheduler.run(wait_s)
    cluster.stop(slow.node_id)
    cluster.scheduler.run_until(lambda: slow.machine.process is None, 30.0)
    slow.machine.platter.slow_until = 0.0
    cluster.start(slow.node_id)
    agree(cluster)


@pytest.mark.parametrize("seed", range(8))
def test_a_node_killed_within_a_snapshot_catches_up(seed):
    for cluster in started(seed):
        kill_within_a_snapshot(cluster)


def kill_within_a_snapshot(cluster):
    away = others(cluster)[0].node_id
    cluster.kill(away)
    for each in range(2 * SNAPSHOT_ENTRIES):
        create(cluster.leader, f"topic-{each}")
        cluster.scheduler.run(0.05)
    machine = cluster.machines[away]
    machine.platter.slow_until = cluster.scheduler.now + 60.0
    cluster.start(away)
    assert cluster.scheduler.run_until(lambda: has_got_a_snapshot(machine), 20.0)
    cluster.kill(away)
    machine.platter.slow_until = 0.0
    cluster.start(away)
    agree(cluster)


def has_got_a_snapshot(machine):
    """Whether a leader's snapshot is being saved."""
    process = machine.process
    if process is None or not process.is_watched:
        return False
    queue = process.metadata.consensus._queue
    return any(ready.snapshot is not None for ready in queue)


def test_a_member_that_missed_who_was_let_in_follows_that_one_all_the_same(cluster):
    """Its own members know nothing of a node that leads by now, and has to tell it of itself."""
    away, other = others(cluster)
    cut = links(away, [cluster.leader, other])
    cluster.network.break_links(cut)
    cluster.add(4, f"{HOST}:{INTERNAL_PORT + cluster.leader.node_id}")
    votes = cluster.scheduler.run_until(lambda: 4 in cluster.leader.node.membership.voters, 30.0)
    assert votes
    cluster.machines[4].is_stranger = False
    cluster.scheduler.run(15.0)  # What was on its way to it is given up.
    leader = cluster.leader
    leader.do(lambda: leader.metadata.consensus.transfer(4))
    joined = cluster.processes[4]
    assert cluster.scheduler.run_until(lambda: joined.node.role is Role.LEADER, 10.0)
    assert 4 not in away.node.membership.members
    cluster.network.mend_links(cut)

    def has_all():
        return away.metadata.applied_index == joined.metadata.applied_index

    assert cluster.scheduler.run_until(has_all, 20.0)
    assert joined.node.role is Role.LEADER
    assert 4 in away.node.membership.members


@pytest.mark.parametrize("has_heard_of_the_removal", [True, False])
def test_a_member_that_missed_a_replacement_follows_it_all_the_same(has_heard_of_the_removal):
    """It still shows the registration of the old one, or has it for a member."""
    with Cluster(0, 4).existing() as cluster:
        for node_id in cluster.machines:
            cluster.start(node_id)
        assert cluster.scheduler.run_until(lambda: len(cluster.serving) == 4, 10.0)
        cluster.scheduler.run(2.0)
        leader, (away, victim, _) = cluster.leader, others(cluster)
        node_id = victim.node_id
        cluster.wipe(node_id)
        cluster.scheduler.run(5.0)
        rest = [each for each in cluster.processes.values() if each is not away]
        cut = links(away, [*rest, victim])
        if not has_heard_of_the_removal:
            cluster.network.break_links(cut)
        change = Remove(node_id, accepts_loss=True, replaces=True)
        removed = leader.do(
            lambda: leader.loop.create_task(leader.broker.members.change(change), name="remove")
        )
        if has_heard_of_the_removal:
            members = away.node.members
            assert cluster.scheduler.run_until(lambda: node_id not in members.current.members, 10.0)
            cluster.network.break_links(cut)
            assert node_id in away.metadata.image.brokers
        assert cluster.scheduler.run_until(removed.done, 10.0)
        cluster.start(node_id)
        assert cluster.scheduler.run_until(lambda: node_id in leader.node.membership.voters, 60.0)
        cluster.machines[node_id].is_stranger = False
        cluster.scheduler.run(15.0)
        leader.do(lambda: leader.metadata.consensus.transfer(node_id))
        again = cluster.processes[node_id]
        assert cluster.scheduler.run_until(lambda: again.node.role is Role.LEADER, 10.0)
        assert (node_id in away.node.membership.members) is not has_heard_of_the_removal
        cluster.network.mend_links(cut)

        def has_all():
            return away.metadata.applied_index == again.metadata.applied_index

        assert cluster.scheduler.run_until(has_all, 20.0)
        assert again.node.role is Role.LEADER


def test_a_removal_takes_a_registration_along_that_was_decided_before_it(cluster):
    leader, (victim, _) = cluster.leader, others(cluster)
    node_id = victim.node_id
    known = leader.metadata.image.brokers[node_id]
    cluster.kill(node_id)
    gone = leader.do(lambda: leader.metadata.submit(RemoveBroker(node_id=node_id)))
    assert cluster.scheduler.run_until(gone.done, 10.0)
    cluster.scheduler.run(5.0)
    register = RegisterBroker(
        node_id=node_id,
        incarnation_id="late",
        directory_id=known.directory_id,
        host=known.host,
        port=known.port,
    )

    def both():
        leader.metadata.submit(register)
        removal = leader.broker.members.change(Remove(node_id, accepts_loss=True, replaces=True))
        return leader.loop.create_task(removal, name="remove")

    removed = leader.do(both)
    assert cluster.scheduler.run_until(removed.done, 10.0)
    assert removed.exception() is None
    assert node_id not in leader.metadata.image.brokers
    cluster.wipe(node_id)
    cluster.start(node_id)  # Its number is free for another directory.
    assert cluster.scheduler.run_until(lambda: node_id in leader.node.membership.voters, 60.0)
