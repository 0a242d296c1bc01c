"""A range of offsets, against a model of a log: every offset is a row or in a gap, once."""

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol import codecs
from chronik.protocol.batch import read_header
from chronik.protocol.control import EndTxnMarker, build_marker
from chronik.protocol.errors import CorruptBatch
from chronik.protocol.messages.fetch import AbortedTransaction, PartitionData
from chronik.protocol.records import Record, build_batch, rebuild_batch
from chronik.spark import range_reading
from chronik.spark.errors import DataLossError
from chronik.spark.offset_range import Gap, Gaps, OffsetRange
from chronik.spark.range_reading import RangeReading


@dataclass
class Log:
    """Batches with the offsets that readers of committed data are to see, and why not others."""

    batches: list[bytes]
    visible: list[int]
    reasons: dict[int, str]
    aborted: list[tuple[int, int, int]]  # producer, first offset, marker's offset
    end_offset: int = 0

    def answer(self, offset: int, batch_count: int) -> PartitionData:
        """What a broker would say, with at most so many batches."""
        found = [each for each in self.batches if read_header(each).next_offset > offset]
        found = found[:batch_count]
        last = read_header(found[-1]).last_offset if found else -1
        transactions = [
            AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first, marker in self.aborted
            if first <= last and marker >= offset
        ]
        return PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=self.end_offset,
            last_stable_offset=self.end_offset,
            aborted_transactions=transactions,
            records=b"".join(found),
        )


def data_batch(base: int, count: int, producer: int, codec: int = 0) -> bytes:
    records = [Record(base + i, i, None, b"%d" % (base + i)) for i in range(count)]
    transactional = producer >= 0
    return build_batch(
        records,
        base_offset=base,
        codec=codec,
        producer_id=producer,
        producer_epoch=0 if transactional else -1,
        base_sequence=0 if transactional else -1,
        transactional=transactional,
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    batch = build_marker(
        EndTxnMarker(commit, 0), producer_id=producer, producer_epoch=0, timestamp=0
    )
    return offset.to_bytes(8) + batch[8:]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log([], [], {}, [])
    offset = draw(st.integers(0, 5))
    for here in range(offset):
        log.reasons[here] = "compacted"
    opened: dict[int, list[int]] = {}  # producer: offsets of its open transaction
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["plain", "plain", "begin", "end", "sparse", "hole"]))
        if kind == "hole":
            for _ in range(draw(st.integers(1, 5))):
                log.reasons[offset] = "compacted"
                offset += 1
        elif kind == "end" and opened:
            producer = draw(st.sampled_from(sorted(opened)))
            commit = draw(st.booleans())
            offsets = opened.pop(producer)
            if commit:
                log.visible += offsets
            else:
                log.reasons |= dict.fromkeys(offsets, "aborted")
                log.aborted.append((producer, offsets[0], offset))
            log.batches.append(marker(offset, producer, commit=commit))
            log.reasons[offset] = "transaction marker"
            offset += 1
        else:
            count = draw(st.integers(1, 6))
            producer = draw(st.integers(1, 3)) if kind in ("begin", "end") else -1
            codec = draw(st.sampled_from([codecs.NONE, codecs.LZ4]))
            batch = data_batch(offset, count, producer, codec)
            offsets = list(range(offset, offset + count))
            if kind == "sparse":
                kept = sorted(draw(st.sets(st.sampled_from(offsets))))
                records = [Record(each, 0, None, b"%d" % each) for each in kept]
                batch = rebuild_batch(read_header(batch), records)
                log.reasons |= {each: "compacted" for each in offsets if each not in kept}
                offsets = kept
            log.batches.append(batch)
            if producer >= 0:
                opened.setdefault(producer, []).extend(offsets)
            else:
                log.visible += offsets
            offset += count
    for producer in list(opened):  # A reader of committed data sees nothing beyond an open one.
        log.visible += opened.pop(producer)
        log.batches.append(marker(offset, producer, commit=True))
        log.reasons[offset] = "transaction marker"
        offset += 1
    log.visible.sort()
    log.end_offset = offset
    return log


def read_all(
    log: Log, start: int, end: int, *, batch_count: int = 3, batch_rows: int = 4
) -> tuple[list[pa.RecordBatch], list[Gap]]:
    wanted = OffsetRange("t", bytes(16), 0, start, end)
    gaps = Gaps(wanted, fail_on_data_loss=True)
    reading = RangeReading(
        wanted,
        columns=["offset", "value"],
        read_committed=True,
        batch_rows=batch_rows,
        gaps=gaps,
    )
    found = []
    for _ in range(200):
        if reading.is_fetched:
            break
        data = log.answer(reading.position, batch_count)
        found += reading.rows(reading.take(data), data)
    assert reading.is_fetched, "reading does not end"
    found += reading.rest()
    return found, gaps.all()


@settings(max_examples=400, deadline=None)
@given(logs(), st.data())
def test_every_offset_is_a_row_or_in_a_gap(log: Log, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, log.end_offset))
    end = data.draw(st.integers(start, log.end_offset))
    batch_rows = data.draw(st.integers(1, 20))
    found, gaps = read_all(
        log, start, end, batch_count=data.draw(st.integers(1, 5)), batch_rows=batch_rows
    )
    offsets = [offset for batch in found for offset in batch.column("offset").to_pylist()]
    values = [value for batch in found for value in batch.column("value").to_pylist()]
    assert offsets == [offset for offset in log.visible if start <= offset < end]
    assert values == [b"%d" % offset for offset in offsets]
    counts: dict[str, int] = {}
    for offset in range(start, end):
        if offset in log.reasons:
            counts[log.reasons[offset]] = counts.get(log.reasons[offset], 0) + 1
    assert {gap.reason: gap.count for gap in gaps} == counts
    for gap in gaps:
        assert start <= gap.start < gap.end <= end
        assert gap.end - gap.start >= gap.count


def test_pieces_have_about_as_many_rows_as_were_asked_for() -> None:
    log = Log([data_batch(0, 1000, -1), data_batch(1000, 30, -1)], [], {}, [], 1030)
    found, _ = read_all(log, 0, 1030, batch_rows=100)
    assert [batch.num_rows for batch in found] == [100] * 10 + [30]
    small = Log([data_batch(20 * i, 20, -1) for i in range(10)], [], {}, [], 200)
    found, _ = read_all(small, 0, 200, batch_rows=50, batch_count=10)
    assert [batch.num_rows for batch in found] == [60, 60, 60, 20]


def test_a_group_is_bounded_by_what_its_records_decompress_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_reading, "GROUP_BYTES", 1000)
    batches = [
        build_batch([Record(i, 0, None, b"0" * 600)], base_offset=i, codec=codecs.ZSTD)
        for i in range(4)
    ]
    found, _ = read_all(Log(batches, [], {}, [], 4), 0, 4, batch_rows=1000, batch_count=10)
    assert [batch.num_rows for batch in found] == [1, 1, 1, 1]


def test_a_damaged_batch_is_refused() -> None:
    batch = bytearray(data_batch(0, 3, -1))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        read_all(Log([bytes(batch)], [], {}, [], 3), 0, 3)


def test_nothing_up_to_the_end_is_believed_the_second_time() -> None:
    wanted = OffsetRange("t", bytes(16), 0, 5, 10)
    gaps = Gaps(wanted, fail_on_data_loss=True)
    reading = RangeReading(wanted, columns=["value"], read_committed=True, batch_rows=10, gaps=gaps)
    bare = Log([], [], {}, [], 10).answer(5, 1)
    short = Log([], [], {}, [], 9).answer(5, 1)
    for data in (short, bare, short, bare):
        assert not list(reading.rows(reading.take(data), data))
        assert not reading.is_fetched
    assert not list(reading.rows(reading.take(bare), bare))
    assert reading.is_fetched
    assert gaps.all() == [Gap("compacted", 5, 10, 5)]


def test_loss_says_what_is_lost() -> None:
    wanted = OffsetRange("orders", bytes(16), 3, 100, 300)
    for reason, (first, last) in {"retention": (200, 400), "truncated": (0, 50)}.items():
        failing = RangeReading(
            wanted,
            columns=["value"],
            read_committed=True,
            batch_rows=10,
            gaps=Gaps(wanted, fail_on_data_loss=True),
        )
        with pytest.raises(
            DataLossError, match=r"topic orders, partition 3: offsets 100 to"
        ) as got:
            failing.out_of_range(first, last)
        assert reason in str(got.value)
    gaps = Gaps(wanted, fail_on_data_loss=False)
    going_on = RangeReading(
        wanted, columns=["value"], read_committed=True, batch_rows=10, gaps=gaps
    )
    going_on.out_of_range(200, 400)
    assert going_on.position == 200
    assert gaps.all() == [Gap("retention", 100, 200, 100)]
    assert gaps.all()[0].is_loss


def test_a_loss_in_the_middle_keeps_what_was_read_before_it() -> None:
    wanted = OffsetRange("t", bytes(16), 0, 2, 30)
    gaps = Gaps(wanted, fail_on_data_loss=False)
    reading = RangeReading(
        wanted, columns=["offset"], read_committed=True, batch_rows=1000, gaps=gaps
    )
    log = Log([data_batch(0, 10, -1), data_batch(10, 20, -1)], [], {}, [], 30)
    data = log.answer(0, 1)
    found = list(reading.rows(reading.take(data), data))
    reading.out_of_range(15, 30)  # Retention has moved into the second batch.
    data = log.answer(15, 1)
    found += reading.rows(reading.take(data), data)
    found += reading.rest()
    offsets = [offset for batch in found for offset in batch.column(0).to_pylist()]
    assert offsets == [*range(2, 10), *range(15, 30)]
    assert gaps.all() == [Gap("retention", 10, 15, 5)]
