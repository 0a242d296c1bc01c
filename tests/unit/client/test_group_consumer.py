"""A member's heartbeats, with a coordinator that only remembers them."""

import asyncio
from types import SimpleNamespace

from chronik.client.group_consumer import GroupConsumer
from chronik.coordinator.consumer.heartbeat import is_full


class Remembering:
    def __init__(self):
        self.requests = []

    async def ask(self, key_type, key, request, api, code_of):
        self.requests.append(request)
        return SimpleNamespace(
            error_code=0,
            error_message=None,
            member_id=request.member_id,
            member_epoch=1,
            assignment=None,
            heartbeat_interval_ms=1_000,
        )


def test_every_heartbeat_is_one_that_is_told_the_assignment():
    async def beat_twice():
        consumer = GroupConsumer(SimpleNamespace(), "group", ["orders"])
        consumer._coordinators = coordinators
        await consumer._heartbeat()
        await consumer._heartbeat()

    coordinators = Remembering()
    asyncio.run(beat_twice())
    assert [each.member_epoch for each in coordinators.requests] == [0, 1]
    assert all(map(is_full, coordinators.requests))
