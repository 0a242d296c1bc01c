"""Requests to the coordinator of a group or a transactional id, wherever it is.

The coordinator is looked up once for each key and asked again when it turns out to be elsewhere.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from chronik.client.cluster import Cluster, check
from chronik.protocol.api import Api
from chronik.protocol.coordinator_apis import FIND_COORDINATOR
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from chronik.protocol.schema import Message

# Another node coordinates the key, or the same one will in a moment.
_ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class KeyType(IntEnum):
    """What a coordinator is looked up by, in Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """The coordinators of groups and transactional ids, as far as they were asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: dict[tuple[KeyType, str], int] = {}

    async def find(self, key_type: KeyType, key: str) -> int:
        """The node that coordinates a key."""
        node_id = self._nodes.get((key_type, key))
        if node_id is None:
            node_id = await self._find(key_type, key)
            self._nodes[key_type, key] = node_id
        return node_id

    async def _find(self, key_type: KeyType, key: str) -> int:
        request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        link = await self._cluster.any_link()
        response: FindCoordinatorResponse = await link.send(
            request, FIND_COORDINATOR, timeout_s=self._cluster.timeout_s
        )
        about = f"the coordinator of {key_type.name.lower()} {key}"
        if not response.coordinators:
            check(response.error_code, about, response.error_message)
            node_id = response.node_id
        else:
            (found,) = response.coordinators
            check(found.error_code, about, found.error_message)
            node_id = found.node_id
        if node_id not in self._cluster.brokers:
            await self._cluster.refresh(())
        return node_id

    async def ask(
        self,
        key_type: KeyType,
        key: str,
        request: Message,
        api: Api,
        code_of: Callable[[Any], int],
        *,
        version_max: int | None = None,
    ) -> Any:
        """The coordinator's answer; `code_of` tells whether it was the wrong node."""

        async def once() -> Any:
            link = await self._cluster.link(await self.find(key_type, key))
            answer = await link.send(
                request, api, timeout_s=self._cluster.timeout_s, version_max=version_max
            )
            if code_of(answer) in _ELSEWHERE:
                self._nodes.pop((key_type, key), None)
                raise KafkaError(ErrorCode(code_of(answer)), f"{key_type.name.lower()} {key}")
            return answer

        try:
            return await self._cluster.retry(once)
        except BaseException:
            self._nodes.pop((key_type, key), None)
            raise
