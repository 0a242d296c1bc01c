"""What a node's end says about its data: whether all of it is on disk."""

import errno
from pathlib import Path

import pytest
from confluent_kafka import Producer

from chronik.storage import disk, run_marker
from chronik.storage.log import Log
from chronik.testing import Broker


def write(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b"book")
    assert producer.flush(10) == 0


def is_clean(data_dir: Path) -> bool:
    return not (data_dir / run_marker.FILE_NAME).exists()


def no_disk(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def unclosed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk that fails when logs of partitions are closed, until this is undone."""
    close = Log.close

    def close_metadata_only(log: Log) -> None:
        if "/topics/" in log.directory:
            no_disk()
        close(log)

    monkeypatch.setattr(Log, "close", close_metadata_only)
    return monkeypatch


def test_a_stop_that_could_not_sync_a_log_is_not_clean(
    tmp_path: Path, unclosed: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=str(tmp_path), durability="replicated") as broker:
        write(broker)
        assert not is_clean(tmp_path)
    assert not is_clean(tmp_path)
    unclosed.undo()
    with Broker(data_dir=str(tmp_path), durability="replicated") as broker:
        assert len(broker.topic("orders").records) == 1
    assert is_clean(tmp_path)


def test_a_disk_that_loses_what_a_killed_run_has_left_stops_its_partitions(
    tmp_path: Path, unclosed: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=str(tmp_path), durability="replicated") as broker:
        write(broker)
    unclosed.undo()
    unclosed.setattr(disk, "sync_file_system", no_disk)
    with Broker(data_dir=str(tmp_path), durability="replicated") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 1000})
        failures: list[object] = []
        producer.produce("orders", b"pen", on_delivery=lambda error, _: failures.append(error))
        producer.flush(10)
        assert failures[0] is not None
    assert not is_clean(tmp_path)
