"""A real broker for tests, in this process: no Docker, no JVM, ready in milliseconds.

    from chronik.testing import Broker

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

With the package installed, pytest has a fixture `chronik` that gives each test one of its own.
"""

from chronik.testing.broker import Broker

__all__ = ["Broker"]
