"""The topics that coordinators keep their state in: names, and how they are created."""

import uuid
from typing import Final

from chronik.config.effective import BrokerConfig
from chronik.metadata.commands import CreateTopic
from chronik.metadata.image import id_text

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL_TOPICS: Final = (CONSUMER_OFFSETS, TRANSACTION_STATE)

_PREFIX: Final = {CONSUMER_OFFSETS: "offsets.topic", TRANSACTION_STATE: "transaction.state.log"}


def creation_of(name: str, config: BrokerConfig) -> CreateTopic:
    """The command that creates an internal topic as the broker's settings want it."""
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
        replication_factor=config.integer(f"{prefix}.replication.factor"),
        configs=configs,
    )
