"""Compaction of transactional logs: readers of committed data see the same before and after.

A life of a compacted partition is made at random: transactions, markers, cleanings, saved
snapshots and restarts, clean ones and crashes that leave an old snapshot. A reader that works as
Kafka's clients do must always end up with the table of what was committed.
"""

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.batch import DELETE_HORIZON_FLAG, Batch, BatchHeader, read_header, split
from chronik.protocol.control import EndTxnMarker, build_marker, read_marker
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.replication.producers import Producers
from chronik.storage.cleaned_transactions import TransactionState
from chronik.storage.compaction import clean
from chronik.storage.config import LogConfig
from chronik.storage.errors import CorruptLog
from chronik.storage.log import Log
from chronik.storage.memory import MemoryDisk
from chronik.storage.scan import scan

DIRECTORY = "/data/topics/t.id/0"
CONFIG = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    compact=True,
    delete=False,
    segment_ms=10**12,
    delete_retention_ms=1_000,
)


class Written(NamedTuple):
    """A record as it was produced, for the model."""

    offset: int
    producer_id: int
    key: bytes
    value: bytes | None


class Life:
    """One compacted log, its producers, and what was ever written to it."""

    def __init__(self) -> None:
        self.log = Log(MemoryDisk(), DIRECTORY, CONFIG)
        self.producers = Producers()
        self.snapshot = b""
        self.snapshot_offset = 0
        self.is_stale = False
        self.now_ms = 1_000
        self.written: list[Written] = []
        self.aborted: list[tuple[int, int, int]] = []  # as in the log that was never compacted
        self.open_at: dict[int, int] = {}

    # What happens to it.

    def append(self, data: bytes) -> BatchHeader:
        offset = self.log.end_offset
        header = read_header(data)._replace(base_offset=offset, leader_epoch=0)
        head = offset.to_bytes(8) + data[8:12] + bytes(4)
        self.log.append(header, [head, data[16:]], self.now_ms)
        self.log.sync()
        marker = read_marker(data) if header.is_control else None
        self.producers.append(header, self.now_ms, marker)
        self.producers.on_high_watermark(self.log.end_offset)
        return header

    def put(self, producer_id: int, key: str, value: str | None) -> None:
        """A transactional record, or a plain one of no producer."""
        known = self.producers.get(producer_id)
        encoded = None if value is None else value.encode()
        fields: dict[str, Any] = {}
        if producer_id >= 0:
            fields = {
                "producer_id": producer_id,
                "producer_epoch": known.epoch if known else 0,
                "base_sequence": known.last_sequence + 1 if known else 0,
                "transactional": True,
            }
        record = Record(0, self.now_ms, key.encode(), encoded)
        header = self.append(build_batch([record], **fields))
        self.written.append(Written(header.base_offset, producer_id, record.key or b"", encoded))
        if producer_id >= 0:
            self.open_at.setdefault(producer_id, header.base_offset)

    def end(self, producer_id: int, commit: bool, bump: int) -> None:
        known = self.producers.get(producer_id)
        data = build_marker(
            EndTxnMarker(commit, 0),
            producer_id=producer_id,
            producer_epoch=(known.epoch if known else 0) + bump,
            timestamp=self.now_ms,
        )
        header = self.append(data)
        first_offset = self.open_at.pop(producer_id, None)
        if first_offset is not None and not commit:
            self.aborted.append((producer_id, first_offset, header.base_offset))

    def seal(self) -> None:
        self.log.roll(self.now_ms)
        self.log.sync()
        self.log.checkpoint()

    def clean(self, stop_after: int | None = None) -> None:
        if self.is_stale:
            self.save()
        state = TransactionState(
            aborted=[each[:3] for each in self.producers.aborted()],
            marker_epochs=self.producers.marker_epochs(),
            snapshot_offset=self.snapshot_offset,
            forget=self.forget,
        )
        slices = clean(
            self.log, self.now_ms, self.stable_offset, self.producers.last_offsets(), state
        )
        for count, work in enumerate(slices):
            if count == stop_after:
                break
            if work is not None:
                work()
        slices.close()

    def forget(self, last_offset: int) -> None:
        self.is_stale |= self.producers.forget_aborted(last_offset)

    def save(self) -> None:
        self.snapshot = self.producers.snapshot(self.log.end_offset)
        self.snapshot_offset = self.log.end_offset
        self.is_stale = False

    def reload(self, *, has_snapshot: bool) -> None:
        """Start anew, with whatever snapshot there is or with none."""
        self.log = Log(self.log.disk, DIRECTORY, CONFIG)
        self.log.load()
        if not has_snapshot:
            self.snapshot, self.snapshot_offset = b"", 0
        self.producers = Producers()
        if self.snapshot:
            self.producers = Producers.from_snapshot(self.snapshot)
        self.producers.replay(scan(self.log, self.producers.end_offset))
        self.producers.on_high_watermark(self.log.end_offset)
        self.is_stale = False

    # What readers see.

    @property
    def stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset()
        return self.log.end_offset if unstable is None else unstable

    def batches(self, offset: int) -> list[Batch]:
        data = self.log.read(offset, 1 << 30, self.stable_offset, nowait=False)
        found: list[Batch] = []
        while data:
            found += split(data)
            offset = found[-1].header.next_offset
            if offset >= self.stable_offset:
                break
            data = self.log.read(offset, 1 << 30, self.stable_offset, nowait=False)
        return found

    def committed(self, offset: int) -> list[Record]:
        """What a read_committed consumer gives its user, from an offset to the end."""
        batches = self.batches(offset)
        if not batches:
            return []
        end_offset = batches[-1].header.next_offset
        waiting = sorted(self.producers.aborted_between(offset, end_offset), key=lambda a: a[1])
        aborting: set[int] = set()
        records: list[Record] = []
        for header, data in batches:
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(data)
                if marker is not None and not marker.commit:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                records += [each for each in iter_records(data) if each.offset >= offset]
        return records

    def check(self) -> None:
        """Compare with the log that was never compacted."""
        expected_stable = min(self.open_at.values(), default=self.log.end_offset)
        assert self.stable_offset == expected_stable
        table: dict[bytes, bytes] = {}
        offsets = set()
        for each in self.written:
            if each.offset >= expected_stable or self.was_aborted(each):
                continue
            offsets.add(each.offset)
            if each.value is None:
                table.pop(each.key, None)
            else:
                table[each.key] = each.value
        seen = self.committed(0)
        assert latest(seen) == table
        assert {each.offset for each in seen} <= offsets
        for offset in range(0, expected_stable, 5):
            assert self.committed(offset) == [each for each in seen if each.offset >= offset]

    def was_aborted(self, record: Written) -> bool:
        return any(
            producer_id == record.producer_id and first <= record.offset < last
            for producer_id, first, last in self.aborted
        )


def latest(records: list[Record]) -> dict[bytes | None, bytes]:
    table: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


producer_ids = st.sampled_from([-1, 1, 1, 2, 3])
steps = st.one_of(
    st.tuples(
        st.just("put"), producer_ids, st.sampled_from("abc"), st.sampled_from([None, *"123"])
    ),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("seal")),
    st.tuples(st.just("clean"), st.sampled_from([0, 500, 5_000])),
    st.tuples(st.just("clean"), st.sampled_from([0, 500, 5_000])),
    st.tuples(st.just("give up"), st.integers(1, 12)),
    st.tuples(st.just("save")),
    st.tuples(st.just("reload"), st.booleans()),
    st.tuples(st.just("expire")),
)


def live(life: Life, step: tuple[Any, ...]) -> None:
    match step:
        case ("put", producer_id, key, value):
            life.put(producer_id, key, value)
        case ("end", producer_id, commit, bump):
            life.end(producer_id, commit, bump)
        case ("seal",):
            life.seal()
        case ("clean", later_ms):
            life.now_ms += later_ms
            life.put(-1, "z", "dirt")
            life.seal()
            life.clean()
        case ("give up", stop_after):
            life.seal()
            life.clean(stop_after)
        case ("save",):
            life.save()
        case ("reload", has_snapshot):
            life.reload(has_snapshot=has_snapshot)
        case ("expire",):
            life.producers.expire(life.now_ms, 2_000)


@settings(max_examples=100, deadline=None)
@given(script=st.lists(steps, min_size=10, max_size=80))
def test_committed_reads_are_the_same_after_compaction(script: list[tuple[Any, ...]]) -> None:
    life = Life()
    for step in script:
        live(life, step)
        if step[0] not in ("put", "end", "save"):
            life.check()
    life.check()
    life.reload(has_snapshot=True)
    life.check()
    life.reload(has_snapshot=False)
    life.check()


# Producers end what they begin and cleanings are frequent, so that many markers come and go.
LONG_LIFE = (
    ("put", 1, "a", "1"),
    ("put", 1, "b", "2"),
    ("put", 2, "a", "3"),
    ("put", 2, "c", None),
    *(("end", producer_id, commit, bump) for producer_id in (1, 2) for commit in (True, False)
      for bump in (0, 0, 1)),
    *(("clean", 5_000) for _ in range(5)),
    ("save",),
    ("reload", True),
    ("reload", False),
    ("give up", 7),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_long_lives(seed: int) -> None:
    rng = random.Random(seed)
    life = Life()
    for _ in range(150):
        step = rng.choice(LONG_LIFE)
        live(life, step)
        if step[0] in ("clean", "reload"):
            life.check()


def test_a_crash_may_list_an_aborted_transaction_again(life: Life) -> None:
    life.put(1, "a", "1")
    life.end(1, commit=False, bump=1)
    life.save()
    life.put(1, "b", "2")
    life.end(1, commit=True, bump=0)
    for _ in range(2):
        live(life, ("clean", 5_000))
    assert life.producers.aborted() == []
    life.reload(has_snapshot=True)  # The saved one lists it still.
    assert len(life.producers.aborted()) == 1
    live(life, ("clean", 5_000))
    life.reload(has_snapshot=True)
    life.check()
    assert 1 in [offset for offset, *_ in headers(life)]
    for _ in range(2):
        live(life, ("clean", 5_000))
    life.reload(has_snapshot=True)
    life.check()
    assert 1 not in [offset for offset, *_ in headers(life)]


def headers(life: Life) -> list[tuple[int, bool, int]]:
    return [
        (each.base_offset, each.is_control, each.record_count) for each in life.log.scan_headers(0)
    ]


@pytest.fixture
def life() -> Life:
    return Life()


def test_aborted_records_go_and_supersede_nothing(life: Life) -> None:
    life.put(-1, "a", "kept")
    life.put(1, "a", "aborted")
    life.put(1, "b", "aborted")
    life.end(1, commit=False, bump=0)
    life.seal()
    life.clean()
    # The producer's last batch stays for its sequence, and with it the marker.
    assert headers(life) == [(0, False, 1), (2, False, 0), (3, True, 1)]
    life.check()


def test_nothing_from_the_last_stable_offset_on_is_touched(life: Life) -> None:
    life.put(-1, "a", "1")
    life.seal()
    life.put(2, "x", "open")
    life.put(1, "a", "2")
    life.end(1, commit=False, bump=0)
    life.seal()
    life.clean()
    assert headers(life) == [(0, False, 1), (1, False, 1), (2, False, 1), (3, True, 1)]
    life.check()


def test_a_marker_outlives_its_data_by_the_retention(life: Life) -> None:
    life.put(1, "a", "1")
    life.end(1, commit=False, bump=1)
    life.put(1, "b", "2")  # The producer's last word is here now, not in the marker.
    life.end(1, commit=True, bump=0)
    life.save()
    assert len(life.producers.aborted()) == 1

    def again(now_ms: int) -> list[int]:
        life.now_ms = now_ms
        life.put(-1, "z", "dirt")
        life.seal()
        life.clean()
        life.check()
        return [offset for offset, *_ in headers(life) if offset <= 3]

    assert again(1_000) == [1, 2, 3], "the data is gone"
    assert len(life.producers.aborted()) == 1
    assert again(2_000) == [1, 2, 3], "its retention begins"
    assert life.producers.aborted() == []
    (marker, *_) = life.log.scan_headers(1)
    assert marker.attributes & DELETE_HORIZON_FLAG
    assert marker.base_timestamp == 3_000
    assert again(2_999) == [1, 2, 3]
    assert again(3_000) == [2, 3]


def test_a_marker_waits_for_the_snapshot(life: Life) -> None:
    life.put(1, "a", "1")
    life.save()  # It says that the transaction is open.
    life.end(1, commit=True, bump=1)
    life.put(1, "a", "2")
    for _ in range(4):
        life.now_ms += 5_000
        life.end(1, commit=True, bump=0)
        life.put(-1, "z", "dirt")
        life.put(1, "a", "3")
        life.seal()
        life.clean()
    assert (1, True, 1) in headers(life)
    life.reload(has_snapshot=True)
    life.check()


def test_the_marker_that_set_an_epoch_stays_until_the_producer_expires(life: Life) -> None:
    life.put(1, "a", "1")
    life.end(1, commit=True, bump=1)
    life.save()
    for _ in range(4):
        life.now_ms += 5_000
        life.put(-1, "a", "2")
        life.seal()
        life.clean()
    life.reload(has_snapshot=False)
    producer = life.producers.get(1)
    assert producer is not None
    assert producer.epoch == 1
    life.producers.expire(life.now_ms, 1_000)
    life.save()
    life.put(-1, "a", "3")
    life.seal()
    life.clean()
    assert not any(is_control for _, is_control, _ in headers(life))


def test_a_damaged_marker_refuses_the_log(life: Life) -> None:
    life.put(1, "a", "1")
    life.end(1, commit=True, bump=0)
    path = life.log.segments[0].path
    content = bytearray(life.log.disk.pread(path, 1 << 20, 0))
    content[-1] ^= 1
    life.log.disk.write(path, bytes(content))
    with pytest.raises(CorruptLog):
        Producers().replay(scan(life.log, 0))
