"""A broker registers, dies, comes back, rests and is removed; and what follows for partitions."""

from collections import Counter
from dataclasses import replace

import pytest

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    AlterConfig,
    Command,
    CreateTopic,
    ElectUncleanLeaders,
    InSyncChange,
    RegisterBroker,
    RemoveBroker,
    SetDiskFull,
    SetMaintenance,
    UncleanChoice,
    UpdateBrokerStatus,
    UpdateISR,
)
from chronik.metadata.controller import Decision, decide
from chronik.metadata.elections import leaderless
from chronik.metadata.image import BROKER, TOPIC, Image, id_text
from chronik.metadata.liveness import unfence
from chronik.metadata.records import (
    BrokerRecord,
    BrokerRemovedRecord,
    BrokerStatus,
    ConfigRecord,
    PartitionLeadersRecord,
    PartitionRecord,
    encode_records,
)
from chronik.protocol.errors import ErrorCode, KafkaError

CONFIG = BrokerConfig(static={}, cluster={}, broker={})
ONLINE, OFFLINE, MAINTENANCE = BrokerStatus


def registration(node_id: int, incarnation_id: str = "i", directory: str = "d") -> RegisterBroker:
    return RegisterBroker(
        node_id=node_id,
        incarnation_id=incarnation_id,
        directory_id=f"{directory}{node_id}",
        host="h",
        port=9092,
        internal_host="inside",
        internal_port=9192,
    )


def run(image: Image, command: Command, next_index: int = 7) -> tuple[Image, Decision]:
    config = replace(CONFIG, cluster=image.config(BROKER, ""))
    decision = decide(image, command, config, next_index)
    return image.apply(decision.records), decision


def refused(image: Image, command: Command) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        decide(image, command, CONFIG, next_index=9)
    return error.value


def status(image: Image, node_id: int, wanted: BrokerStatus) -> tuple[Image, Decision]:
    epoch = image.brokers[node_id].epoch
    return run(image, UpdateBrokerStatus(node_id=node_id, broker_epoch=epoch, status=wanted))


def topic(number: int, **how: object) -> CreateTopic:
    given = {"name": f"t{number}", "topic_id": id_text(number.to_bytes(16))} | how
    return CreateTopic(**given)  # type: ignore[arg-type]


def first(image: Image) -> PartitionRecord:
    return next(image.partitions())


@pytest.fixture
def three() -> Image:
    image = Image()
    for node_id in (1, 2, 3):
        image, _ = run(image, registration(node_id))
    return image


@pytest.fixture
def replicated(three: Image) -> Image:
    """t1-0 on 1, 2 and 3, all in sync."""
    return run(three, topic(1, assignments={0: [1, 2, 3]}))[0]


def in_sync(image: Image, *isr: int, epochs: dict[int, int] | None = None) -> Image:
    """The leader has said who is in sync."""
    partition = first(image)
    change = InSyncChange(
        topic_id=partition.topic_id,
        partition=0,
        isr=isr,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        broker_epochs=epochs or {},
    )
    leader = image.brokers[partition.leader]
    update = UpdateISR(node_id=leader.node_id, broker_epoch=leader.epoch, changes=(change,))
    image, decision = run(image, update)
    assert decision.response == (ErrorCode.NONE,)
    return image


@pytest.fixture
def alone(replicated: Image) -> Image:
    """The others have fallen behind: only 1 is in sync."""
    return in_sync(replicated, 1)


# Registration.


def test_a_registration_says_where_clients_and_brokers_find_it() -> None:
    image, decision = run(Image(), registration(1), next_index=42)
    broker = image.brokers[1]
    assert decision.response == broker.epoch == 42
    assert (broker.host, broker.port) == ("h", 9092)
    assert (broker.internal_host, broker.internal_port) == ("inside", 9192)
    assert broker.status is ONLINE


def test_a_repeated_registration_gets_its_first_answer(three: Image) -> None:
    _, again = run(three, registration(2), next_index=99)
    assert again == Decision((), 7)


def test_a_restarted_broker_gets_a_new_epoch_and_its_new_address(three: Image) -> None:
    image, again = run(three, registration(2, "next"), next_index=99)
    assert again.response == image.brokers[2].epoch == 99


def test_another_directory_under_a_node_id_is_refused_until_the_old_one_was_removed(
    three: Image,
) -> None:
    other = registration(2, "next", directory="other")
    error = refused(three, other)
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "d2" in str(error)
    image, _ = run(three, RemoveBroker(node_id=2))
    image, _ = run(image, other)
    assert image.brokers[2].directory_id == "other2"


# Death and return.


def test_a_dead_broker_leaves_the_list_and_stays_a_replica(replicated: Image) -> None:
    image, _ = status(replicated, 2, OFFLINE)
    assert [each.node_id for each in image.online_brokers] == [1, 3]
    assert first(image).replicas == (1, 2, 3)
    assert image.offline_replicas(first(image)) == (2,)


def test_the_next_in_sync_replica_leads_in_a_new_epoch(replicated: Image) -> None:
    image, _ = status(replicated, 1, OFFLINE)
    partition = first(image)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (2, 3))


def test_a_dead_follower_leaves_the_in_sync_set_and_the_leader_epoch_stays(
    replicated: Image,
) -> None:
    image, _ = status(replicated, 3, OFFLINE)
    partition = first(image)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1, 2))
    assert partition.partition_epoch == 1


def test_without_another_in_sync_replica_there_is_no_leader_and_the_set_stays(
    alone: Image,
) -> None:
    image, _ = status(alone, 1, OFFLINE)
    partition = first(image)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (-1, 1, (1,))


@pytest.mark.parametrize("restarted", [True, False])
def test_a_broker_that_is_back_leads_what_waited_for_it(alone: Image, restarted: bool) -> None:
    image, _ = status(alone, 1, OFFLINE)
    if restarted:
        image, _ = run(image, registration(1, "next"), next_index=50)
    else:
        image, _ = status(image, 1, ONLINE)
    partition = first(image)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 2, (1,))
    assert image.online_ids == {1, 2, 3}


def test_a_preferred_leader_that_is_back_does_not_take_over(replicated: Image) -> None:
    image, _ = status(replicated, 1, OFFLINE)
    image, decision = status(image, 1, ONLINE)
    assert [type(record) for record in decision.records] == [BrokerRecord]
    assert first(image).leader == 2


def test_a_restart_within_its_session_bumps_each_led_partition_once(replicated: Image) -> None:
    image, _ = run(replicated, registration(1, "next"), next_index=50)
    assert (first(image).leader, first(image).leader_epoch) == (1, 1)


def test_one_after_the_other_dies_and_only_the_last_can_lead_again(replicated: Image) -> None:
    image, _ = status(replicated, 1, OFFLINE)
    image, _ = status(image, 2, OFFLINE)
    assert (first(image).leader, first(image).isr) == (3, (3,))
    image, _ = status(image, 1, ONLINE)
    image, _ = status(image, 3, OFFLINE)
    assert (first(image).leader, first(image).isr) == (-1, (3,))
    image, _ = status(image, 2, ONLINE)
    assert first(image).leader == -1
    image, _ = status(image, 3, ONLINE)
    assert first(image).leader == 3


def test_a_status_is_for_one_registration(three: Image) -> None:
    image, _ = run(three, registration(2, "next"), next_index=50)
    late = UpdateBrokerStatus(node_id=2, broker_epoch=7, status=OFFLINE)
    assert refused(image, late).code is ErrorCode.STALE_BROKER_EPOCH
    unknown = UpdateBrokerStatus(node_id=9, broker_epoch=7, status=OFFLINE)
    assert refused(image, unknown).code is ErrorCode.STALE_BROKER_EPOCH


def test_a_status_that_is_already_so_changes_nothing(three: Image) -> None:
    assert status(three, 2, ONLINE)[1] == Decision(())


def test_the_last_broker_stays_in_the_list(three: Image) -> None:
    image, _ = status(three, 2, OFFLINE)
    image, _ = status(image, 3, OFFLINE)
    last = UpdateBrokerStatus(node_id=1, broker_epoch=7, status=OFFLINE)
    assert refused(image, last).code is ErrorCode.INVALID_REQUEST
    assert refused(image, RemoveBroker(node_id=1)).code is ErrorCode.INVALID_REQUEST


def test_the_death_of_a_broker_with_3000_partitions_is_one_small_entry(three: Image) -> None:
    for number in range(1000):
        three, _ = run(three, topic(number, partition_count=9, replication_factor=3))
    image, decision = status(three, 1, OFFLINE)
    assert [type(record) for record in decision.records] == [BrokerRecord, PartitionLeadersRecord]
    assert len(encode_records(decision.records)) < 120_000
    assert Counter(each.leader for each in image.partitions()) == {2: 4500, 3: 4500}


# Maintenance.


def test_a_resting_broker_gives_its_leaders_away_and_stays_in_sync(replicated: Image) -> None:
    image, _ = status(replicated, 1, MAINTENANCE)
    partition = first(image)
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (1, 2, 3))
    assert image.online_ids == {1, 2, 3}
    assert [each.node_id for each in image.placeable_brokers] == [2, 3]


def test_a_resting_broker_leads_what_nobody_else_can(alone: Image) -> None:
    image, decision = status(alone, 1, MAINTENANCE)
    assert first(image).leader == 1
    assert len(decision.records) == 1


def test_a_resting_broker_leads_when_those_online_are_gone(replicated: Image) -> None:
    image, _ = status(replicated, 1, MAINTENANCE)
    image, _ = status(image, 3, OFFLINE)
    image, _ = status(image, 2, OFFLINE)
    assert first(image).leader == 1


def test_maintenance_of_all_moves_no_leader_in_a_circle(replicated: Image) -> None:
    image, _ = status(replicated, 2, MAINTENANCE)
    image, _ = status(image, 3, MAINTENANCE)
    image, _ = status(image, 1, MAINTENANCE)
    assert first(image).leader == 1


def test_maintenance_outlives_a_restart(three: Image) -> None:
    image, _ = status(three, 1, MAINTENANCE)
    image, _ = status(image, 1, OFFLINE)
    image, _ = run(image, registration(1, "next"), next_index=50)
    assert image.brokers[1].status is MAINTENANCE
    image, _ = status(image, 1, ONLINE)
    image, _ = run(image, registration(1, "third"), next_index=60)
    assert image.brokers[1].status is ONLINE


# Removal.


def test_a_removed_broker_is_in_no_in_sync_set(replicated: Image) -> None:
    image, decision = run(replicated, RemoveBroker(node_id=1))
    assert decision.records[0] == BrokerRemovedRecord(node_id=1)
    assert (first(image).leader, first(image).isr) == (2, (2, 3))
    assert sorted(image.brokers) == [2, 3]
    image, _ = run(image, registration(1, "next", directory="empty"))
    assert first(image).isr == (2, 3)


def test_the_only_copy_is_not_removed_by_mistake(alone: Image) -> None:
    image, _ = status(alone, 1, OFFLINE)
    error = refused(image, RemoveBroker(node_id=1))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "t1-0" in str(error)
    image, _ = run(image, RemoveBroker(node_id=1, accepts_loss=True))
    assert sorted(image.brokers) == [2, 3]
    assert first(image).leader == -1


def test_another_directory_does_not_pass_for_the_only_copy(alone: Image) -> None:
    image, _ = status(alone, 1, OFFLINE)
    image, _ = run(image, RemoveBroker(node_id=1, accepts_loss=True))
    epoch = first(image).leader_epoch
    image, _ = run(image, registration(1, "next", directory="empty"), next_index=50)
    assert (first(image).leader, first(image).isr) == (-1, ())
    (found,) = leaderless(image, lambda topic: False, 10)
    assert found[1] == first(image), "all that are left can say what they have"
    choice = UncleanChoice(topic_id=found[1].topic_id, partition=0, leader=2, leader_epoch=epoch)
    image, _ = run(image, ElectUncleanLeaders(choices=(choice,)))
    assert (first(image).leader, first(image).isr, first(image).elr) == (2, (2,), ())


def test_what_was_given_up_before_is_given_up_at_the_next_registration(alone: Image) -> None:
    """Removals of an earlier release left the number of the broker in the in-sync set."""
    image, _ = status(alone, 1, OFFLINE)
    image = image.apply([BrokerRemovedRecord(node_id=1)])
    assert first(image).isr == (1,)
    image, _ = run(image, registration(1, "next", directory="empty"), next_index=50)
    assert (first(image).leader, first(image).isr) == (-1, ())


def test_who_may_have_most_is_waited_for(alone: Image) -> None:
    image, _ = status(alone, 1, OFFLINE)
    image, _ = run(image, RemoveBroker(node_id=1, accepts_loss=True))
    image, _ = status(image, 3, OFFLINE)
    assert leaderless(image, lambda topic: False, 10) == []
    assert len(leaderless(image, lambda topic: True, 10)) == 1
    image, _ = status(image, 3, ONLINE)
    assert len(leaderless(image, lambda topic: False, 10)) == 1


def test_who_is_not_registered_cannot_be_removed(three: Image) -> None:
    error = refused(three, RemoveBroker(node_id=9))
    assert error.code is ErrorCode.BROKER_ID_NOT_REGISTERED


# Eligible leader replicas (KIP-966): min.insync.replicas is 2.


@pytest.fixture
def careful(three: Image) -> Image:
    """t1-0 on 1, 2 and 3, of which two must be in sync."""
    how = {"assignments": {0: [1, 2, 3]}, "configs": {"min.insync.replicas": "2"}}
    return run(three, topic(1, **how))[0]


def test_who_leaves_a_set_that_is_too_small_stays_eligible(careful: Image) -> None:
    image = in_sync(careful, 1, 2)
    assert first(image).elr == (), "two are enough, so 3 may miss what is committed from now on"
    image = in_sync(image, 1)
    assert (first(image).isr, first(image).elr) == ((1,), (2,))
    image = in_sync(image, 1, 2, epochs={2: image.brokers[2].epoch})
    assert (first(image).isr, first(image).elr) == ((1, 2), ())


def test_an_eligible_replica_leads_when_nobody_in_sync_is_left(careful: Image) -> None:
    image = in_sync(careful, 1, 2)
    image, _ = status(image, 2, OFFLINE)
    assert (first(image).isr, first(image).elr) == ((1,), (2,))
    image, _ = status(image, 1, OFFLINE)
    assert first(image).leader == -1, "3 is online, and has not everything"
    image, _ = status(image, 2, ONLINE)
    partition = first(image)
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), (1,))


def test_an_eligible_replica_that_is_online_takes_over_at_once(careful: Image) -> None:
    image = in_sync(in_sync(careful, 1, 2), 1)
    image, _ = status(image, 1, OFFLINE)
    partition = first(image)
    assert (partition.leader, partition.isr, partition.elr) == (2, (2,), (1,))
    assert partition.leader_epoch == 1


@pytest.mark.parametrize(("resource", "name"), [(TOPIC, "t1"), (BROKER, "")])
def test_nobody_is_eligible_any_more_where_fewer_are_enough(
    replicated: Image, resource: str, name: str
) -> None:
    """What is acknowledged from then on is only where the in-sync set is."""

    def min_insync(count: int) -> AlterConfig:
        changes = {"min.insync.replicas": str(count)}
        return AlterConfig(resource=resource, resource_name=name, changes=changes)

    image, _ = run(replicated, min_insync(3))
    image = in_sync(image, 1)
    assert first(image).elr == (2, 3)
    image, _ = run(image, min_insync(2))
    before = first(image)
    assert before.elr == (2, 3), "one is still too few"
    after = first(run(image, min_insync(1))[0])
    assert (after.isr, after.elr) == ((1,), ())
    assert after.partition_epoch == before.partition_epoch + 1


def test_a_lower_default_counts_when_a_broker_comes_back_with_it(careful: Image) -> None:
    image = in_sync(careful, 1)
    assert first(image).elr == (2, 3)
    image, _ = run(image, registration(2, "again"), next_index=50)
    assert first(image).elr == (2, 3), "the topic asks for two"
    # As if the two had been the static default of whoever decided before.
    unset = ConfigRecord(resource=TOPIC, resource_name="t1", name="min.insync.replicas", value=None)
    image, _ = run(image.apply([unset]), registration(3, "again"), next_index=51)
    assert (first(image).isr, first(image).elr) == ((1,), ())


def test_all_brokers_have_one_min_insync(three: Image) -> None:
    changes = {"min.insync.replicas": "1"}
    error = refused(three, AlterConfig(resource=BROKER, resource_name="2", changes=changes))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "for a single broker" in str(error)
    # One that an earlier release has taken can be taken away.
    changes = {"min.insync.replicas": None}
    run(three, AlterConfig(resource=BROKER, resource_name="2", changes=changes))


def test_who_lost_its_memory_is_neither_in_sync_nor_eligible(careful: Image) -> None:
    unclean = replace(registration(2, "next"), is_clean=False)
    image, _ = run(careful, unclean, next_index=50)
    assert (first(image).isr, first(image).elr) == ((1, 3), ())
    image = in_sync(in_sync(careful, 1, 2), 1)
    image, _ = run(image, unclean, next_index=50)
    assert (first(image).isr, first(image).elr) == ((1,), ())


def test_a_leader_that_lost_its_memory_gives_way_to_who_has_not(careful: Image) -> None:
    image = in_sync(in_sync(careful, 1, 2), 1)
    image, _ = status(image, 2, OFFLINE)
    image, _ = status(image, 1, OFFLINE)
    unclean = replace(registration(1, "next"), is_clean=False)
    image, _ = run(image, unclean, next_index=50)
    assert (first(image).leader, first(image).isr) == (-1, (2,)), "2 has what 1 has lost"
    image, _ = status(image, 2, ONLINE)
    assert first(image).leader == 2


def test_who_alone_has_any_of_it_leads_with_what_it_has(alone: Image) -> None:
    image, _ = status(alone, 1, OFFLINE)
    image, _ = run(image, replace(registration(1, "next"), is_clean=False), next_index=50)
    assert (first(image).leader, first(image).isr) == (1, (1,))


def test_maintenance_leaves_an_offline_broker_offline() -> None:
    image = Image()
    for node_id in (1, 2):
        image, _ = run(image, registration(node_id))
    image, _ = run(image, SetMaintenance(node_id=2, in_maintenance=True))
    assert image.brokers[2].status == MAINTENANCE
    assert [each.node_id for each in image.placeable_brokers] == [1]
    assert run(image, SetMaintenance(node_id=2, in_maintenance=True))[1].records == ()
    image, _ = status(image, 2, OFFLINE)
    image, _ = run(image, SetMaintenance(node_id=2, in_maintenance=False))
    assert (image.brokers[2].status, image.brokers[2].in_maintenance) == (OFFLINE, False)
    image, _ = run(image, SetMaintenance(node_id=2, in_maintenance=True))
    assert (image.brokers[2].status, image.online_ids) == (OFFLINE, {1})
    image, _ = run(image, registration(2, "again"))
    assert image.brokers[2].status == MAINTENANCE
    image, _ = run(image, SetMaintenance(node_id=2, in_maintenance=False))
    assert image.brokers[2].status == ONLINE
    error = refused(image, SetMaintenance(node_id=9, in_maintenance=True))
    assert error.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def full(image: Image, node_id: int, *, is_full: bool = True) -> tuple[Image, Decision]:
    epoch = image.brokers[node_id].epoch
    return run(image, SetDiskFull(node_id=node_id, broker_epoch=epoch, is_full=is_full))


def test_a_full_broker_gives_its_leaders_away_and_nobody_waits_for_it(replicated: Image) -> None:
    image, _ = full(replicated, 1)
    partition = first(image)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2, 3), 1)
    assert (image.brokers[1].status, image.brokers[1].is_full) == (MAINTENANCE, True)
    assert full(image, 1)[1].records == []
    epochs = {1: image.brokers[1].epoch}
    with pytest.raises(AssertionError, match="INELIGIBLE_REPLICA"):
        in_sync(image, 2, 3, 1, epochs=epochs)
    image, _ = full(image, 1, is_full=False)
    assert image.brokers[1].status == ONLINE
    assert first(in_sync(image, 2, 3, 1, epochs=epochs)).isr == (1, 2, 3)


def test_a_full_broker_leads_on_what_nobody_else_has_until_somebody_has(alone: Image) -> None:
    image, _ = full(alone, 1)
    assert (first(image).leader, first(image).isr) == (1, (1,))
    image = in_sync(image, 1, 2, epochs={2: image.brokers[2].epoch})
    image, _ = full(image, 1)
    assert (first(image).leader, first(image).isr) == (2, (2,))


def test_a_full_follower_stays_eligible_where_it_is_missed(careful: Image) -> None:
    image, _ = full(in_sync(careful, 1, 2), 2)
    assert (first(image).isr, first(image).elr) == ((1,), (2,))


def test_a_full_broker_comes_back_to_what_it_was(three: Image) -> None:
    image, _ = full(three, 2)
    image, _ = status(image, 2, OFFLINE)
    back = unfence(image, 2)
    assert back is not None
    image, _ = run(image, back)
    assert (image.brokers[2].status, image.brokers[2].in_maintenance) == (MAINTENANCE, False)
    image, _ = run(image, SetMaintenance(node_id=2, in_maintenance=True))
    image, _ = full(image, 2, is_full=False)
    assert image.brokers[2].status == MAINTENANCE, "somebody asked for that"
    image, _ = run(image, SetMaintenance(node_id=2, in_maintenance=False))
    assert image.brokers[2].status == ONLINE
    stale = SetDiskFull(node_id=2, broker_epoch=1, is_full=True)
    assert refused(image, stale).code is ErrorCode.STALE_BROKER_EPOCH


# Memory.


def test_the_memory_epoch_changes_when_a_broker_comes_back_without_its_memory() -> None:
    image, _ = run(Image(), registration(1), next_index=3)
    image, _ = run(image, registration(2), next_index=4)
    assert image.memory_epoch == 0
    forgetful = replace(registration(2, "second"), lost_memory=True)
    image, _ = run(image, forgetful, next_index=9)
    assert image.memory_epoch == 9
    image, _ = run(image, registration(2, "third"), next_index=12)
    assert image.memory_epoch == 9, "a later clean start does not bring anything back"


def test_the_memory_epoch_outlives_its_broker() -> None:
    image, _ = run(Image(), registration(1), next_index=3)
    forgetful = replace(registration(2), lost_memory=True)
    image, _ = run(image, forgetful, next_index=4)
    image, _ = run(image, RemoveBroker(node_id=2), next_index=5)
    assert image.memory_epoch == 4
    assert Image().apply(image.to_records()) == image
