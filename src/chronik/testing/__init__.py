"""A real broker for tests, in this process: no Docker, no JVM, ready in milliseconds.

    from chronik.testing import Broker

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

        ...
        broker.wait_assigned("billing")  # a group has its partitions
        broker.wait_lag_zero("billing")  # and has read and committed everything
        assert [record.value for record in broker.topic("orders").records] == [...]
        broker.reset()  # as new

With the package installed, pytest has a fixture `chronik` that gives each test one of its own.
"""

from chronik.testing.broker import Broker, Topic
from chronik.testing.topic import Record

__all__ = ["Broker", "Record", "Topic"]
