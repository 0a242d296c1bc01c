"""What all tests share: a broker, and a client that speaks any version of any API to it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that tests share

from wire import Wire

from chronik.testing import Broker


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


@pytest.fixture
def wire(broker: Broker, connect: Callable[[Broker], Wire]) -> Wire:
    return connect(broker)
