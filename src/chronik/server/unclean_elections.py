"""Leaders for partitions whose committed records nobody online is known to have.

Such a leader may cost records that were acknowledged. So that it costs as few as possible, every
replica that is online is asked where its log ends, and the greatest (last epoch, end offset) wins
(DESIGN, rule 20). Any node can ask; the command that follows names the leader epoch that was seen,
and is refused if there was an election meanwhile.

Invariant: while a replica is taken for online and does not answer, nobody is elected: it may be
the one that has most.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from chronik.metadata.commands import Elected, ElectUncleanLeaders, UncleanChoice
from chronik.metadata.elections import greatest, has_clean_candidate
from chronik.metadata.image import Topic, id_bytes
from chronik.metadata.partitions import choose_leader
from chronik.metadata.records import PartitionRecord
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.replicas import Replicas

logger = logging.getLogger(__name__)

LOG_ENDS: Final = "log-ends"
ASK_TIMEOUT_S: Final = 2.0  # less than a session: one that is silent so long is soon offline

Where = tuple[str, int]  # topic id and partition
LogEnd = tuple[int, int]  # last epoch and end offset
_ASKED: Final = msgspec.json.Decoder(list[Where])
_TOLD: Final = msgspec.json.Decoder(list[LogEnd | None])


class UncleanElections:
    """Asks for log ends, answers with its own, and has the greatest elected."""

    def __init__(self, metadata: MetadataRuntime, replicas: Replicas) -> None:
        self._metadata = metadata
        self._replicas = replicas

    async def on_log_ends(self, body: bytes) -> bytes:
        """Another node asks where the logs of partitions end here."""
        return msgspec.json.encode(await self._own_log_ends(_ASKED.decode(body)))

    async def _own_log_ends(self, asked: Sequence[Where]) -> list[LogEnd | None]:
        return [await self._own_log_end(topic_id, index) for topic_id, index in asked]

    async def _own_log_end(self, topic_id: str, index: int) -> LogEnd | None:
        """Where a log ends, or None if it is not there or cannot be read."""
        partition = self._replicas.find_followed((id_bytes(topic_id), index))
        if partition is None:
            return None
        await self._replicas.load(partition)
        if partition.failure is not None:
            return None
        epochs = partition.log.leader_epochs
        return (epochs[-1][0] if epochs else -1), partition.log.end_offset

    async def elect(self, partitions: Sequence[tuple[Topic, PartitionRecord]]) -> list[Elected]:
        """Elect a leader for each of these, which have none; what became of each."""
        told = await self._ask(partitions)
        elected: list[Elected] = []
        choices: list[UncleanChoice] = []
        for topic, partition in partitions:
            leader, reason = self._choose(partition, told)
            if leader is None:
                code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
                elected.append(Elected(partition.topic_id, partition.partition, code, reason))
                continue
            where = f"{topic.name}-{partition.partition}"
            logger.warning("unclean election", extra={"partition": where, "leader": leader})
            choices.append(
                UncleanChoice(
                    topic_id=partition.topic_id,
                    partition=partition.partition,
                    leader=leader,
                    leader_epoch=partition.leader_epoch,
                )
            )
        if choices:
            elected += await self._metadata.submit(ElectUncleanLeaders(choices=tuple(choices)))
        return elected

    def _choose(
        self, partition: PartitionRecord, told: dict[int, dict[Where, LogEnd | None]]
    ) -> tuple[int | None, str]:
        image = self._metadata.image
        if has_clean_candidate(image, partition):
            return choose_leader(image, (*partition.isr, *partition.elr)), ""
        online = [each for each in partition.replicas if each in image.online_ids]
        silent = [each for each in online if each not in told]
        if silent:
            return None, f"Node {silent[0]} has not told how much it has."
        where = (partition.topic_id, partition.partition)
        ends = [(each, end) for each in online if (end := told[each].get(where)) is not None]
        return greatest(partition, ends), "No replica is online that can be read."

    async def _ask(
        self, partitions: Sequence[tuple[Topic, PartitionRecord]]
    ) -> dict[int, dict[Where, LogEnd | None]]:
        """What each node says that is online and holds some of these."""
        online = self._metadata.image.online_ids
        asked: dict[int, list[Where]] = {}
        for _, partition in partitions:
            for node_id in online.intersection(partition.replicas):
                where = (partition.topic_id, partition.partition)
                asked.setdefault(node_id, []).append(where)
        told: dict[int, dict[Where, LogEnd | None]] = {}

        async def ask(node_id: int) -> None:
            try:
                ends = await self._log_ends_of(node_id, asked[node_id])
            except (KafkaError, ConnectionError, TimeoutError, msgspec.MsgspecError) as error:
                extra = {"node": node_id, "reason": str(error)}
                logger.warning("log ends not known", extra=extra)
            else:
                told[node_id] = dict(zip(asked[node_id], ends, strict=True))

        await asyncio.gather(*map(ask, asked))
        return told

    async def _log_ends_of(self, node_id: int, asked: Sequence[Where]) -> list[LogEnd | None]:
        if node_id == self._metadata.node_id:
            return await self._own_log_ends(asked)
        body = msgspec.json.encode(asked)
        return _TOLD.decode(await self._metadata.call(node_id, LOG_ENDS, body, ASK_TIMEOUT_S))
