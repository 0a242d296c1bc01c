"""Properties of recovery: prefixes, flipped bits, garbage in indexes."""

from functools import cache

import pytest
from batches import append, fill, make_batch, read_all, reopened
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.batch import HEADER_SIZE, read_header
from chronik.storage.errors import CorruptLog
from chronik.storage.log import Log, LogConfig
from chronik.storage.memory import MemoryDisk

DIRECTORY = "/data/topics/orders.id/0"
ONE = LogConfig(index_interval_bytes=150)
MANY = LogConfig(segment_bytes=700, index_interval_bytes=150)
BATCHES = 12


@cache
def stored(config: LogConfig, closed: bool) -> tuple[dict[str, bytes], tuple[bytes, ...]]:
    """The files of a log and the batches in it."""
    disk = MemoryDisk()
    log = Log(disk, DIRECTORY, config)
    made = fill(log, BATCHES, epoch=3)
    if closed:
        log.close()
    return {path: bytes(content) for path, content in disk._files.items()}, tuple(made)


def disk_with(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    for path, content in files.items():
        disk.write(path, content)
    return disk


def segment_path(files: dict[str, bytes], n: int = 0) -> str:
    return sorted(path for path in files if path.endswith(".log"))[n]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_prefix_of_a_segment_recovers_to_a_prefix_of_its_batches(data: st.DataObject) -> None:
    files, made = stored(ONE, closed=False)
    path = segment_path(files)
    size = data.draw(st.integers(0, len(files[path])))
    log = reopened(disk_with(files | {path: files[path][:size]}), DIRECTORY, ONE)
    found = read_all(log)
    assert found == list(made[: len(found)])
    # Nothing that is whole is cut.
    whole = sum(map(len, made[: len(found) + 1]))
    assert len(found) == len(made) or whole > size


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_garbage_after_a_prefix_is_cut(data: st.DataObject) -> None:
    files, made = stored(ONE, closed=False)
    path = segment_path(files)
    size = data.draw(st.integers(0, len(files[path])))
    garbage = data.draw(st.binary(max_size=200))
    log = reopened(disk_with(files | {path: files[path][:size] + garbage}), DIRECTORY, ONE)
    found = read_all(log)
    assert found == list(made[: len(found)])


@pytest.mark.parametrize("config", [ONE, MANY], ids=["one-segment", "many-segments"])
@pytest.mark.parametrize("closed", [True, False])
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_flipped_bit_is_never_served(
    config: LogConfig, closed: bool, data: st.DataObject
) -> None:
    files, made = stored(config, closed)
    path = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[path])
    if not content:
        return
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    disk = disk_with(files | {path: bytes(content)})
    try:
        log = reopened(disk, DIRECTORY, config)
        found = read_all(log)
    except CorruptLog:
        return
    expected = list(made)
    if path.endswith(".log") and not closed:
        expected = expected[: len(found)]  # A torn tail, if it was the last batch.
    # The leader epoch is the broker's own note outside of the checksum: only neighbours vouch.
    assert [without_epoch(batch) for batch in found] == [without_epoch(b) for b in expected]
    for batch in found:
        log._hint = None
        offset = read_header(batch).base_offset
        assert log.read(offset, 1, log.end_offset, nowait=False) == batch


@pytest.mark.parametrize("config", [ONE, MANY], ids=["one-segment", "many-segments"])
def test_no_bit_of_a_header_can_flip_unseen(config: LogConfig) -> None:
    """Of each segment's first two batches: a read begins at the one, and runs over the other."""
    files, made = stored(config, True)
    sizes = {read_header(batch).base_offset: len(batch) for batch in made}
    bits = [
        (path, bit)
        for path in files
        if path.endswith(".log")
        for start in (0, sizes[int(path[-24:-4])])
        for bit in range(start * 8, (start + HEADER_SIZE) * 8)
    ]
    for path, bit in bits:
        content = bytearray(files[path])
        content[bit // 8] ^= 1 << bit % 8
        disk = disk_with(files | {path: bytes(content)})
        try:
            found = read_all(reopened(disk, DIRECTORY, config))
        except CorruptLog:
            continue
        assert [without_epoch(batch) for batch in found] == [without_epoch(b) for b in made], bit


def without_epoch(batch: bytes) -> bytes:
    return batch[:12] + batch[16:]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_garbage_in_index_files_is_harmless(data: st.DataObject) -> None:
    files, made = stored(MANY, closed=True)
    names = sorted(path for path in files if path.endswith("index"))
    for path in data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)):
        garbage = data.draw(st.one_of(st.none(), st.binary(max_size=64)))
        files = {p: c for p, c in files.items() if p != path}
        if garbage is not None:
            files[path] = garbage
    log = reopened(disk_with(files), DIRECTORY, MANY)
    assert read_all(log) == list(made)
    for batch in made:
        log._hint = None
        header = read_header(batch)
        assert log.read(header.last_offset, 1, log.end_offset, nowait=False) == batch
        assert log.find_timestamp(header.max_timestamp) is not None


def test_a_valid_batch_behind_garbage_is_found_at_any_byte() -> None:
    for gap in (1, 7, 61, 500):
        disk = MemoryDisk()
        log = Log(disk, DIRECTORY, ONE)
        fill(log, 3)
        disk.append(log.segments[0].path, [b"\x00\x02" * gap, make_batch(log.end_offset)])
        with pytest.raises(CorruptLog, match="a valid batch follows"):
            reopened(disk, DIRECTORY, ONE)


def test_an_offset_that_does_not_fit_its_neighbours_is_refused() -> None:
    for offset in (0, 2, 9):
        disk = MemoryDisk()
        log = Log(disk, DIRECTORY, ONE)
        for i in range(3):
            append(log, make_batch(i))
        disk.append(log.segments[0].path, [make_batch(offset), make_batch(4)])
        with pytest.raises(CorruptLog, match="offsets from"):
            reopened(disk, DIRECTORY, ONE)


def test_a_leader_epoch_that_goes_back_is_refused() -> None:
    disk = MemoryDisk()
    log = Log(disk, DIRECTORY, ONE)
    append(log, make_batch(0, epoch=5))
    disk.append(log.segments[0].path, [make_batch(1, epoch=4)])
    with pytest.raises(CorruptLog, match="leader epoch 4 after 5"):
        reopened(disk, DIRECTORY, ONE)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_checkpoint_between_an_append_and_its_sync_is_no_corruption(lost: int) -> None:
    disk = MemoryDisk()
    log = Log(disk, DIRECTORY, ONE)
    append(log, make_batch(0, epoch=4))
    log.sync()
    made = [make_batch(1, epoch=4), make_batch(2, epoch=5)]
    for batch in made:
        append(log, batch)
    log.write_checkpoint()
    disk.truncate(log.segments[0].path, disk.size(log.segments[0].path) - lost * len(made[-1]))
    found = reopened(disk, DIRECTORY, ONE)
    assert found.end_offset == 3 - lost
    assert found.leader_epochs == [(4, 0), (5, 2)][: 2 - lost]


def test_recovery_verifies_only_above_the_recovery_point() -> None:
    """The data below costs no reading at a restart; it is verified when it is read."""
    files, _ = stored(MANY, closed=True)
    read: list[str] = []

    class CountingDisk(MemoryDisk):
        def pread(self, path: str, size: int, position: int):  # type: ignore[no-untyped-def]
            if path.endswith(".log"):
                read.append(path)
            return super().pread(path, size, position)

    disk = CountingDisk()
    disk.make_directory(DIRECTORY)
    for path, content in files.items():
        disk.write(path, content)
    reopened(disk, DIRECTORY, MANY)
    assert set(read) == {segment_path(files, -1)}


def test_leftovers_of_interrupted_work_are_removed() -> None:
    files, made = stored(MANY, closed=True)
    extra = ["checkpoint.tmp", "00000000000000000000.cleaned", "00000000000000099999.index"]
    disk = disk_with(files | {f"{DIRECTORY}/{name}": b"x" for name in extra})
    assert read_all(reopened(disk, DIRECTORY, MANY)) == list(made)
    assert sorted(disk._files) == sorted(files)
