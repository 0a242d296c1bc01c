"""A node that registers: what it bears, and what ends its start."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chronik.clock import SystemClock
from chronik.metadata.commands import RegisterBroker
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.server import supervision
from chronik.server.supervision import Supervision

EPOCH = 17
COMMAND: Any = SimpleNamespace(node_id=1)


class Metadata:
    """A cluster that refuses at first, with these codes."""

    is_leading = False
    failure: BaseException | None = None

    def __init__(self, *refusals: ErrorCode, own_disk_is_full: bool = False) -> None:
        self._refusals = list(refusals)
        node = SimpleNamespace(leader_id=2)
        full = OSError("no room") if own_disk_is_full else None
        self.consensus = SimpleNamespace(full=full, node=node)
        self.submitted = 0
        self.beats = 0

    async def submit(self, command: RegisterBroker) -> int:
        self.submitted += 1
        if self._refusals:
            raise KafkaError(self._refusals.pop(0))
        return EPOCH

    async def call(self, node_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self.beats += 1
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "HEARTBEAT_S", 0.001)


def supervising(metadata: Any) -> Supervision:
    return Supervision(metadata, SystemClock(), lambda node_id: True)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.KAFKA_STORAGE_ERROR,  # of a disk that has room again
    ],
)
def test_a_node_registers_as_soon_as_the_leader_can(code: ErrorCode) -> None:
    metadata = Metadata(code, code)
    assert asyncio.run(supervising(metadata).register(COMMAND)) == EPOCH
    assert metadata.submitted == 3


def test_a_follower_with_a_full_disk_waits_for_a_leader_like_any_other() -> None:
    metadata = Metadata(ErrorCode.NOT_CONTROLLER, own_disk_is_full=True)
    assert asyncio.run(supervising(metadata).register(COMMAND)) == EPOCH


@pytest.mark.parametrize(
    "metadata",
    [
        Metadata(ErrorCode.INVALID_REQUEST),
        Metadata(ErrorCode.KAFKA_STORAGE_ERROR, own_disk_is_full=True),
    ],
    ids=["refused", "own disk"],
)
def test_what_a_person_must_mend_ends_the_start(metadata: Metadata) -> None:
    with pytest.raises(KafkaError):
        asyncio.run(supervising(metadata).register(COMMAND))


def test_heartbeats_go_on_after_a_registration_that_failed() -> None:
    metadata = Metadata(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST)

    async def beating() -> None:
        task = asyncio.create_task(supervising(metadata).heartbeats(COMMAND, EPOCH))
        async with asyncio.timeout(10):
            while metadata.submitted < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert not task.done()
        task.cancel()

    asyncio.run(beating())
