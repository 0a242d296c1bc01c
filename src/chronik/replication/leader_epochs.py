"""What a partition says about leader epochs: who is out of date, and where an epoch ends."""

from chronik.model import NO_LEADER_EPOCH
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.partition import Partition


def check_leader_epoch(partition: Partition, current_leader_epoch: int) -> None:
    """Raise unless the asker's idea of the leader epoch is ours, or it has none (-1)."""
    if current_leader_epoch in (-1, partition.leader_epoch):
        return
    if current_leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)


def end_offset_for_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """The largest epoch with records up to the asked one, and its end; (-1, -1) if unknown.

    An epoch in which nothing was written is not in the log, but it was ours all the same.
    """
    log = partition.log
    epochs = log.leader_epochs
    last = epochs[-1][0] if epochs else NO_LEADER_EPOCH
    if last < epoch <= partition.leader_epoch:
        return (last if epochs else epoch), log.end_offset
    return log.end_offset_for_epoch(epoch)


def last_epoch(partition: Partition) -> int:
    """The epoch of the last record, or the current one while there is none."""
    epochs = partition.log.leader_epochs
    return epochs[-1][0] if epochs else partition.leader_epoch
