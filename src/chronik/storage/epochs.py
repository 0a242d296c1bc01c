"""The leader epochs of a log: which epoch began at which offset (KIP-101, KIP-279).

Pure list arithmetic over `(epoch, start offset)` pairs that grow in both columns.
"""

from chronik.model import NO_LEADER_EPOCH

Epochs = list[tuple[int, int]]


def note_epoch(epochs: Epochs, epoch: int, offset: int) -> None:
    """Take the epoch of a batch at an offset."""
    if epoch > (epochs[-1][0] if epochs else NO_LEADER_EPOCH):
        epochs.append((epoch, offset))


def end_offset_for_epoch(epochs: Epochs, epoch: int, end_offset: int) -> tuple[int, int]:
    """Where the largest known epoch up to the asked one ends; (-1, -1) if that is unknown."""
    if epoch < 0 or not epochs or epoch > epochs[-1][0]:
        return -1, -1
    found = epoch  # Below all known epochs: the asked one, ending where the first begins.
    for known, start_offset in epochs:
        if known > epoch:
            return found, start_offset
        found = known
    return found, end_offset


def truncate_from_end(epochs: Epochs, end_offset: int) -> None:
    """Forget epochs that begin at or after the end of a truncated log."""
    while epochs and epochs[-1][1] >= end_offset:
        epochs.pop()


def truncate_from_start(epochs: Epochs, log_start_offset: int) -> None:
    """Forget epochs that end at or before the log's start; the one that covers it begins there."""
    while len(epochs) > 1 and epochs[1][1] <= log_start_offset:
        epochs.pop(0)
    if epochs and epochs[0][1] < log_start_offset:
        epochs[0] = (epochs[0][0], log_start_offset)
