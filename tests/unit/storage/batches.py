"""Batches and logs for storage tests."""

from chronik.protocol.batch import BatchHeader, read_header, split
from chronik.protocol.records import BatchBuilder
from chronik.storage.disk import Disk
from chronik.storage.log import Log, LogConfig


def make_batch(
    base_offset: int,
    value: bytes = b"value",
    *,
    count: int = 1,
    timestamp: int = 1000,
    epoch: int = 0,
    key: bytes | None = None,
    **header: int,
) -> bytes:
    builder = BatchBuilder(base_offset=base_offset)
    for _ in range(count):
        builder.append(timestamp, key, value)
    return builder.build(leader_epoch=epoch, **header)


def append(log: Log, batch: bytes, now_ms: int = 1000, *, born: bool = True) -> BatchHeader:
    """Append a batch. A log's first one is synced, as by a commit round: before it, none rolls."""
    header = read_header(batch)
    first = log.end_offset == 0
    log.append(header, [batch[:16], batch[16:]], now_ms)
    if first and born:
        log.sync()
    return header


def fill(log: Log, count: int, **options: int) -> list[bytes]:
    """Append small batches of different sizes; returns their bytes."""
    made = []
    for i in range(count):
        batch = make_batch(log.end_offset, b"%d" % i * (1 + i % 7 * 10), count=1 + i % 3, **options)
        append(log, batch)
        made.append(batch)
    return made


def read_all(log: Log, from_offset: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch of the log, read as a consumer does."""
    offset = log.log_start_offset if from_offset is None else from_offset
    found: list[bytes] = []
    while offset < log.end_offset:
        data = log.read(offset, max_bytes, log.end_offset, nowait=False)
        if not data:
            break
        batches = split(data)
        found += [bytes(batch.data) for batch in batches]
        offset = batches[-1].header.next_offset
    return found


def reopened(disk: Disk, directory: str, config: LogConfig | None = None) -> Log:
    log = Log(disk, directory, config or LogConfig())
    log.load()
    return log
