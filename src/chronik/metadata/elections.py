"""Elections that somebody asks for: the preferred leader, or one that may have lost records.

The preferred leader of a partition is its first replica. To let it lead is a matter of even load,
so it is done only where it is in sync and online. An unclean election is for a partition that has
no leader, because nobody who is online has all of its committed records: whoever asks has compared
the logs of the replicas that are (DESIGN, rule 20), and names the one that has most.

All leaders of one command are one record, except those of unclean elections, which are rare.

See KIP-460 and Kafka's ReplicationControlManager for the error codes.
"""

from collections.abc import Callable, Iterable, Iterator

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import (
    Elected,
    ElectLeaders,
    ElectUncleanLeaders,
    UncleanChoice,
)
from chronik.metadata.decision import Decision
from chronik.metadata.image import TOPIC, Image, Topic
from chronik.metadata.partitions import (
    changed,
    check_leader_epoch,
    choose_leader,
    completion,
    find,
)
from chronik.metadata.records import (
    NO_LEADER,
    BrokerStatus,
    PartitionLeadersRecord,
    PartitionRecord,
    Record,
)
from chronik.protocol.errors import ErrorCode, KafkaError

# Preferred leaders.


def elect_leaders(image: Image, command: ElectLeaders) -> Decision:
    chosen: dict[str, dict[int, int]] = {}
    elected: list[Elected] = []
    is_all = command.partitions is None
    for topic_id, index in _all(image) if is_all else _named(command):
        try:
            _, partition = find(image, topic_id, index)
            _check_preferred(image, partition)
        except KafkaError as error:
            if not is_all or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                elected.append(Elected(topic_id, index, error.code, error.message))
        else:
            chosen.setdefault(topic_id, {})[index] = partition.replicas[0]
            elected.append(Elected(topic_id, index, ErrorCode.NONE))
    return Decision(_leaders(chosen), tuple(elected))


def _all(image: Image) -> Iterator[tuple[str, int]]:
    for partition in image.partitions():
        yield partition.topic_id, partition.partition


def _named(command: ElectLeaders) -> Iterator[tuple[str, int]]:
    for topic_id, indexes in dict(command.partitions or ()).items():
        for index in dict.fromkeys(indexes):
            yield topic_id, index


def _check_preferred(image: Image, partition: PartitionRecord) -> None:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for partition.")
    if not _can_be_preferred(image, partition):
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {preferred} is not in sync or not online; in sync are "
            f"{list(partition.isr)}.",
        )


def _can_be_preferred(image: Image, partition: PartitionRecord) -> bool:
    preferred = partition.replicas[0]
    broker = image.brokers.get(preferred)
    is_online = broker is not None and broker.status == BrokerStatus.ONLINE
    return is_online and preferred in partition.isr


def imbalanced(image: Image, count_max: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Partitions whose preferred replica could lead and does not, by topic id; not too many."""
    found: dict[str, list[int]] = {}
    count = 0
    for partition in image.partitions():
        if partition.leader in (partition.replicas[0], NO_LEADER):
            continue
        if _can_be_preferred(image, partition):
            found.setdefault(partition.topic_id, []).append(partition.partition)
            count += 1
            if count >= count_max:
                break
    return tuple((topic_id, tuple(indexes)) for topic_id, indexes in found.items())


def _leaders(chosen: dict[str, dict[int, int]]) -> tuple[Record, ...]:
    if not chosen:
        return ()
    record = PartitionLeadersRecord(
        topic_ids=tuple(chosen),
        partitions=tuple(tuple(leaders) for leaders in chosen.values()),
        leaders=tuple(tuple(leaders.values()) for leaders in chosen.values()),
    )
    return (record,)


# Unclean ones.


def elect_unclean_leaders(image: Image, command: ElectUncleanLeaders) -> Decision:
    records: list[Record] = []
    elected: list[Elected] = []
    for choice in {(each.topic_id, each.partition): each for each in command.choices}.values():
        where = (choice.topic_id, choice.partition)
        try:
            records.append(_unclean(image, choice))
        except KafkaError as error:
            elected.append(Elected(*where, error.code, error.message))
        else:
            elected.append(Elected(*where, ErrorCode.NONE))
    return Decision(records, tuple(elected))


def _unclean(image: Image, choice: UncleanChoice) -> Record:
    _, partition = find(image, choice.topic_id, choice.partition)
    if partition.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
    check_leader_epoch(partition, choice.leader_epoch)
    leader = choice.leader
    if leader not in partition.replicas or leader not in image.online_ids:
        raise _nobody(partition)
    if has_clean_candidate(image, partition) and leader not in (*partition.isr, *partition.elr):
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            "Somebody else has all that is committed, and is online.",
        )
    ended = completion(image, partition, (leader,))
    record = changed(partition, **(ended or {"leader": leader, "isr": (leader,), "elr": ()}))
    assert record is not None
    return record


def _nobody(partition: PartitionRecord) -> KafkaError:
    return KafkaError(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        f"None of the replicas {list(partition.replicas)} is online and has told what it has.",
    )


def has_clean_candidate(image: Image, partition: PartitionRecord) -> bool:
    """Whether somebody is online who is in sync or eligible."""
    return choose_leader(image, (*partition.isr, *partition.elr)) != NO_LEADER


def greatest(
    partition: PartitionRecord, log_ends: Iterable[tuple[int, tuple[int, int]]]
) -> int | None:
    """Of these replicas the one whose (last epoch, end offset) is greatest, the first of equals."""
    ends = dict(log_ends)
    candidates = [each for each in partition.replicas if each in ends]
    return max(candidates, key=lambda each: ends[each]) if candidates else None


def leaderless(
    image: Image, is_wanted: Callable[[Topic], bool], count_max: int
) -> list[tuple[Topic, PartitionRecord]]:
    """Partitions without a leader of which some replica is online; not too many.

    Of topics that are not wanted only those whose data was given up by force, once all of the
    replicas that are left can say how much they have.
    """
    found = []
    for topic in image.topics.values():
        waiting = [
            each
            for each in topic.partitions
            if each.leader == NO_LEADER and not image.online_ids.isdisjoint(each.replicas)
        ]
        if waiting and not is_wanted(topic):
            waiting = [each for each in waiting if not each.isr and _all_online(image, each)]
        found += [(topic, each) for each in waiting]
        if len(found) >= count_max:
            break
    return found[:count_max]


def _all_online(image: Image, partition: PartitionRecord) -> bool:
    """Whether none of the replicas is on a broker that may come back."""
    return image.online_ids.issuperset(each for each in partition.replicas if each in image.brokers)


def allows_unclean(image: Image, config: BrokerConfig) -> Callable[[Topic], bool]:
    """Whether a topic would rather lose records than have no leader."""
    name = "unclean.leader.election.enable"
    default = config.flag(name)

    def of(topic: Topic) -> bool:
        value = image.config(TOPIC, topic.name).get(name)
        return default if value is None else value == "true"

    return of
