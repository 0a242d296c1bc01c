"""A data directory that was damaged while the node was down: recovered or refused, never wrong."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chronik.broker import Broker as Node
from chronik.broker import StartFailed
from chronik.config.settings import Settings
from chronik.protocol import apis
from chronik.protocol.batch import HEADER_SIZE, split
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.topics import DeleteTopicsRequest
from chronik.protocol.records import iter_records
from chronik.testing import Broker

CHRONIK = Path(sys.executable).parent / "chronik"
COUNT = 60


@pytest.fixture
def data_dir(tmp_path: Path, connect: Any, say: Any) -> Path:
    """A stopped node with one topic of sixty batches in several segments, and one of few."""
    with Broker(data_dir=str(tmp_path)) as broker:
        wire = connect(broker)
        say.create(wire, "t", segment_bytes="4000")
        say.create(wire, "other")
        for number in range(COUNT):
            say.produce(wire, "t", say.batch(value(number)))
        say.produce(wire, "other", say.batch(b"fine"))
    return tmp_path


def value(number: int) -> bytes:
    return f"{number:03}".encode() * 50


def files(data_dir: Path, suffix: str) -> list[Path]:
    return sorted(data_dir.glob(f"topics/t.*/0/*{suffix}"))


def read(wire: Any, say: Any) -> list[Any]:
    """All values, or the error code where reading ends."""
    got: list[Any] = []
    while len(got) < COUNT:
        answer = say.fetch(wire, "t", len(got))
        if answer.error_code:
            return [*got, ErrorCode(answer.error_code)]
        batches = split(answer.records)
        if not batches:
            return got
        got += [record.value for batch in batches for record in iter_records(batch.data)]
    return got


def without_checkpoint(data_dir: Path) -> None:
    """As after a crash before the first checkpoint: everything must be verified."""
    for path in data_dir.glob("topics/t.*/0/checkpoint"):
        path.unlink()


@pytest.mark.parametrize("cut", [1, 30, HEADER_SIZE, 200])
def test_a_torn_tail_is_cut(data_dir: Path, connect: Any, say: Any, cut: int) -> None:
    without_checkpoint(data_dir)
    last = files(data_dir, ".log")[-1]
    last.write_bytes(last.read_bytes()[:-cut])
    with Broker(data_dir=str(data_dir)) as broker:
        got = read(connect(broker), say)
        assert got == [value(number) for number in range(len(got))]
        assert COUNT - 2 <= len(got) < COUNT
        assert say.produce(connect(broker), "t", say.batch(b"more")).base_offset == len(got)


def damage_index(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


INDEX_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "truncated": damage_index,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\xa5" * 400),
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_a_damaged_index_is_rebuilt(
    data_dir: Path, connect: Any, say: Any, suffix: str, damage: str
) -> None:
    for path in files(data_dir, suffix):
        INDEX_DAMAGE[damage](path)
    with Broker(data_dir=str(data_dir)) as broker:
        wire = connect(broker)
        assert read(wire, say) == [value(number) for number in range(COUNT)]
        assert say.list_offset(wire, "t", 0).offset == 0
        assert say.fetch(wire, "t", COUNT // 2).error_code == 0


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_flipped_bit_is_never_served(
    data_dir: Path, connect: Any, say: Any, checkpointed: bool
) -> None:
    if not checkpointed:
        without_checkpoint(data_dir)
    second = files(data_dir, ".log")[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 0x10
    second.write_bytes(bytes(data))
    with Broker(data_dir=str(data_dir)) as broker:
        wire = connect(broker)
        *good, error = read(wire, say)
        assert error is ErrorCode.KAFKA_STORAGE_ERROR
        assert good == [value(number) for number in range(len(good))]
        answer = say.fetch(wire, "other", 0)
        assert answer.error_code == 0
        assert b"fine" in answer.records


def test_salvage_keeps_what_is_good_and_says_what_is_lost(
    data_dir: Path, connect: Any, say: Any
) -> None:
    second = files(data_dir, ".log")[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 0x10
    second.write_bytes(bytes(data))
    command = [str(CHRONIK), "storage"]
    check = subprocess.run(
        [*command, "check", str(data_dir), "--json"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 1, check.stderr
    assert json.loads(check.stdout)
    subprocess.run([*command, "salvage", str(data_dir)], check=True, capture_output=True)
    with Broker(data_dir=str(data_dir)) as broker:
        wire = connect(broker)
        got: list[bytes | None] = []
        offset = 0
        while offset < COUNT:
            batches = split(say.fetch(wire, "t", offset).records)
            got += [record.value for batch in batches for record in iter_records(batch.data)]
            offset = batches[-1].header.next_offset
        lost = {value(number) for number in range(COUNT)} - set(got)
        assert len(lost) == 1
        assert say.produce(wire, "t", say.batch(b"more")).base_offset == COUNT
    assert list(data_dir.glob("topics/t.*/0/salvage-*"))


def test_a_lost_vote_stops_the_start_with_a_line_that_says_so(data_dir: Path) -> None:
    (data_dir / "__chronik_metadata" / "vote.json").unlink()
    with pytest.raises(StartFailed, match=r"vote\.json is missing"):
        Broker(data_dir=str(data_dir)).start()


def test_lost_metadata_stops_the_start_too(data_dir: Path) -> None:
    """A voter that forgot everything could help to elect a leader that lacks what was committed."""
    shutil.rmtree(data_dir / "__chronik_metadata")
    with pytest.raises(StartFailed, match=r"vote\.json is missing"):
        Broker(data_dir=str(data_dir)).start()
    assert list(data_dir.glob("topics/t.*/0/*.log")), "nothing was removed"


def test_a_flipped_bit_in_the_metadata_log_stops_the_start(data_dir: Path) -> None:
    (path,) = (data_dir / "__chronik_metadata").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    (data_dir / "__chronik_metadata" / "checkpoint").unlink()
    with pytest.raises(StartFailed, match="__chronik_metadata"):
        Broker(data_dir=str(data_dir)).start()


def test_another_nodes_directory_is_refused(data_dir: Path) -> None:
    node = json.loads((data_dir / "node.json").read_text())
    (data_dir / "node.json").write_text(json.dumps(node | {"node_id": 7}))

    async def start() -> None:
        async with Node(Settings(data_dir=str(data_dir), port=0, http_port=-1, node_id=1)):
            pass

    with pytest.raises(StartFailed, match="belongs to node 7"):
        asyncio.run(start())


def test_a_lost_beginning_is_refused_and_nothing_is_removed(
    data_dir: Path, connect: Any, say: Any
) -> None:
    """A checkpoint that somebody removed, of a log that no longer begins at offset 0."""
    (directory,) = data_dir.glob("topics/t.*/0")
    files(data_dir, ".log")[0].unlink()
    (directory / "checkpoint").unlink()
    before = sorted(path.name for path in files(data_dir, ".log"))
    with Broker(data_dir=str(data_dir)) as broker:
        answer = say.fetch(connect(broker), "t", 0)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert sorted(path.name for path in files(data_dir, ".log")) == before


def test_a_metadata_log_that_lost_its_end_is_refused(data_dir: Path) -> None:
    (path,) = (data_dir / "__chronik_metadata").glob("*.log")
    path.write_bytes(path.read_bytes()[:-10])
    (data_dir / "__chronik_metadata" / "checkpoint").unlink()
    with pytest.raises(StartFailed, match="__chronik_metadata"):
        Broker(data_dir=str(data_dir)).start()
    assert list(data_dir.glob("topics/t.*/0/*.log"))


def test_files_of_an_unknown_topic_are_left_alone(data_dir: Path) -> None:
    (topic,) = data_dir.glob("topics/t.*")
    stray = data_dir / "topics" / f"gone.{'A' * 22}"
    shutil.copytree(topic, stray)
    with Broker(data_dir=str(data_dir)):
        pass
    assert stray.exists()


def test_files_that_a_crash_left_of_a_deleted_topic_are_removed(
    data_dir: Path, connect: Any
) -> None:
    (topic,) = data_dir.glob("topics/t.*")
    kept = data_dir / "kept"
    shutil.copytree(topic, kept)
    with Broker(data_dir=str(data_dir)) as broker:
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
        connect(broker).ask(apis.DELETE_TOPICS, 5, request)
    kept.rename(topic)
    with Broker(data_dir=str(data_dir)):
        assert not topic.exists()
