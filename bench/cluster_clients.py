"""What clients do to a cluster in `bench.cluster`: the same against either server.

The three ways to make thousands of topics are those of the first report: one client with requests
of a hundred topics, ten threads and a hundred threads with a request for each topic.
"""

import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import pack, unpack
from typing import Any, Self

from chronik.protocol.apis import CREATE_TOPICS, METADATA, Api
from chronik.protocol.codec import decoder, encode
from chronik.protocol.messages.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    skip_tagged_fields,
)
from chronik.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from chronik.protocol.schema import Message

METADATA_VERSION, CREATE_VERSION = 12, 7
PARTITIONS, REPLICAS = 3, 3
BATCH = 100
TIMEOUT_S = 120.0


class Wire:
    """A blocking connection to one node, whose times are the server's and little else."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, api: Api, version: int, request: Message) -> None:
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=api.key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id="bench",
        )
        frame = encode_request_header(header, api.request_header_version(version))
        frame += encode(request, version, api.is_flexible(version))
        self._socket.sendall(pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The bytes of the next answer."""
        return self._exactly(unpack(">i", self._exactly(4))[0])

    def ask(self, api: Api, version: int, request: Message) -> Any:
        """Send and wait for the answer."""
        self.send(api, version, request)
        data = self.receive()
        _, position = decode_response_header(data)
        if api.response_header_version(version):
            position = skip_tagged_fields(data, position)
        return decoder(api.response, version, api.is_flexible(version))(data, position)[0]

    def metadata(self, names: Sequence[str] | None) -> MetadataResponse:
        """What the node tells of these topics, or of all."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer: MetadataResponse = self.ask(METADATA, METADATA_VERSION, request)
        return answer

    def create(self, name: str, timeout_ms: int = 30_000) -> int:
        """Create one topic; the error code."""
        topic = CreatableTopic(
            name=name,
            num_partitions=PARTITIONS,
            replication_factor=REPLICAS,
            assignments=(),
            configs=(),
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        return int(self.ask(CREATE_TOPICS, CREATE_VERSION, request).topics[0].error_code)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed by the node")
            data += chunk
        return bytes(data)


Catalog = dict[str, tuple[Any, ...]]


def catalog(wire: Wire) -> Catalog:
    """All topics as one node tells them: id, and for each partition its leader and replicas."""
    return {
        topic.name or "": (
            topic.topic_id,
            *((each.leader_id, tuple(each.replica_nodes)) for each in topic.partitions),
        )
        for topic in wire.metadata(None).topics
        if not topic.is_internal
    }


# Making topics.


@dataclass
class Made:
    """How it went."""

    seconds: float = 0.0
    count: int = 0
    errors: list[str] = field(default_factory=list)


def _admin(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _create(admin: Any, names: Sequence[str], made: Made) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    topics = [NewTopic(name, PARTITIONS, REPLICAS) for name in names]
    futures = admin.create_topics(topics, operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_S)
            made.count += 1
        except KafkaException as error:
            made.errors.append(f"{name}: {error}")


def create_in_batches(bootstrap: str, names: Sequence[str]) -> Made:
    """One client, a hundred topics a request, one request after the other."""
    made = Made()
    admin = _admin(bootstrap)
    admin.list_topics(timeout=TIMEOUT_S)  # Connected: what is counted is creation.
    began = time.monotonic()
    for first in range(0, len(names), BATCH):
        _create(admin, names[first : first + BATCH], made)
    made.seconds = time.monotonic() - began
    return made


def delete_topics(bootstrap: str, names: Sequence[str]) -> list[str]:
    """Delete topics by one request; what was refused."""
    from confluent_kafka import KafkaException

    errors = []
    admin = _admin(bootstrap)
    deleted = admin.delete_topics(list(names), operation_timeout=TIMEOUT_S)
    for name, future in deleted.items():
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            errors.append(f"{name}: {error}")
    return errors


def create_in_threads(bootstrap: str, names: Sequence[str], thread_count: int) -> Made:
    """So many threads, each with a client of its own, one topic a request."""
    parts = [Made() for _ in range(thread_count)]
    ready = threading.Barrier(thread_count + 1)

    def work(number: int) -> None:
        admin = _admin(bootstrap)
        admin.list_topics(timeout=TIMEOUT_S)
        ready.wait()
        for name in names[number::thread_count]:
            _create(admin, [name], parts[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(thread_count)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    return Made(
        seconds=time.monotonic() - began,
        count=sum(part.count for part in parts),
        errors=[error for part in parts for error in part.errors],
    )


SCRIPTS: dict[str, Callable[[str, Sequence[str]], Made]] = {
    "requests of 100": create_in_batches,
    "10 threads": lambda bootstrap, names: create_in_threads(bootstrap, names, 10),
    "100 threads": lambda bootstrap, names: create_in_threads(bootstrap, names, 100),
}


def topic_names(count: int) -> list[str]:
    """Names that nobody has."""
    prefix = uuid.uuid4().hex[:6]
    return [f"topic-{prefix}-{number:05}" for number in range(count)]
