"""OffsetCommit, OffsetFetch and OffsetDelete on the wire, in all of their versions."""

from typing import Any

import pytest

from chronik.protocol import coordinator_apis
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import FindCoordinatorRequest
from chronik.protocol.messages.offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from chronik.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

COMMIT_VERSIONS = range(coordinator_apis.OFFSET_COMMIT.versions.last + 1)
FETCH_VERSIONS = range(coordinator_apis.OFFSET_FETCH.versions.last + 1)


@pytest.fixture
def topic_id(wire: Any, say: Any) -> bytes:
    """That of the topic t. The coordinator is there, too."""
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    (found,) = wire.ask(coordinator_apis.FIND_COORDINATOR, 4, request).coordinators
    assert found.error_code == ErrorCode.NONE
    created: bytes = say.create(wire, "t")
    return created


def commit(wire: Any, version: int, offset: int, topic: dict[str, Any], **fields: Any) -> ErrorCode:
    each = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="note"
    )
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(partitions=[each], **topic)], **fields
    )
    answer = wire.ask(coordinator_apis.OFFSET_COMMIT, version, request)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch(wire: Any, version: int, topic: dict[str, Any] | None, group_id: str = "g") -> Any:
    topics = None
    if topic is not None:
        topics = [OffsetFetchRequestTopic(partition_indexes=[0], **topic)]
    if version >= 8:
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=topics)]
        answer = wire.ask(
            coordinator_apis.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups)
        ).groups[0]
    else:
        request = OffsetFetchRequest(group_id=group_id, topics=topics)
        answer = wire.ask(coordinator_apis.OFFSET_FETCH, version, request)
    assert answer.error_code == ErrorCode.NONE
    return answer.topics


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commit(wire: Any, topic_id: bytes, version: int) -> None:
    topic = {"name": "t"} if version < 10 else {"topic_id": topic_id}
    assert commit(wire, version, 40 + version, topic) is ErrorCode.NONE
    (found,) = fetch(wire, 9, {"name": "t"})
    assert found.partitions[0].committed_offset == 40 + version
    assert found.partitions[0].metadata == "note"


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch(wire: Any, topic_id: bytes, version: int) -> None:
    commit(wire, 8, 7, {"name": "t"})
    topic = {"name": "t"} if version < 10 else {"topic_id": topic_id}
    (found,) = fetch(wire, version, topic)
    assert found.partitions[0].committed_offset == 7
    if version >= 2:
        (found,) = fetch(wire, version, None)
        assert found.partitions[0].committed_offset == 7
    (found,) = fetch(wire, version, topic, group_id="nobody")
    assert found.partitions[0].committed_offset == -1
    assert found.partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", COMMIT_VERSIONS[1:])
def test_refused_commit_names_each_partition(wire: Any, topic_id: bytes, version: int) -> None:
    topic = {"name": "t"} if version < 10 else {"topic_id": bytes(16)}
    fields = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    expected = ErrorCode.ILLEGAL_GENERATION if version < 9 else ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(wire, version, 1, topic, **fields) is expected


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_without_a_coordinator(wire: Any, version: int) -> None:
    """Nobody has asked for a coordinator yet: there is no topic of offsets."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
    request = OffsetFetchRequest(group_id="g", topics=topics, groups=groups)
    answer = wire.ask(coordinator_apis.OFFSET_FETCH, version, request)
    if version >= 8:
        assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    elif version >= 2:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
    else:
        codes = [each.error_code for each in answer.topics[0].partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2


def test_delete(wire: Any, topic_id: bytes) -> None:
    each = OffsetDeleteRequestTopic(
        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    request = OffsetDeleteRequest(group_id="g", topics=[each])
    assert (
        wire.ask(coordinator_apis.OFFSET_DELETE, 0, request).error_code
        == ErrorCode.GROUP_ID_NOT_FOUND
    )
    commit(wire, 8, 7, {"name": "t"})
    answer = wire.ask(coordinator_apis.OFFSET_DELETE, 0, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert fetch(wire, 9, {"name": "t"})[0].partitions[0].committed_offset == -1


@pytest.mark.parametrize("version", range(6))
def test_offsets_in_a_transaction_that_is_not_open(
    wire: Any, topic_id: bytes, version: int
) -> None:
    each = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=5,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[each])],
    )
    answer = wire.ask(coordinator_apis.TXN_OFFSET_COMMIT, version, request)
    assert answer.topics[0].partitions[0].error_code != ErrorCode.NONE
    assert fetch(wire, 9, {"name": "t"})[0].partitions[0].committed_offset == -1
