"""`python -m bench.inside`: what a node costs inside, without a network or another server.

Two tables: microseconds to decode and encode the hot messages (one topic, one partition), and the
longest callbacks of the event loop, in CPU time of its thread, while clients create topics, write,
read and compact at once.
"""

import asyncio
import gc
import heapq
import tempfile
import threading
import time
import timeit
import uuid
from typing import Any

from chronik.protocol import apis
from chronik.protocol.codec import decoder, encode, encoder
from chronik.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chronik.protocol.schema import Message
from chronik.testing import broker as testing

TOPIC_ID = uuid.UUID(int=7).bytes
ROUNDS = 20_000


def hot_messages() -> list[tuple[apis.Api, int, Message]]:
    """The messages of a busy producer and consumer, in the versions of new and older clients."""
    records = bytes(1000)
    named = {"name": "orders", "topic_id": TOPIC_ID}
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                partition_data=[PartitionProduceData(index=3, records=records)], **named
            )
        ],
    )
    produced = ProduceResponse(
        responses=[
            TopicProduceResponse(
                partition_responses=[
                    PartitionProduceResponse(index=3, error_code=0, base_offset=12345)
                ],
                **named,
            )
        ]
    )
    asked = FetchPartition(partition=3, fetch_offset=12345, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[asked])],
    )
    data = PartitionData(partition_index=3, error_code=0, high_watermark=12345, records=records)
    fetched = FetchResponse(
        responses=[FetchableTopicResponse(topic="orders", topic_id=TOPIC_ID, partitions=[data])]
    )
    messages: list[tuple[apis.Api, int, Message]] = []
    for version in (7, 13):
        messages += [(apis.PRODUCE, version, produce), (apis.PRODUCE, version, produced)]
    for version in (11, 18):
        messages += [(apis.FETCH, version, fetch), (apis.FETCH, version, fetched)]
    return messages


def show_codec() -> None:
    print(f"{'message':28}{'decode us':>12}{'encode us':>12}")
    for api, version, value in hot_messages():
        flexible = api.is_flexible(version)
        data = memoryview(encode(value, version, flexible))
        decode = decoder(type(value), version, flexible)
        parts = encoder(type(value), version, flexible)
        times = [
            min(timeit.repeat(work, number=ROUNDS, repeat=3)) / ROUNDS * 1e6
            for work in (lambda: decode(data, 0), lambda: parts(value))  # noqa: B023
        ]
        print(f"{type(value).__name__ + f' v{version}':28}{times[0]:12.2f}{times[1]:12.2f}")


class Watched:
    """Measures every callback of the loops of this process, and keeps the longest."""

    def __init__(self) -> None:
        self.longest: list[tuple[float, int, str]] = []
        self.count = 0
        self._collected_s = 0.0
        self._collecting_since = 0.0

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._collected_s += time.thread_time() - self._collecting_since

    def install(self) -> None:
        run = asyncio.Handle._run
        gc.callbacks.append(self._collects)

        def measured(handle: Any) -> None:
            collected_s = self._collected_s
            began = time.thread_time()
            run(handle)
            spent = time.thread_time() - began
            self.count += 1
            if len(self.longest) < 8 or spent > self.longest[0][0]:
                collecting_ms = (self._collected_s - collected_s) * 1000
                name = f"{_name(handle)}, {collecting_ms:.1f} ms of it the garbage collector"
                entry = (spent, self.count, name)
                push = heapq.heappush if len(self.longest) < 8 else heapq.heappushpop
                push(self.longest, entry)

        asyncio.Handle._run = measured  # type: ignore[method-assign]


def _name(handle: Any) -> str:
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    return task.get_name() if isinstance(task, asyncio.Task) else repr(callback)[:70]


def load(bootstrap: str, seconds: float) -> None:
    """Topics, writers, readers and a compacted topic, all at once."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    end = time.monotonic() + seconds
    admin = AdminClient({"bootstrap.servers": bootstrap})
    compacted = NewTopic(
        "compacted",
        1,
        1,
        config={
            "cleanup.policy": "compact",
            "segment.bytes": "1000000",
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    for made in admin.create_topics([compacted, NewTopic("orders", 3, 1)]).values():
        made.result(10)

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        number = 0
        while time.monotonic() < end:
            number += 1
            try:
                producer.produce("orders", bytes(1000))
                producer.produce("compacted", bytes(100), key=str(number % 1000))
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        producer.flush(20)

    def read() -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition("orders", n, 0) for n in range(3)])
        while time.monotonic() < end:
            consumer.consume(1000, 0.2)
        consumer.close()

    def create() -> None:
        number = 0
        while time.monotonic() < end:
            topics = [NewTopic(f"topic-{number + n}", 3, 1) for n in range(100)]
            for made in admin.create_topics(topics).values():
                made.result(20)
            number += 100
            admin.list_topics(timeout=10)
            time.sleep(0.2)
        print(f"({number} topics of 3 partitions were created)")

    threads = [threading.Thread(target=work) for work in (write, read, create)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def show_callbacks(seconds: float) -> None:
    watched = Watched()
    watched.install()
    testing._loop_factory = lambda: asyncio.SelectorEventLoop  # its callbacks can be measured
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as home:
        settings = {"log.cleaner.backoff.ms": 1000}
        with testing.Broker(settings, data_dir=home) as node:
            load(node.bootstrap, seconds)
    print(f"\nlongest of {watched.count} callbacks, ms of thread CPU time")
    for spent, _, name in sorted(watched.longest, reverse=True):
        print(f"{spent * 1000:8.2f}  {name}")


if __name__ == "__main__":
    show_codec()
    show_callbacks(20.0)
