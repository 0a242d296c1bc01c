"""One node in this process, from its options to its end.

stdout gets one line, when the node is ready; everything else is a log line on stderr. What
prevents a start is one line on stderr too: exit code 2 for a wrong setting, 1 for the rest.
SIGTERM and Ctrl-C end the node cleanly, with exit code 0.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from chronik import __version__
from chronik.config.definitions import InvalidSetting
from chronik.config.settings import Settings, resolve

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
# A node makes few cycles and many objects that stay, above all when a broker of thousands of
# partitions dies. With Python's own thresholds whole collections come in the middle of that.
GC_THRESHOLDS: Final = (10_000, 20, 50)

# Options of the same names as the settings; Kafka's own are given by --set.
SETTING_OPTIONS: Final = tuple(item.name for item in fields(Settings) if item.name != "kafka")


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says."""

    options: dict[str, str | None] = field(default_factory=dict)
    file: str | None = None
    sets: tuple[str, ...] = ()


def parse(arguments: Sequence[str]) -> Given | None:
    """The options of `chronik start`, or None if there is anything to explain to the user."""
    options: dict[str, str | None] = {}
    file: str | None = None
    sets: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, text = word.partition("=")
        value = text if equals else next(words, None)
        option = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or value is None:
            return None
        if option == "set":
            sets.append(value)
        elif option == "config":
            file = value
        elif option in SETTING_OPTIONS:
            options[option] = value
        else:
            return None
    return Given(options, file, tuple(sets))


def start(given: Given) -> int:
    """Run a node until it is told to stop; the exit code."""
    if not __debug__:
        return _refuse("python -O is refused: it removes the checks that guard the data")
    file = given.file or os.environ.get("CHRONIK_CONFIG")
    try:
        settings = resolve(given.options, os.environ, file=file, sets=given.sets)
    except InvalidSetting as error:
        return _refuse(str(error), EXIT_USAGE)
    return _run(settings)


def _run(settings: Settings) -> int:
    _raise_descriptor_limit()
    gc.set_threshold(*GC_THRESHOLDS)
    # Imported here: a wrong setting should not wait for the whole broker to load.
    from chronik import broker
    from chronik.cli import logs

    logs.configure(settings.log_level)

    def ready(node: broker.Broker) -> None:
        addresses = node.addresses
        http = "no http" if addresses.http is None else f"http {_text(addresses.http)}"
        print(
            f"chronik {__version__} node {node.node_id} is ready:"
            f" kafka {_text(addresses.kafka)}, {http}, data {settings.data_dir}",
            flush=True,
        )

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await broker.run(settings, ready, stop)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())
    except broker.StartFailed as error:
        return _refuse(str(error))
    return 0


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None  # uvloop does not exist there.
    import uvloop

    return uvloop.Loop


def _raise_descriptor_limit() -> None:
    """Each connection is a descriptor, and the usual soft limit of 1,024 is for select()."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # Some systems allow less than they say.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _refuse(message: str, code: int = EXIT_FAILED) -> int:
    print(f"chronik: {message}", file=sys.stderr)
    return code


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
