"""A cluster as a client sees it: its nodes, who leads which partition, and a link to each.

Metadata is cached, and fetched anew when it is old or proved wrong. `retry` is the one place that
decides what is worth another try: a failed connection or a retriable code, after fresh metadata,
with growing pauses, until a deadline. Then the last error is raised, since it says the most.

At the start there is no second try: if no bootstrap address answers, the user hears it at once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from chronik.client.link import TIMEOUT_S, Address, ConnectionFailed, Link, Untrusted
from chronik.client.security import PLAINTEXT, Security
from chronik.model import TopicPartition
from chronik.protocol.apis import METADATA, Api
from chronik.protocol.errors import RETRIABLE, ErrorCode, KafkaError
from chronik.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from chronik.protocol.schema import Message

T = TypeVar("T")

METADATA_AGE_MAX_S: Final = 300.0  # Kafka's own: new partitions are noticed within five minutes.
BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
# A topic that is not there may be about to be created, or never: longer than any cluster takes to
# create one, and shorter than anybody's patience with a misspelt name.
UNKNOWN_TOPIC_TIMEOUT_S: Final = 3.0


def error_code(code: int) -> ErrorCode:
    """The code's name, or UNKNOWN_SERVER_ERROR for one that is newer than we are."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise KafkaError unless the code is zero."""
    if code:
        name = error_code(code)
        raise KafkaError(name, f"{about}: {message}" if message and message != name.name else about)


def check_topic(code: int, name: str | None) -> None:
    """Raise KafkaError unless there is such a topic."""
    missing = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    check(code, f"there is no topic {name}" if missing else f"topic {name}")


def patience_s(error: KafkaError | ConnectionFailed, timeout_s: float) -> float:
    """For how long to try again: the same request may succeed later, or at another node."""
    if isinstance(error, ConnectionFailed):
        return 0.0 if isinstance(error, Untrusted) else timeout_s
    if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return min(timeout_s, UNKNOWN_TOPIC_TIMEOUT_S)
    return timeout_s if error.code in RETRIABLE else 0.0


def backoff() -> Iterator[float]:
    """Pauses between tries, in seconds: 0.05, 0.1, 0.2 and so on up to a second."""
    pause = BACKOFF_S
    while True:
        yield pause
        pause = min(2 * pause, BACKOFF_MAX_S)


class _Known(NamedTuple):
    """A topic's metadata and when it was learnt."""

    topic: MetadataResponseTopic
    partitions: dict[int, MetadataResponsePartition]
    at: float


class Cluster:
    """Links and metadata; used as `async with Cluster(bootstrap) as cluster`."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "chronik",
        timeout_s: float = TIMEOUT_S,
        security: Security = PLAINTEXT,
    ) -> None:
        assert bootstrap, "a cluster needs an address to begin with"
        self.timeout_s = timeout_s
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, Address] = {}
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._security = security
        self._links: dict[Address, Link] = {}
        self._connecting: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._topics: dict[str, _Known] = {}

    async def __aenter__(self) -> Self:
        await self.refresh(())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all links."""
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        await asyncio.sleep(0)  # The loop gets its turn to close the sockets.

    # Links

    async def link(self, node_id: int) -> Link:
        """The link to a node, opened if need be."""
        address = self.brokers.get(node_id)
        if address is None:
            message = f"node {node_id} is not in the cluster's metadata"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, message)
        return await self._connect(address)

    async def any_link(self) -> Link:
        """A link to whichever node answers, an open one first."""
        for link in self._links.values():
            if link.is_open:
                return link
        failure: ConnectionFailed | None = None
        for address in dict.fromkeys([*self.brokers.values(), *self._bootstrap]):
            try:
                return await self._connect(address)
            except ConnectionFailed as error:
                failure = error
        assert failure is not None
        raise failure

    async def _connect(self, address: Address) -> Link:
        async with self._connecting[address]:  # Whoever comes second finds the first one's link.
            link = self._links.get(address)
            if link is None or not link.is_open:
                link = await Link.connect(
                    address,
                    client_id=self._client_id,
                    timeout_s=self.timeout_s,
                    security=self._security,
                )
                self._links[address] = link
            return link

    async def send_to_controller(self, request: Message, api: Api) -> Any:
        """The controller's answer. In a cluster whose nodes all forward, any node is named."""
        if self.controller_id not in self.brokers:
            await self.refresh(())
        known = self.controller_id in self.brokers
        link = await (self.link(self.controller_id) if known else self.any_link())
        return await link.send(request, api, timeout_s=self.timeout_s)

    # Metadata

    async def refresh(
        self, topics: Iterable[str] | None, *, auto_create: bool = False
    ) -> MetadataResponse:
        """Fetch metadata of some topics or, by None, of all; remember what was found."""
        link = await self.any_link()
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=auto_create)
        response: MetadataResponse = await link.send(request, METADATA, timeout_s=self.timeout_s)
        check(response.error_code, "metadata")
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: Address(broker.host, broker.port) for broker in response.brokers
        }
        now = asyncio.get_running_loop().time()
        for topic in response.topics:
            if topic.name is not None:
                partitions = {found.partition_index: found for found in topic.partitions}
                self._topics[topic.name] = _Known(topic, partitions, now)
        return response

    def forget(self, topics: Iterable[str]) -> None:
        """Drop cached metadata that proved wrong."""
        for name in topics:
            self._topics.pop(name, None)

    async def topic(self, name: str, *, auto_create: bool = False) -> MetadataResponseTopic:
        """A topic's metadata, or KafkaError if there is no such topic."""
        return (await self._known(name, auto_create)).topic

    async def partition(self, partition: TopicPartition) -> MetadataResponsePartition:
        """A partition that has a leader, or KafkaError."""
        known = await self._known(partition.topic, auto_create=False)
        found = known.partitions.get(partition.partition)
        if found is None:
            count = len(known.partitions)
            message = f"{partition.topic} has no partition {partition.partition}, only {count}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        if found.leader_id < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition}")
        return found

    async def _known(self, name: str, auto_create: bool) -> _Known:
        now = asyncio.get_running_loop().time()
        known = self._topics.get(name)
        if known is None or known.topic.error_code or now - known.at > METADATA_AGE_MAX_S:
            await self.refresh((name,), auto_create=auto_create)
            known = self._topics.get(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else known.topic.error_code
        check_topic(code, name)
        assert known is not None
        return known

    async def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        """The partitions, grouped by the node that leads them."""
        groups: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader_id = (await self.partition(partition)).leader_id
            groups.setdefault(leader_id, []).append(partition)
        return groups

    async def retry(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        topics: Sequence[str] = (),
        timeout_s: float | None = None,
        codes: frozenset[ErrorCode] | None = None,
    ) -> T:
        """Do the work, and again while it fails for a passing reason and there is time.

        With `codes`, only for these: others may mean that it was done, and the answer got lost.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        for pause in backoff():
            try:
                return await work()
            except (KafkaError, ConnectionFailed) as error:
                if codes is not None and getattr(error, "code", None) not in codes:
                    raise
                if clock() + pause > started + patience_s(error, timeout_s):
                    raise
            await asyncio.sleep(pause)
            self.forget(topics)
            self.controller_id = -1
        raise AssertionError("the pauses never end")
