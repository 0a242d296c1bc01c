"""A node in a thread of the test's own process.

In memory unless a data directory is given, on a free port of the loopback interface. Many can run
at once. Leaving the block stops it like SIGTERM would; a second block on the same directory finds
everything again.
"""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

from chronik.broker import Addresses
from chronik.broker import Broker as Node
from chronik.config.settings import Settings, resolve
from chronik.storage.disk import Disk
from chronik.storage.memory import MemoryDisk

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
        self._settings = _settings(options, kafka or {})
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
