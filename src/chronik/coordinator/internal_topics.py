"""The topics that coordinators keep their state in: names, how they are created, how they grow.

They are often created when there is one node. When there are more they get the replicas that they
would have got then.
"""

import uuid
from typing import Final

from chronik.assignments import filled
from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import CreateTopic, Reassignment, ReassignPartitions
from chronik.metadata.image import Image, id_text
from chronik.model import TopicPartition

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL_TOPICS: Final = (CONSUMER_OFFSETS, TRANSACTION_STATE)

_PREFIX: Final = {CONSUMER_OFFSETS: "offsets.topic", TRANSACTION_STATE: "transaction.state.log"}


def creation_of(name: str, config: BrokerConfig, broker_count: int) -> CreateTopic:
    """The command that creates an internal topic as the settings want it, and brokers allow."""
    prefix = _PREFIX[name]
    configs: dict[str, str | None] = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.integer(f"{prefix}.segment.bytes")),
    }
    if name == TRANSACTION_STATE:
        configs["min.insync.replicas"] = str(config.integer(f"{prefix}.min.isr"))
        configs["unclean.leader.election.enable"] = "false"
    return CreateTopic(
        name=name,
        topic_id=id_text(uuid.uuid4().bytes),
        partition_count=config.integer(f"{prefix}.num.partitions"),
        replication_factor=min(config.integer(f"{prefix}.replication.factor"), broker_count),
        configs=configs,
    )


def wanted_factors(config: BrokerConfig) -> list[tuple[str, int]]:
    """The replication factor that each internal topic has once there are enough brokers."""
    return [
        (name, config.integer(f"{_PREFIX[name]}.replication.factor")) for name in INTERNAL_TOPICS
    ]


def raised(image: Image, config: BrokerConfig) -> ReassignPartitions | None:
    """The command that gives internal topics the replicas that there are brokers for now.

    Who is in maintenance gets none. What moves already is left alone.
    """
    racks = {each.node_id: each.rack for each in image.placeable_brokers}
    found: list[Reassignment] = []
    for name, factor in wanted_factors(config):
        topic = image.topics.get(name)
        if topic is None:
            continue
        factor = min(factor, len(racks))
        current = {
            TopicPartition(name, each.partition): each.replicas
            for each in topic.partitions
            if not each.is_moving
        }
        found += (
            Reassignment(
                topic_id=topic.record.topic_id, partition=place.partition, replicas=replicas
            )
            for place, replicas in filled(current, racks, factor).items()
        )
    return ReassignPartitions(reassignments=tuple(found)) if found else None
