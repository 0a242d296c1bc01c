"""What precedes every request and response.

The two header versions in use begin alike; version 2 of the request's and version 1 of the
response's only add tagged fields. The client id keeps its two-byte length in both, so that a
broker can read the header of a request whose version it does not know. Therefore a request's
header is read in two steps: `decode_request_header`, which suffices to look up the API, and
`skip_tagged_fields` if that version of the API is flexible.

Version 0, without a client id, was only ever used by ControlledShutdown, which we do not serve.
"""

from chronik.protocol.codec import decoder, encode
from chronik.protocol.schema import Buffer, Message, int16, int32, string


class RequestHeader(Message):
    """Which API and version, under which number, from whom."""

    request_api_key: int16
    request_api_version: int16
    correlation_id: int32
    client_id: string | None


class ResponseHeader(Message):
    """The number of the request that is answered."""

    correlation_id: int32


class HeaderTail(Message):
    """The tagged fields at the end of a flexible header. None is known."""


def decode_request_header(data: Buffer, position: int = 0) -> tuple[RequestHeader, int]:
    """The header up to its tagged fields, and the position after it."""
    return decoder(RequestHeader, 1, False)(data, position)


def decode_response_header(data: Buffer, position: int = 0) -> tuple[ResponseHeader, int]:
    """The header up to its tagged fields, and the position after it."""
    return decoder(ResponseHeader, 0, False)(data, position)


def skip_tagged_fields(data: Buffer, position: int) -> int:
    """The position after the tagged fields that end a flexible header."""
    _, position = decoder(HeaderTail, 0, True)(data, position)
    return position


def encode_request_header(header: RequestHeader, version: int) -> bytes:
    """The bytes of a header of version 1 or 2."""
    return encode(header, 1, False) + _tail(flexible=version >= 2)


def encode_response_header(correlation_id: int, version: int) -> bytes:
    """The bytes of a header of version 0 or 1."""
    return correlation_id.to_bytes(4, "big", signed=True) + _tail(flexible=version >= 1)


def _tail(*, flexible: bool) -> bytes:
    return b"\x00" if flexible else b""
