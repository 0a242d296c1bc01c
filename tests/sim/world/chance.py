"""Everything that the code under test leaves to chance, from one seed.

The brokers take random numbers and ids from the standard library. While a world lives, those come
from its seed, so that a run can be repeated exactly. The memory of thousands of brokers must go
when they do, so that what production keeps for ever (`gc.freeze`) is not kept here.
"""

import gc
import random
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from chronik.client.internal_link import FrameLink
from chronik.replication.partition import Partition
from chronik.server.connection import Connection

BROKER_THREAD = "chronik-broker"  # of chronik.testing


def _numbered() -> Callable[[Any], int]:
    """A hash that says which object came first, and not where it lies in memory."""
    numbers: dict[int, tuple[int, Any]] = {}  # The object too: nobody gets its address meanwhile.

    def hash_of(thing: Any) -> int:
        return numbers.setdefault(id(thing), (len(numbers), thing))[0]

    return hash_of


@contextmanager
def seeded(seed: object) -> Iterator[None]:
    """The standard library's chance follows from a seed."""
    # It would find neither its connections nor its partitions again once hashes are others.
    real = [thread.name for thread in threading.enumerate() if thread.name == BROKER_THREAD]
    assert not real, "a real broker runs in this process"
    chance = random.Random(f"library {seed}")
    with (
        patch.object(uuid, "uuid4", lambda: uuid.UUID(bytes=chance.randbytes(16), version=4)),
        patch.object(secrets, "token_bytes", lambda size=32: chance.randbytes(size)),
        patch.object(gc, "freeze", lambda: None),
        # What is in a set is walked in the order of hashes.
        patch.object(FrameLink, "__hash__", _numbered()),
        patch.object(Connection, "__hash__", _numbered()),
        patch.object(Partition, "__hash__", _numbered()),
    ):
        state = random.getstate()
        random.seed(f"shared {seed}")
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected while this lasts; before it all is, and what remains is kept."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
