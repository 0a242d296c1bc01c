"""What all tests share: a broker, and a client that speaks any version of any API to it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that tests share

from wire import Wire

from chronik.testing import Broker

if TYPE_CHECKING:
    from object_store import TestStore


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of the test's own, in memory."""
    with Broker() as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[[Broker], Wire]]:
    """Opens connections, and closes them after the test."""
    wires: list[Wire] = []

    def open_wire(running: Broker) -> Wire:
        wires.append(Wire(running.bootstrap))
        return wires[-1]

    yield open_wire
    for wire in wires:
        wire.close()


@pytest.fixture(scope="session")
def object_store() -> Iterator["TestStore"]:
    """An S3-compatible store; tests share it, each below a prefix of its own."""
    from object_store import TestStore

    store = TestStore()
    yield store
    store.close()


@pytest.fixture
def wire(broker: Broker, connect: Callable[[Broker], Wire]) -> Wire:
    return connect(broker)
