"""What campaigns of partitions and their clients have found, each as a schedule of its own."""

import asyncio
import random

import pytest
from sim.world.cluster import HOST, KAFKA_PORT, Cluster
from sim.world.data_campaign import SETTINGS
from sim.world.data_clients import PLACES, Workload
from sim.world.ledger import Ledger
from sim.world.loop import ProcessClock

from chronik.client.admin import Admin
from chronik.client.consumer import Consumer
from chronik.client.link import Address, Link
from chronik.client.offsets import LATEST, list_offsets
from chronik.client.producer import Producer
from chronik.metadata.records import BrokerStatus
from chronik.model import TopicPartition
from chronik.protocol import apis
from chronik.protocol.messages.api_versions import ApiVersionsRequest
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic


class World:
    """Three nodes that serve, topics with three replicas, and clients to come."""

    def __init__(self, cluster, seed):
        self.cluster = cluster
        self.ledger = Ledger(cluster)
        self.workload = Workload(cluster, self.ledger, random.Random(seed))

    def until(self, is_so, limit_s=20.0):
        assert self.cluster.scheduler.run_until(is_so, limit_s)

    @property
    def records(self):
        return [self.ledger.find(*each).record for each in PLACES]

    def is_whole(self):
        """Whether every replica of every partition is in sync."""
        return all(len(each.isr) == 3 for each in self.records)

    def led_by(self, node_id):
        """The partitions that a node leads."""
        replicas = self.cluster.processes[node_id].broker.replicas
        return [each for each in replicas.used() if each.in_sync is not None]

    def is_offline(self, node_id):
        return self.ledger.image.brokers[node_id].status is BrokerStatus.OFFLINE


@pytest.fixture
def world(request):
    durability = getattr(request, "param", "fsync")
    cluster = Cluster(0, durability=durability, kafka=SETTINGS)
    world = World(cluster, 0)
    try:
        with world.ledger.open(), cluster.existing():
            for node_id in cluster.machines:
                cluster.start(node_id)
            world.until(lambda: len(cluster.serving) == 3)
            cluster.scheduler.run(2.0)
            done = world.workload.run(world.workload._create_topics())
            world.until(done.done)
            world.until(lambda: all(each.leader > 0 for each in world.records))
            cluster.scheduler.run(1.0)
            yield world
    finally:
        world.workload.close()


def test_an_idle_follower_that_caught_up_during_another_proposal_is_in_sync(world):
    leader = world.records[0].leader
    others = sorted(world.cluster.machines.keys() - {leader})
    for node_id in others:
        world.cluster.kill(node_id)
        world.cluster.scheduler.run(0.3)
        world.cluster.start(node_id)
        world.until(world.is_whole)
    # Both at once: nothing is written, so that each is heard of once.
    for node_id in others:
        world.cluster.power_off(node_id)
    world.cluster.start(others[0])
    world.until(lambda: world.is_offline(others[1]))
    world.cluster.start(others[1])
    world.until(world.is_whole)


def test_a_refused_proposal_is_made_again(world):
    """The follower restarts between its word and the decision, and is idle from then on."""
    leader = world.records[0].leader
    away = next(each for each in world.cluster.machines if each != leader)
    for _ in range(8):
        world.cluster.power_off(away)
        world.cluster.scheduler.run(0.2)
        world.cluster.start(away)
        world.cluster.scheduler.run(0.6)
    world.until(world.is_whole)


def test_a_follower_that_was_taken_for_dead_is_in_sync_again(world):
    """The controller does not hear it, the leader does; and nothing is written meanwhile."""
    controller = world.cluster.leader.node_id
    leader = next(each.leader for each in world.records if each.leader != controller)
    (away,) = world.cluster.machines.keys() - {controller, leader}
    links = [(away, controller), (controller, away)]
    world.cluster.network.break_links(links)
    world.until(lambda: world.is_offline(away))
    assert not world.is_whole()
    world.cluster.network.mend_links(links)
    world.until(lambda: not world.is_offline(away))
    world.until(world.is_whole)


def test_a_connection_that_ends_late_is_not_the_end_of_its_follower(world):
    leader = world.records[0].leader
    away = next(each for each in world.cluster.machines if each != leader)
    world.cluster.power_off(away)  # Nobody is told that its connections are gone.
    world.cluster.start(away)
    world.cluster.scheduler.run(20.0)
    assert world.led_by(leader)
    for partition in world.led_by(leader):
        assert partition.in_sync.followers[away].broker_epoch > 0


@pytest.mark.parametrize("world", ["replicated"], indirect=True)
def test_a_run_that_nobody_heard_of_does_not_make_the_one_before_it_clean(world):
    leader = world.records[0].leader
    world.cluster.power_off(leader)
    world.cluster.start(leader)
    world.until(lambda: world.cluster.machines[leader].process.is_watched)
    assert not world.cluster.machines[leader].process.starting.done()
    world.cluster.kill(leader)
    world.cluster.start(leader)
    world.until(lambda: world.cluster.machines[leader].process.is_watched)
    assert not world.cluster.machines[leader].process.broker._ended_cleanly
    world.until(lambda: world.cluster.machines[leader].process.is_serving)
    world.cluster.kill(leader)
    world.cluster.start(leader)
    world.until(lambda: world.cluster.machines[leader].process.is_watched)
    assert world.cluster.machines[leader].process.broker._ended_cleanly


def test_a_clean_stop_vouches_for_what_a_killed_run_has_left():
    """A partition that nobody used in between is on disk, too, before the power goes."""
    cluster = Cluster(0, 1, durability="replicated", kafka=SETTINGS)
    world = World(cluster, 0)

    async def write():
        connected = await world.workload.connect()
        await Admin(connected).create_topic("t", partitions=1, replication_factor=1)
        clock = ProcessClock(cluster.scheduler)
        producer = Producer(connected, acks=-1, linger_s=0.0, clock=clock)
        for number in range(5):
            await (await producer.send("t", b"%d" % number, partition=0))
        await producer.close()
        await connected.close()

    async def read():
        connected = await world.workload.connect()
        (end,) = (await list_offsets(connected, {TopicPartition("t", 0): LATEST})).values()
        await connected.close()
        return end

    try:
        with world.ledger.open(), cluster.existing():
            cluster.start(1)
            writing = world.workload.run(write())
            world.until(writing.done)
            assert writing.exception() is None
            cluster.kill(1)
            cluster.start(1)
            world.until(lambda: cluster.machines[1].process.is_serving)
            cluster.stop(1)
            world.until(lambda: 1 not in cluster.processes)
            cluster.power_off(1)
            cluster.start(1)
            reading = world.workload.run(read())
            world.until(reading.done)
            assert reading.result() == 5
    finally:
        world.workload.close()


def test_a_consumer_waits_while_a_partition_that_failed_is_fetched_again(world):
    async def read():
        connected = await world.workload.connect()
        async with Consumer(connected, dict.fromkeys(PLACES, 0)) as consumer:
            await consumer.poll()

    reading = world.workload.run(read())
    scheduler = world.cluster.scheduler
    scheduler.run(1.0)
    world.cluster.kill(world.records[0].leader)
    before, end = scheduler.event_count, scheduler.now + 5.0
    events_max = 20_000  # far more than three brokers need, and far less than a busy loop
    scheduler.run_until(
        lambda: scheduler.now >= end or scheduler.event_count > before + events_max, 10.0
    )
    assert scheduler.event_count < before + events_max
    assert not reading.done()


@pytest.mark.parametrize("leads_raft", [True, False])
def test_a_client_whose_leader_has_died_is_told_of_the_next_one_at_once(world, leads_raft):
    """It asks in the moment in which it loses its connection, and not again for a second."""
    controller = world.cluster.leader.node_id
    place, dead = next(
        (place, record.leader)
        for place, record in zip(PLACES, world.records, strict=True)
        if (record.leader == controller) is leads_raft
    )
    asked = next(each for each in world.cluster.machines if each != dead)

    async def leader_now():
        link = await Link.connect(Address(HOST, KAFKA_PORT + asked))
        while dead in world.cluster.processes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # The time that a client needs to notice.
        topics = [MetadataRequestTopic(name=place.topic)]
        answer = await link.send(MetadataRequest(topics=topics), apis.METADATA, timeout_s=5.0)
        link.close()
        return answer.topics[0].partitions[place.partition].leader_id

    answer = world.workload.run(leader_now())
    world.cluster.scheduler.run(0.5)
    began = world.cluster.scheduler.now
    world.cluster.kill(dead)
    world.until(answer.done)
    assert answer.result() not in (dead, -1)
    assert world.cluster.scheduler.now - began < 2.0


@pytest.mark.parametrize("software", ["librdkafka", "apache-kafka-java"])
def test_librdkafka_is_shown_a_dead_broker_a_little_longer(world, software):
    """In answers about its topics, in which another leads; nobody else is."""
    dead = next(each for each in world.cluster.machines if each != world.cluster.leader.node_id)
    asked = next(each for each in world.cluster.machines if each != dead)
    version = ApiVersionsRequest(client_software_name=software, client_software_version="2.16.0")

    async def brokers():
        link = await Link.connect(Address(HOST, KAFKA_PORT + asked))
        await link.send(version, apis.API_VERSIONS, timeout_s=5.0)
        found = []
        for topics in ([MetadataRequestTopic(name=PLACES[0].topic)], None):
            answer = await link.send(MetadataRequest(topics=topics), apis.METADATA, timeout_s=5.0)
            leaders = {each.leader_id for one in answer.topics for each in one.partitions}
            assert dead not in leaders
            found.append({each.node_id for each in answer.brokers})
        link.close()
        return found

    def seen():
        looking = world.workload.run(brokers())
        world.until(looking.done)
        return looking.result()

    everybody = set(world.cluster.machines)
    world.cluster.kill(dead)
    world.until(lambda: world.is_offline(dead))
    world.cluster.scheduler.run(0.5)
    named = everybody if software == "librdkafka" else everybody - {dead}
    assert seen() == [named, everybody - {dead}]
    world.cluster.scheduler.run(10.0)
    assert seen() == [everybody - {dead}] * 2
    world.cluster.start(dead)
    world.until(lambda: not world.is_offline(dead))
    world.cluster.scheduler.run(0.5)
    assert seen() == [everybody] * 2
