"""What Produce and TxnOffsetCommit ask of a transaction's coordinator before they write.

A partition takes a batch that opens a transaction only if the coordinator knows the partition to
be in it: else nobody would ever write the marker that ends it (KIP-890). Clients of transaction
version 2 leave the adding to us; for older ones, which add partitions themselves, it is verified.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from chronik.coordinator.effects import ProducerStamp
from chronik.coordinator.transactions.shard import Outcome, Verified
from chronik.metadata.records import NO_LEADER
from chronik.model import TopicPartition
from chronik.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.schema import Buffer
from chronik.replication.partition import Partition
from chronik.replication.verification import Guard
from chronik.server.context import Node

Partitions = frozenset[TopicPartition]

IMPLICIT_TRANSACTION_VERSION: Final = 2  # from here on partitions are added by writing to them
IMPLICIT_PRODUCE_VERSION: Final = 12  # what clients of that version send
ABORTABLE_PRODUCE_VERSION: Final = 11
VERIFY_ONLY: Final = 0  # instead of a transaction version
TRANSACTION_CALL: Final = "transaction"
REMOTE_TIMEOUT_S: Final = 5.0  # a producer asks again; it waits longer than this by default
VERIFICATION: Final = "transaction.partition.verification.enable"
CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
COORDINATOR_ERRORS: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


async def add_partitions(
    node: Node,
    transactional_id: str,
    stamp: ProducerStamp,
    partitions: Partitions,
    transaction_version: int,
) -> ErrorCode:
    """Put partitions into a producer's transaction, wherever that is coordinated."""
    leader_id = await _coordinator_of(node, transactional_id)
    if leader_id != node.node_id:
        asked = _Asked(transactional_id, stamp, sorted(partitions), transaction_version)
        return (await _ask_remote(node, leader_id, asked)).error_code
    outcome: Outcome = await node.transactions.ask(
        transactional_id,
        lambda shard, token, now_ms: shard.add_partitions(
            transactional_id, stamp, partitions, transaction_version, token, now_ms
        ),
        Outcome,
    )
    return outcome.error_code


async def verify_partitions(
    node: Node, transactional_id: str, stamp: ProducerStamp, partitions: Partitions
) -> Verified:
    """Say which partitions are not in a producer's transaction."""
    leader_id = await _coordinator_of(node, transactional_id)
    if leader_id != node.node_id:
        asked = _Asked(transactional_id, stamp, sorted(partitions), VERIFY_ONLY)
        return await _ask_remote(node, leader_id, asked)
    verified: Verified = await node.transactions.ask(
        transactional_id,
        lambda shard, token, now_ms: shard.verify_partitions(
            transactional_id, stamp, partitions, token, now_ms
        ),
        lambda error_code: Verified(error_code, partitions),
    )
    return verified


# Between nodes.


class _Asked(msgspec.Struct, frozen=True):
    """What a partition's leader asks a transaction's coordinator."""

    transactional_id: str
    stamp: ProducerStamp
    partitions: list[TopicPartition]
    transaction_version: int  # VERIFY_ONLY asks whether they are in it


class _Told(msgspec.Struct, frozen=True):
    error_code: int
    missing: list[TopicPartition]


async def _coordinator_of(node: Node, transactional_id: str) -> int:
    """The node that coordinates a transactional id, or this one, which then says what is wrong."""
    topic = node.transactions.topic
    if topic is None:
        return node.node_id
    index = node.transactions.partition_of(transactional_id, topic)
    leader_id = topic.partitions[index].leader
    return node.node_id if leader_id == NO_LEADER else leader_id


async def _ask_remote(node: Node, leader_id: int, asked: _Asked) -> Verified:
    partitions = frozenset(asked.partitions)
    try:
        body = await node.metadata.call(
            leader_id, TRANSACTION_CALL, msgspec.json.encode(asked), REMOTE_TIMEOUT_S
        )
    except (KafkaError, ConnectionError, TimeoutError):
        return Verified(ErrorCode.COORDINATOR_NOT_AVAILABLE, partitions)
    told = msgspec.json.decode(body, type=_Told)
    missing = frozenset(TopicPartition(*each) for each in told.missing)
    return Verified(ErrorCode(told.error_code), missing)


async def on_transaction_call(node: Node, body: bytes) -> bytes:
    """Another node's leader asks about a transaction that this one coordinates."""
    asked = msgspec.json.decode(body, type=_Asked)
    partitions = frozenset(TopicPartition(*each) for each in asked.partitions)
    stamp = ProducerStamp(*asked.stamp)
    if asked.transaction_version == VERIFY_ONLY:
        verified = await verify_partitions(node, asked.transactional_id, stamp, partitions)
    else:
        error_code = await add_partitions(
            node, asked.transactional_id, stamp, partitions, asked.transaction_version
        )
        verified = Verified(error_code, partitions if error_code else frozenset())
    return msgspec.json.encode(_Told(verified.error_code, sorted(verified.missing)))


class Guards:
    """What a transaction's coordinator said about the partitions of one request."""

    __slots__ = ("_guards", "_refused", "verify")

    def __init__(self, verify: bool = True) -> None:
        self.verify = verify  # no batch opens a transaction without a guard
        self._guards: dict[Partition, Guard] = {}
        self._refused: dict[Partition, ErrorCode] = {}

    def begin(self, partition: Partition, header: BatchHeader, bumps_epoch: bool) -> None:
        """Take a guard before the coordinator is asked."""
        self._guards[partition] = partition.producers.begin_verification(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            supports_epoch_bump=bumps_epoch,
        )

    def refuse(self, partition: Partition, error_code: ErrorCode) -> None:
        self._refused[partition] = error_code

    def of(self, partition: Partition) -> Guard | None:
        """The guard for an append, or the coordinator's error."""
        error_code = self._refused.get(partition)
        if error_code is not None:
            message = f"{partition} is not in the transaction"
            raise KafkaError(error_code, message)
        return self._guards.get(partition)


NO_GUARDS: Final = Guards()


def opens(partition: Partition, records: Buffer) -> bool:
    """Whether this batch would open a transaction in a partition."""
    header = _transactional_header(records)
    return header is not None and partition.producers.needs_verification(
        header.producer_id, header.producer_epoch
    )


def _transactional_header(records: Buffer) -> BatchHeader | None:
    if len(records) < HEADER_SIZE:
        return None  # The append says what is wrong with it.
    header = read_header(records)
    return header if header.is_transactional else None


async def guarded(
    node: Node,
    transactional_id: str,
    writes: Sequence[tuple[Partition, Buffer]],
    version: int,
) -> Guards:
    """Ask the coordinator about those partitions of a Produce request that it opens."""
    adds = version >= IMPLICIT_PRODUCE_VERSION
    guards = Guards(adds or node.broker_config().flag(VERIFICATION))
    asked: dict[ProducerStamp, dict[TopicPartition, Partition]] = {}
    for partition, records in writes:
        header = _transactional_header(records)
        if header is not None and guards.verify and opens(partition, records):
            guards.begin(partition, header, adds)
            stamp = ProducerStamp(header.producer_id, header.producer_epoch)
            place = TopicPartition(partition.name, partition.index)
            asked.setdefault(stamp, {})[place] = partition
    for stamp, places in asked.items():
        refused = await admit(
            node,
            transactional_id,
            stamp,
            frozenset(places),
            adds=adds,
            knows_abortable=version >= ABORTABLE_PRODUCE_VERSION,
        )
        for place, error_code in refused.items():
            guards.refuse(places[place], _for_producer(error_code, adds))
    return guards


def _for_producer(error_code: ErrorCode, adds: bool) -> ErrorCode:
    """Producers do not expect a coordinator's passing troubles, and retry on this one."""
    if error_code in COORDINATOR_ERRORS or (error_code is CONCURRENT and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error_code


async def admit(
    node: Node,
    transactional_id: str,
    stamp: ProducerStamp,
    partitions: Partitions,
    *,
    adds: bool,
    knows_abortable: bool,
) -> dict[TopicPartition, ErrorCode]:
    """The partitions that may not be written to in this transaction, and why.

    `adds`: the client leaves it to us to add them. `knows_abortable`: it understands
    TRANSACTION_ABORTABLE.
    """
    if adds:
        version = IMPLICIT_TRANSACTION_VERSION
        error_code = await add_partitions(node, transactional_id, stamp, partitions, version)
        missing = partitions if error_code else frozenset()
    else:
        error_code, missing = await verify_partitions(node, transactional_id, stamp, partitions)
        if missing and not error_code:
            error_code = ErrorCode.TRANSACTION_ABORTABLE
    return dict.fromkeys(missing, _for_writer(error_code, knows_abortable))


def _for_writer(error_code: ErrorCode, knows_abortable: bool) -> ErrorCode:
    """The coordinator's error in the words that a writer's client understands."""
    if error_code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error_code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error_code
