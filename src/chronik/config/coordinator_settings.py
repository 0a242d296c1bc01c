"""The Kafka settings of a broker that are about groups and transactions.

Defaults are Kafka's, unless a comment says why not. Of the replication factors and the least
in-sync count of the internal topics fewer nodes need fewer. All of them change only at the start.
"""

from typing import Final

from chronik.config.definitions import INT_MAX, Definition, Kind
from chronik.config.limits import PARTITIONS_PER_TOPIC_MAX

COORDINATOR_SETTINGS: Final = (
    Definition(
        name="group.consumer.assignors",
        kind=Kind.LIST,
        default=("uniform", "range"),
        choices=("uniform", "range"),
        documentation="The assignors of consumer groups; the first is used where members ask for "
        "none.",
    ),
    Definition(
        name="group.consumer.heartbeat.interval.ms",
        kind=Kind.INT,
        default=5_000,
        least=1,
        documentation="How often members of a consumer group are told to send heartbeats.",
    ),
    Definition(
        name="group.consumer.max.heartbeat.interval.ms",
        kind=Kind.INT,
        default=15_000,
        least=1,
        documentation="The longest heartbeat interval that a consumer group may be given. Unless "
        "it is set, it is also at least group.consumer.heartbeat.interval.ms.",
    ),
    Definition(
        name="group.consumer.max.session.timeout.ms",
        kind=Kind.INT,
        default=60_000,
        least=1,
        documentation="The longest session timeout that a consumer group may be given. Unless it "
        "is set, it is also at least group.consumer.session.timeout.ms.",
    ),
    Definition(
        name="group.consumer.max.size",
        kind=Kind.INT,
        default=INT_MAX,
        least=1,
        documentation="How many members a consumer group may have.",
    ),
    Definition(
        name="group.consumer.migration.policy",
        kind=Kind.STRING,
        default="bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        ignores_case=True,
        documentation="Whether a classic group of consumers becomes a consumer group when a "
        "member asks for it (upgrade), and a classic one again when its last such member leaves "
        "(downgrade).",
    ),
    Definition(
        name="group.consumer.min.heartbeat.interval.ms",
        kind=Kind.INT,
        default=5_000,
        least=1,
        documentation="The shortest heartbeat interval that a consumer group may be given. Unless "
        "it is set, it is also at most group.consumer.heartbeat.interval.ms.",
    ),
    Definition(
        name="group.consumer.min.session.timeout.ms",
        kind=Kind.INT,
        default=45_000,
        least=1,
        documentation="The shortest session timeout that a consumer group may be given. Unless it "
        "is set, it is also at most group.consumer.session.timeout.ms.",
    ),
    Definition(
        name="group.consumer.regex.refresh.interval.ms",
        kind=Kind.INT,
        default=600_000,
        least=10_000,
        documentation="How often the topics of a subscription by regular expression are looked "
        "up again.",
    ),
    Definition(
        name="group.consumer.session.timeout.ms",
        kind=Kind.INT,
        default=45_000,
        least=1,
        documentation="A member of a consumer group that sent no heartbeat for this long is "
        "removed.",
    ),
    Definition(
        name="group.coordinator.rebalance.protocols",
        kind=Kind.LIST,
        default=("classic", "consumer"),
        choices=("classic", "consumer"),
        documentation="The group protocols that are served.",
    ),
    Definition(
        name="group.initial.rebalance.delay.ms",
        kind=Kind.INT,
        default=3_000,
        least=0,
        documentation="How long the first rebalance of an empty classic group waits for more "
        "members.",
    ),
    Definition(
        name="group.max.session.timeout.ms",
        kind=Kind.INT,
        default=1_800_000,
        least=1,
        documentation="The longest session timeout that a classic member may ask for.",
    ),
    Definition(
        name="group.max.size",
        kind=Kind.INT,
        default=INT_MAX,
        least=1,
        documentation="How many members a classic group may have.",
    ),
    Definition(
        name="group.min.session.timeout.ms",
        kind=Kind.INT,
        default=6_000,
        least=1,
        documentation="The shortest session timeout that a classic member may ask for.",
    ),
    Definition(
        name="offset.metadata.max.bytes",
        kind=Kind.INT,
        default=4_096,
        least=0,
        documentation="The longest text that may be committed with an offset.",
    ),
    Definition(
        name="offsets.retention.check.interval.ms",
        kind=Kind.LONG,
        default=600_000,
        least=1,
        documentation="How often committed offsets are checked against their retention.",
    ),
    Definition(
        name="offsets.retention.minutes",
        kind=Kind.INT,
        default=10_080,
        least=1,
        documentation="How long the offsets of an empty group, or of a topic that a group does "
        "not read any more, are kept.",
    ),
    Definition(
        name="offsets.topic.num.partitions",
        kind=Kind.INT,
        default=50,
        least=1,
        most=PARTITIONS_PER_TOPIC_MAX,
        documentation="The partition count of __consumer_offsets when it is created.",
    ),
    Definition(
        name="offsets.topic.replication.factor",
        kind=Kind.SHORT,
        default=3,
        least=1,
        documentation="The replication factor of __consumer_offsets: at most as many as there are "
        "brokers, and raised when there are more.",
    ),
    Definition(
        name="offsets.topic.segment.bytes",
        kind=Kind.INT,
        default=104_857_600,
        least=14,
        documentation="The segment size of __consumer_offsets when it is created.",
    ),
    Definition(
        name="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        kind=Kind.INT,
        # Kafka looks every 10 s. A look costs little here, where deadlines are kept in order, and
        # readers of committed data wait for it.
        default=100,
        least=1,
        documentation="How often open transactions are checked against their timeout.",
    ),
    Definition(
        name="transaction.max.timeout.ms",
        kind=Kind.INT,
        default=900_000,
        least=1,
        documentation="The longest transaction timeout that a producer may ask for.",
    ),
    Definition(
        name="transaction.partition.verification.enable",
        kind=Kind.BOOLEAN,
        default=True,
        documentation="Whether a partition asks the coordinator if a transaction is open before "
        "it takes the first records of it.",
    ),
    Definition(
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
        kind=Kind.INT,
        default=3_600_000,
        least=1,
        documentation="How often transactional ids are checked against their expiration.",
    ),
    Definition(
        name="transaction.state.log.min.isr",
        kind=Kind.INT,
        default=2,
        least=1,
        documentation="The min.insync.replicas of __transaction_state when it is created.",
    ),
    Definition(
        name="transaction.state.log.num.partitions",
        kind=Kind.INT,
        default=50,
        least=1,
        most=PARTITIONS_PER_TOPIC_MAX,
        documentation="The partition count of __transaction_state when it is created.",
    ),
    Definition(
        name="transaction.state.log.replication.factor",
        kind=Kind.SHORT,
        default=3,
        least=1,
        documentation="The replication factor of __transaction_state: at most as many as there are "
        "brokers, and raised when there are more.",
    ),
    Definition(
        name="transaction.state.log.segment.bytes",
        kind=Kind.INT,
        default=104_857_600,
        least=14,
        documentation="The segment size of __transaction_state when it is created.",
    ),
    Definition(
        name="transactional.id.expiration.ms",
        kind=Kind.INT,
        default=604_800_000,
        least=1,
        documentation="How long a transactional id without an open transaction is remembered.",
    ),
)
