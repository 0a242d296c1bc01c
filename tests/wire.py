"""A client that speaks any version of any API, one blocking connection at a time."""

import socket
from struct import pack, unpack
from typing import Any

from chronik.protocol.apis import Api
from chronik.protocol.codec import decoder, encode
from chronik.protocol.messages.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    skip_tagged_fields,
)
from chronik.protocol.schema import Message


class Wire:
    """A blocking connection that sends any request in any version."""

    def __init__(self, bootstrap: str, timeout_s: float = 10.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    def send(self, api: Api, version: int, request: Message) -> int:
        """Send without waiting; the number that its answer will have."""
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=api.key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id="test",
        )
        head = encode_request_header(header, api.request_header_version(version))
        body = encode(request, version, api.is_flexible(version))
        self.frame(head + body)
        return self._correlation_id

    def frame(self, data: bytes) -> None:
        self.socket.sendall(pack(">i", len(data)) + data)

    def receive(self, api: Api, version: int) -> tuple[int, Any]:
        """The next answer: its number and its value."""
        data = self.exactly(unpack(">i", self.exactly(4))[0])
        header, position = decode_response_header(data)
        if api.response_header_version(version):
            position = skip_tagged_fields(data, position)
        value, position = decoder(api.response, version, api.is_flexible(version))(data, position)
        assert position == len(data)
        return header.correlation_id, value

    def ask(self, api: Api, version: int, request: Message) -> Any:
        """Send and wait for the answer."""
        number = self.send(api, version, request)
        answered, response = self.receive(api, version)
        assert answered == number
        return response

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed by the broker")
            data += chunk
        return bytes(data)

    def is_closed(self) -> bool:
        """Whether the broker has closed the connection, waiting for it a moment."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()
