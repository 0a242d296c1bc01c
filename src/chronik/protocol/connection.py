"""One connection's bytes: frames in, requests out, responses to bytes. No input or output here.

A frame is a four-byte length and a request: api key, version, correlation id, client id, in
flexible versions tagged fields, then the body. A response repeats the correlation id.

    decode_request(frame) -> Request            or ProtocolError, and the connection is closed
    encode_response(request, response) -> parts  of a framed response

ApiVersions is the exception that lets any client begin: asked in a version that we do not know,
it is answered in version 0 with UNSUPPORTED_VERSION and the whole list.
"""

from struct import Struct
from typing import Final, NamedTuple, cast

from chronik.protocol.apis import API_VERSIONS, APIS, Api
from chronik.protocol.codec import decoder, encoder
from chronik.protocol.errors import ProtocolError
from chronik.protocol.messages.api_versions import ApiVersionsRequest
from chronik.protocol.messages.headers import decode_request_header, skip_tagged_fields
from chronik.protocol.schema import Buffer, Message, Part

FRAME_HEADER_SIZE: Final = 4
_RESPONSE_HEAD: Final = Struct(">ii")
_RESPONSE_HEAD_FLEXIBLE: Final = Struct(">iiB")


class UnsupportedRequest(ProtocolError):
    """An API or version that is not served."""


class Request(NamedTuple):
    """A decoded request."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: Message
    is_unsupported_version: bool = False  # only for ApiVersions; the answer is then in version 0


def decode_request(frame: Buffer) -> Request:
    """The request in a frame (without the frame's length), or ProtocolError."""
    header, position = decode_request_header(frame)
    key, version = header.request_api_key, header.request_api_version
    api = APIS.get(key)
    if api is None:
        raise UnsupportedRequest(f"api key {key} is not served")
    if version not in api.versions:
        if api is API_VERSIONS:
            unknown = ApiVersionsRequest()
            return Request(api, 0, header.correlation_id, header.client_id, unknown, True)
        raise UnsupportedRequest(f"{api.name} version {version} is not served")
    flexible = api.is_flexible(version)
    if flexible:
        position = skip_tagged_fields(frame, position)
    # Bytes may follow the body: librdkafka reserves more for a count than it then writes.
    body, _ = decoder(api.request, version, flexible)(frame, position)
    return Request(api, version, header.correlation_id, header.client_id, body)


def encode_response(request: Request, response: Message) -> list[Part]:
    """The framed response, as parts to be written one after the other."""
    api, version = request.api, request.version
    encoded = encoder(api.response, version, api.is_flexible(version))(response)
    parts = cast("list[Part]", encoded)  # Only the records of a response may lie in a file.
    size = sum(map(len, parts))
    if api.response_header_version(version):
        parts.insert(0, _RESPONSE_HEAD_FLEXIBLE.pack(size + 5, request.correlation_id, 0))
    else:
        parts.insert(0, _RESPONSE_HEAD.pack(size + 4, request.correlation_id))
    return parts
