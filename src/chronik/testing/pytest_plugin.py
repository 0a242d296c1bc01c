"""The pytest fixture that comes with the install. Imports the broker only when a test asks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chronik.testing.broker import Broker


@pytest.fixture
def chronik() -> "Iterator[Broker]":
    """A broker of the test's own, in memory: `chronik.bootstrap` is its address."""
    from chronik.testing.broker import Broker

    with Broker() as broker:
        yield broker
