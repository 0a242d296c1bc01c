"""The metadata runtime and its journal, on a disk in memory: replay, votes, snapshots, refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chronik.config import limits
from chronik.metadata.commands import AllocateProducerIds, CreateTopic, RegisterBroker
from chronik.metadata.image import id_text
from chronik.metadata.journal import Journal, UnusableMetadata, begin_votes
from chronik.metadata.runtime import MetadataRuntime
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.raft.messages import AppendEntries
from chronik.raft.types import Entry, EntryKind, HardState
from chronik.storage.commit import GroupCommit
from chronik.storage.memory import MemoryDisk

DIRECTORY = "/data/__chronik_metadata"


def runtime(disk: MemoryDisk) -> MetadataRuntime:
    commit = GroupCommit(disk, lambda log: made.on_durable(), lambda log, error: None)
    made = MetadataRuntime(Journal(disk, DIRECTORY, lambda: 1), commit, 1, disk)
    made.start()
    return made


async def register(metadata: MetadataRuntime) -> int:
    command = RegisterBroker(node_id=1, incarnation_id="i", directory_id="d", host="h", port=1)
    epoch: int = await metadata.submit(command)
    return epoch


def topic(number: int) -> CreateTopic:
    return CreateTopic(name=f"t{number}", topic_id=id_text(number.to_bytes(16)), partition_count=2)


def on_disk(work: Callable[[MemoryDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = MemoryDisk()
        begin_votes(disk, DIRECTORY)
        await work(disk)

    asyncio.run(run())


def test_a_restart_replays_everything_in_a_new_term() -> None:
    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        await register(first)
        await asyncio.gather(*(first.submit(topic(number)) for number in range(20)))
        first.close()
        second = runtime(disk)
        assert second.term == first.term + 1
        assert second.image == first.image
        assert second.applied_index == first.applied_index

    on_disk(work)


def test_two_creations_in_flight_of_one_name_cannot_both_pass() -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        await register(metadata)
        one = metadata.submit(topic(1))
        other = CreateTopic(name="t1", topic_id=id_text(bytes(16)), partition_count=1)
        two = metadata.submit(other)
        assert "t1" not in metadata.image.topics
        results = await asyncio.gather(one, two, return_exceptions=True)
        assert results[0].name == "t1"  # type: ignore[union-attr]
        assert isinstance(results[1], KafkaError)
        assert results[1].code is ErrorCode.TOPIC_ALREADY_EXISTS

    on_disk(work)


def test_a_reply_comes_after_the_image_shows_the_change() -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        await register(metadata)
        seen: list[bool] = []
        reply = metadata.submit(topic(1))
        metadata.subscribe(lambda old, new, records: seen.append(reply.done()))
        await reply
        assert seen == [False]
        assert "t1" in metadata.image.topics

    on_disk(work)


def test_who_was_told_of_a_topic_elsewhere_waits_for_it_but_not_for_ever() -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        await register(metadata)
        told = asyncio.create_task(metadata.until(lambda: "t1" in metadata.image.topics, 10))
        await asyncio.sleep(0)
        assert not told.done()
        await metadata.submit(topic(1))
        await told
        await metadata.until(lambda: "never" in metadata.image.topics, 0.001)
        assert metadata._waiters == []

    on_disk(work)


def test_what_is_decided_in_one_turn_is_saved_in_one_round() -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        await register(metadata)
        pumps: list[int] = []
        pump = metadata.consensus.pump
        metadata.consensus.pump = lambda: (pumps.append(metadata.last_index), pump())[1]  # type: ignore[method-assign]
        replies = [metadata.submit(topic(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert pumps == [metadata.last_index]
        await asyncio.gather(*replies)
        assert len(metadata.image.topics) == 5

    on_disk(work)


def test_a_lost_vote_is_refused_not_guessed() -> None:
    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        await register(first)
        first.close()
        disk.remove(f"{DIRECTORY}/vote.json")
        with pytest.raises(UnusableMetadata, match=r"vote\.json is missing"):
            runtime(disk)

    on_disk(work)


def test_a_garbled_vote_is_refused() -> None:
    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        await register(first)
        disk.write(f"{DIRECTORY}/vote.json", b"{")
        with pytest.raises(UnusableMetadata, match=r"vote\.json cannot be read"):
            runtime(disk)

    on_disk(work)


def test_what_could_not_be_read_again_is_not_logged() -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        last_index = metadata.last_index
        numeric: Any = 1
        command = RegisterBroker(
            node_id=1, incarnation_id="i", directory_id="d", host="h", port=1, rack=numeric
        )
        with pytest.raises(KafkaError, match="No node could read this") as error:
            await metadata.submit(command)
        assert error.value.code is ErrorCode.INVALID_REQUEST
        assert metadata.last_index == last_index
        await register(metadata)
        metadata.close()
        assert runtime(disk).image.online_ids == {1}

    on_disk(work)


def test_a_committed_record_that_cannot_be_decoded_stops_the_node_and_is_named() -> None:
    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        epoch = await register(first)
        first.close()
        journal = Journal(disk, DIRECTORY, lambda: 1)
        journal.load()
        data = b'[{"type":"from-the-future"}]'
        journal.append(Entry(term=1, index=epoch + 1, kind=EntryKind.COMMAND, data=data))
        journal.log.close()
        with pytest.raises(UnusableMetadata) as error:
            runtime(disk)
        assert f"entry {epoch + 1} (term 1)" in str(error.value)
        assert "from-the-future" in str(error.value)

    on_disk(work)


def test_an_entry_of_an_unknown_kind_stops_the_node() -> None:
    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        await register(first)
        first.close()
        path = f"{DIRECTORY}/00000000000000000001.log"
        from chronik.protocol.records import Record, build_batch

        batch = build_batch([Record(3, 1, b"strange", b"")], base_offset=3, leader_epoch=1)
        disk.append(path, [batch])
        with pytest.raises(UnusableMetadata, match="unknown kind"):
            runtime(disk)

    on_disk(work)


def test_kinds_of_entries_come_back_as_they_were() -> None:
    async def work(disk: MemoryDisk) -> None:
        journal = Journal(disk, DIRECTORY, lambda: 1)
        journal.load()
        journal.save_vote(HardState(term=3, vote=1))
        entries = [
            Entry(term=3, index=1, kind=EntryKind.NO_OP),
            Entry(term=3, index=2, kind=EntryKind.COMMAND, data=b"[]"),
            Entry(term=4, index=3, kind=EntryKind.CONFIGURATION, data=b"{}"),
        ]
        for entry in entries:
            journal.append(entry)
        assert list(journal.entries(1)) == entries
        assert list(journal.entries(3)) == entries[2:]
        journal.log.close()
        again = Journal(disk, DIRECTORY, lambda: 1)
        assert again.load() == HardState(term=3, vote=1)
        assert list(again.entries(1)) == entries

    on_disk(work)


def test_a_snapshot_replaces_the_entries_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_ENTRY_COUNT", 10)

    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        await register(first)
        for number in range(25):
            await first.submit(topic(number))
        for _ in range(5):
            await asyncio.sleep(0)
        first.close()
        snapshots = [name for name in disk.list(DIRECTORY) if name.startswith("snapshot-")]
        assert len(snapshots) == 1
        second = runtime(disk)
        assert second.image == first.image
        assert second._journal.log.log_start_offset > 1

    on_disk(work)


def test_after_a_failed_sync_nothing_is_answered_as_done() -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        await register(metadata)
        waiting = metadata.submit(topic(1))
        metadata.on_failed(OSError("disk on fire"))
        for reply in (waiting, metadata.submit(topic(2))):
            with pytest.raises(KafkaError) as error:
                await reply
            assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "t1" not in metadata.image.topics

    on_disk(work)


def test_producer_id_blocks_are_logged_before_they_are_given() -> None:
    async def work(disk: MemoryDisk) -> None:
        first = runtime(disk)
        epoch = await register(first)
        block = await first.submit(AllocateProducerIds(node_id=1, broker_epoch=epoch))
        first.close()
        second = runtime(disk)
        assert second.image.next_producer_id == block.stop

    on_disk(work)


def test_what_is_not_committed_yet_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(disk: MemoryDisk) -> None:
        metadata = runtime(disk)
        await register(metadata)
        monkeypatch.setattr(limits, "UNCOMMITTED_BYTES_MAX", 1_000)
        replies = [metadata.submit(topic(number)) for number in range(20)]
        outcomes = await asyncio.gather(*replies, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, KafkaError)]
        assert 0 < len(refused) < 20
        assert {each.code for each in refused} == {ErrorCode.NOT_CONTROLLER}
        assert len(metadata.image.topics) == 20 - len(refused)
        await metadata.submit(topic(30))  # There is room again.

    on_disk(work)


def test_a_broken_promise_of_raft_stops_the_node() -> None:
    async def work(disk: MemoryDisk) -> None:
        told: list[BaseException] = []
        commit = GroupCommit(disk, lambda log: metadata.on_durable(), lambda log, error: None)
        metadata = MetadataRuntime(
            Journal(disk, DIRECTORY, lambda: 1), commit, 1, disk, on_broken=told.append
        )
        metadata.start()
        await register(metadata)
        node = metadata.consensus.node
        stranger = AppendEntries(
            term=node.term, sender=2, recipient=1, previous_index=0, previous_term=0
        )
        metadata.consensus.step(stranger)
        (error,) = told
        assert str(error).startswith("two leaders in one term")
        with pytest.raises(KafkaError, match="two leaders in one term"):
            await metadata.submit(topic(1))
        metadata.consensus.step(stranger)
        assert len(told) == 1

    on_disk(work)
