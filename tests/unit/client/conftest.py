"""A scripted broker: one topic of two partitions, answers as the test gives them."""

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest

from chronik.client.link import Address
from chronik.protocol.apis import APIS, METADATA
from chronik.protocol.connection import Request, decode_request, encode_response
from chronik.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chronik.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from chronik.protocol.schema import Message

LENGTH = Struct(">i")
Answer = Callable[[Any], Message | None]


class FakeBroker:
    """Answers each API by a function of the request; None means that no answer comes."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = {"Metadata": self.metadata, **answers}
        self.requests: list[Request] = []
        self.connection_count = 0
        self.leader_epoch = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "FakeBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def asked(self, name: str) -> list[Any]:
        """The requests of one API, in order."""
        return [request.body for request in self.requests if request.api.name == name]

    def metadata(self, request: Any) -> MetadataResponse:
        """One node, and the topic `t`."""
        partitions = [
            MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=1,
                leader_epoch=self.leader_epoch,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for index in range(2)
        ]
        found = {"t": (0, partitions)}
        names = ["t"] if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.address.port)],
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    error_code=code, name=name, topic_id=b"t" * 16, partitions=known
                )
                for name in names
                for code, known in [found.get(name, (3, []))]
            ],
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._writers.append(writer)
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._handle(decode_request(await reader.readexactly(size)), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _handle(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.api.name == "ApiVersions":
            response: Message | None = ApiVersionsResponse(error_code=0, api_keys=versions())
        else:
            self.requests.append(request)
            response = self.answers[request.api.name](request.body)
        if response is not None:
            writer.writelines(encode_response(request, response))


def versions() -> list[ApiVersion]:
    """Our own API table, but an older Metadata."""
    return [
        ApiVersion(
            api_key=api.key,
            min_version=api.versions.first,
            max_version=9 if api is METADATA else api.versions.last,
        )
        for api in APIS.values()
    ]


@pytest.fixture
def fake_broker() -> type[FakeBroker]:
    return FakeBroker
