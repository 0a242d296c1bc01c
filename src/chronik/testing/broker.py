"""A node in a thread of the test's own process.

In memory unless a data directory is given, on a free port of the loopback interface. Many can run
at once. Leaving the block stops it like SIGTERM would; a second block on the same directory finds
everything again. Groups do not wait for members that no test will send: the initial rebalance
delay is zero unless it is set.

What waits, waits in the calling thread; where that is an event loop's, use `asyncio.to_thread`.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Self, TypeVar

from chronik.broker import Addresses
from chronik.broker import Broker as Node
from chronik.client.cluster import Cluster
from chronik.client.link import Address
from chronik.config.settings import Settings, resolve
from chronik.metadata.commands import AlterConfig, Command, DeleteTopic, SetMaintenance
from chronik.metadata.image import TOPIC
from chronik.storage.disk import Disk
from chronik.storage.memory import MemoryDisk
from chronik.testing.groups import is_assigned, lag_of
from chronik.testing.topic import Record, read_topic

T = TypeVar("T")

WAIT_TIMEOUT_S: Final = 30.0  # longer than any client takes to join a group, once
POLL_INTERVAL_S: Final = 0.02
_TEST_DEFAULTS: Final = {"group.initial.rebalance.delay.ms": 0}
START_TIMEOUT_S: Final = 30.0  # a data directory may have to be recovered
_MEMORY_DIR: Final = "/chronik"


class Broker:
    """A Kafka for a test: `with Broker({"num.partitions": 3}) as broker: ...`."""

    def __init__(
        self,
        kafka: Mapping[str, object] | None = None,
        *,
        data_dir: str | None = None,
        port: int = 0,
        http_port: int = -1,
        durability: str = "fsync",
    ) -> None:
        options = {
            "data_dir": data_dir or _MEMORY_DIR,
            "port": port,
            "http_port": http_port,
            "durability": durability,
        }
        self._settings = _settings(options, {**_TEST_DEFAULTS, **(kafka or {})})
        self._in_memory = data_dir is None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._addresses: Addresses | None = None
        self.node: Node | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, as `bootstrap.servers` wants it."""
        host, port = self._address.kafka
        return f"{host}:{port}"

    @property
    def http(self) -> str | None:
        """The URL of metrics and health, if there is an HTTP port."""
        http = self._address.http
        return None if http is None else f"http://{http[0]}:{http[1]}"

    @property
    def _address(self) -> Addresses:
        if self._addresses is None:
            raise RuntimeError("the broker is not running: use it in a with block")
        return self._addresses

    def start(self) -> Self:
        """Start it, and return once clients can connect."""
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="chronik-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_S} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop it cleanly; nothing happens if it is not running."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = self._addresses = self.node = None
        if self._failure is not None:
            raise self._failure

    # What tests wait for and look at.

    def topic(self, name: str) -> "Topic":
        """A topic, to look at what is in it."""
        return Topic(self, name)

    def wait_assigned(
        self, group_id: str, *, members: int = 1, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait until a group has so many members, is stable, and someone reads every partition."""

        async def is_done(cluster: Cluster) -> bool:
            return await is_assigned(cluster, group_id, members)

        self._wait(is_done, f"group {group_id} has no stable assignment", timeout_s)

    def wait_lag_zero(self, group_id: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until a group has committed everything that is in the topics it reads."""

        async def is_done(cluster: Cluster) -> bool:
            return await lag_of(cluster, group_id) == 0

        self._wait(is_done, f"group {group_id} has not read everything", timeout_s)

    def reset(self) -> None:
        """Forget topics, groups, offsets, transactions and what was set, as if just made.

        Clients that are still connected find their topics gone.
        """
        self._run_in_broker(self._forget_all())

    async def _forget_all(self) -> None:
        assert self.node is not None
        metadata = self.node.metadata
        image = metadata.image
        commands: list[Command] = [
            DeleteTopic(topic_id=topic.record.topic_id) for topic in image.topics.values()
        ]
        commands += (
            AlterConfig(resource=resource, resource_name=name, changes={}, replace_all=True)
            for resource, name in image.configs
            if resource != TOPIC  # A topic's settings go with it.
        )
        commands += (
            SetMaintenance(node_id=node_id, in_maintenance=False) for node_id in image.brokers
        )
        await asyncio.gather(*map(metadata.submit, commands))

    def ask(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Do something with a client of this broker."""
        address = Address(*self._address.kafka)

        async def connected() -> T:
            async with Cluster([address], client_id="chronik-testing") as cluster:
                return await work(cluster)

        return self._run_in_broker(connected())

    def _run_in_broker(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _wait(
        self, is_done: Callable[[Cluster], Coroutine[Any, Any, bool]], about: str, timeout_s: float
    ) -> None:
        async def wait(cluster: Cluster) -> None:
            async with asyncio.timeout(timeout_s):
                while not await is_done(cluster):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_INTERVAL_S)

        try:
            self.ask(wait)
        except TimeoutError:
            raise TimeoutError(f"{about} after {timeout_s:g} s") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        disk: Disk | None = MemoryDisk() if self._in_memory else None
        async with Node(self._settings, disk=disk) as node:
            self.node = node
            self._addresses = node.addresses
            self._started.set()
            await self._stop.wait()


class Topic:
    """A topic of a broker under test."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._broker = broker

    @property
    def records(self) -> list[Record]:
        """What a new reader of committed data would get, partition by partition, now."""
        return self._broker.ask(lambda cluster: read_topic(cluster, self.name))


def _settings(options: dict[str, Any], kafka: Mapping[str, object]) -> Settings:
    sets = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in kafka.items()
    ]
    return resolve(options, {}, sets=sets)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
