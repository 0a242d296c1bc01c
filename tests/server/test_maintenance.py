"""Retention and compaction of a running broker, on disk, as a client sees them."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from chronik.protocol import apis, codecs
from chronik.protocol.batch import split
from chronik.protocol.messages.topics import DeleteTopicsRequest
from chronik.protocol.records import Record, build_batch, iter_records
from chronik.testing import Broker

DAY_MS = 24 * 3600 * 1000


def run_on(broker: Broker, work: Coroutine[Any, Any, None]) -> None:
    """Run a step of maintenance on the broker's own loop."""
    assert broker._loop is not None
    asyncio.run_coroutine_threadsafe(work, broker._loop).result(20)


def keyed(key: bytes, value: bytes | None) -> bytes:
    return build_batch([Record(0, 1_700_000_000_000, key, value)])


def read_all(wire: Any, say: Any, start: int = 0) -> list[Record]:
    end = say.list_offset(wire, "t", -1).offset
    records: list[Record] = []
    offset = start
    while offset < end:
        batches = split(say.fetch(wire, "t", offset).records)
        if not batches:
            break
        records += [r for b in batches for r in iter_records(b.data) if r.offset >= offset]
        offset = batches[-1].header.next_offset
    return records


def test_retention_by_size_removes_old_segments(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", segment_bytes="2000", retention_bytes="5000", retention_ms="-1")
        for _ in range(30):
            say.produce(wire, "t", say.batch(b"x" * 500))
        assert broker.node is not None
        run_on(broker, broker.node.maintenance.retain_all())
        start = say.list_offset(wire, "t", -2).offset
        assert 0 < start < 30
        assert [record.offset for record in read_all(wire, say, start)] == list(range(start, 30))
        assert sum(f.stat().st_size for f in tmp_path.glob("topics/*/0/*.log")) < 8000
        assert say.fetch(wire, "t", 0).error_code == 1


def test_retention_by_time_also_after_a_restart(tmp_path: Path, connect: Any, say: Any) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", retention_ms="1000", segment_bytes="2000")
        for _ in range(10):
            say.produce(wire, "t", say.batch(b"x" * 500, timestamp=1_700_000_000_000))
    with Broker(data_dir=str(tmp_path)) as broker:
        assert broker.node is not None
        run_on(broker, broker.node.maintenance.retain_all())
        wire = connect(broker)
        assert say.list_offset(wire, "t", -2).offset == 10
        assert say.produce(wire, "t", say.batch(b"y")).base_offset == 10


def test_compaction_keeps_the_last_value_of_each_key(
    tmp_path: Path, connect: Any, say: Any
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(
            wire,
            "t",
            cleanup_policy="compact",
            segment_bytes="1000",
            min_cleanable_dirty_ratio="0.01",
        )
        for number in range(100):
            say.produce(wire, "t", keyed(b"k%d" % (number % 5), b"%03d" % number * 10))
        assert broker.node is not None
        run_on(broker, broker.node.maintenance.compact_all())
        records = read_all(wire, say)
        assert len(records) < 40
        latest = {record.key: record.value for record in records}
        assert latest == {b"k%d" % n: b"%03d" % (95 + n) * 10 for n in range(5)}
        offsets = [record.offset for record in records]
        assert offsets == sorted(offsets)
        assert offsets[-1] == 99
    with Broker(data_dir=str(tmp_path)) as broker:
        assert {r.key: r.value for r in read_all(connect(broker), say)} == latest


@pytest.mark.parametrize("cold", [False, True], ids=["cached", "cold"])
@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP])
def test_an_old_client_gets_past_batches_that_compaction_emptied(
    tmp_path: Path, connect: Any, say: Any, codec: int, cold: bool
) -> None:
    """A message set has no word for them: with nothing else it would be empty for ever."""
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(
            wire,
            "t",
            cleanup_policy="compact",
            segment_bytes="1000",
            min_cleanable_dirty_ratio="0.01",
        )
        for producer_id in range(1, 4):
            records = [Record(n, 1_700_000_000_000, b"k%d" % n, b"old") for n in range(2)]
            ids = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            say.produce(wire, "t", build_batch(records, codec=codec, **ids))
        for number in range(20):
            say.produce(wire, "t", keyed(b"k%d" % (number % 2), b"n" * 200))
        node = broker.node
        assert node is not None
        run_on(broker, node.maintenance.compact_all())
        batches = split(say.fetch(wire, "t", 0).records)
        assert [batch.header.record_count for batch in batches] == [0, 0, 0]
        expected = split(say.fetch(wire, "t", 6).records)[0].header.base_offset
        if cold:
            node._disk.pread_nowait = lambda *_: None  # type: ignore[method-assign]
        for offset in range(6):
            for version in (1, 2):
                answer = say.fetch(wire, "t", offset, version=version, partition_max_bytes=1)
                assert (answer.error_code, answer.high_watermark) == (0, 26)
                assert int.from_bytes(answer.records[:8]) == expected
        assert say.fetch(wire, "t", 26, version=2).records == b""


def test_a_topic_deleted_while_it_is_compacted_is_gone(
    tmp_path: Path, connect: Any, say: Any
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(
            wire,
            "t",
            cleanup_policy="compact",
            segment_bytes="20000",
            min_cleanable_dirty_ratio="0.01",
        )
        for number in range(300):
            say.produce(wire, "t", keyed(b"k%d" % (number % 5), b"x" * 1000))
        assert broker.node is not None
        assert broker._loop is not None
        work = broker.node.maintenance.compact_all()
        running = asyncio.run_coroutine_threadsafe(work, broker._loop)
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
        wire.ask(apis.DELETE_TOPICS, 5, request)
        running.result(20)
        assert say.metadata(wire, "other").topics[0].error_code == 0
    assert not list(tmp_path.glob("topics/t.*"))
