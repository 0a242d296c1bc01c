"""One connection to one node: requests go out as they come, answers find who asked.

Requests are pipelined, up to a bound. The versions of all APIs are agreed on once, at connect: the
highest that both sides know, so that any broker from Kafka 2.1 to 4.x will do. TLS and SASL, where
they are wanted, come first: what a `Link` sends was preceded by them.

Invariants
    Every `send` ends: with its answer, or with ConnectionFailed within its timeout.
    A link that failed once stays failed; `Cluster` opens another.

A node that lets a request time out is taken for gone: what was sent later would only wait behind
it. A caller that is cancelled leaves the link usable; its answer is dropped when it comes.
"""

import asyncio
import os
import secrets
import socket
import ssl
from struct import Struct
from typing import Any, Final, NamedTuple, cast

from chronik import __version__
from chronik.client import sasl
from chronik.client.security import PLAINTEXT, Security
from chronik.config.settings import parse_address
from chronik.protocol.apis import API_VERSIONS, Api
from chronik.protocol.client_apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from chronik.protocol.codec import decoder, encoder
from chronik.protocol.errors import ErrorCode, KafkaError, ProtocolError
from chronik.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chronik.protocol.messages.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    skip_tagged_fields,
)
from chronik.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from chronik.protocol.schema import Buffer, Message, Versions

TIMEOUT_S: Final = 10.0
# Enough to fill a connection; a broker stops reading at some hundred of its own accord.
INFLIGHT_MAX: Final = 64
# A fetch answers at most 55 MiB and one batch of up to 100 MiB more. The first bytes of an HTTP
# answer, read as a length, are a gigabyte.
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
_TLS_ALERT: Final = 0x1503  # how a TLS server's complaint about a plain request begins
_LENGTH: Final = Struct(">i")
_ERROR_CODE: Final = Struct(">h")


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> list[Address]:
    """The addresses of HOST:PORT[,HOST:PORT...], or ValueError."""
    return [Address(*parse_address(item.strip())) for item in text.split(",")]


class ConnectionFailed(Exception):
    """A node that could not be reached, or did not answer."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class Untrusted(ConnectionFailed):
    """A node whose certificate nobody vouches for: trying again would change nothing."""


class _Pending(NamedTuple):
    """A request that was sent and not yet answered."""

    api: Api
    version: int
    answer: asyncio.Future[Message]


class Link(asyncio.Protocol):
    """A connection that has agreed on versions; made by `Link.connect`."""

    def __init__(self, address: Address, client_id: str, inflight_max: int) -> None:
        self.address = address
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._versions: dict[int, Versions] = {}
        self._pending: dict[int, _Pending] = {}
        self._slots = asyncio.Semaphore(inflight_max)
        self._writable = asyncio.Event()
        self._failure: str | None = None
        self._next_correlation_id = 0
        self._chunks: list[bytes] = []
        self._received = 0
        self._needed = _LENGTH.size

    @classmethod
    async def connect(
        cls,
        address: Address,
        *,
        client_id: str = "chronik",
        timeout_s: float = TIMEOUT_S,
        inflight_max: int = INFLIGHT_MAX,
        security: Security = PLAINTEXT,
    ) -> "Link":
        """Connect and agree on versions, or ConnectionFailed.

        A name and password that are refused are KafkaError: trying again would change nothing.
        """
        link = cls(address, client_id, inflight_max)
        try:
            async with asyncio.timeout(timeout_s):
                await link._open(security)
                await link._negotiate(timeout_s)
                if security.mechanism is not None:
                    await link._authenticate(security, security.mechanism, timeout_s)
        except TimeoutError:
            link.close()
            raise ConnectionFailed(address, f"no connection within {timeout_s:g} s") from None
        except BaseException:
            link.close()
            raise
        return link

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._failure is None

    def close(self) -> None:
        """End the connection; whoever waits for an answer gets ConnectionFailed."""
        if self._transport is not None and self._failure is None:
            self._transport.close()  # What was posted still leaves.
        self._fail("the connection was closed by us")

    def version(self, api: Api, version_max: int | None = None) -> int:
        """The version in which this API is spoken here, or UNSUPPORTED_VERSION."""
        theirs = self._versions.get(api.key)
        if theirs is not None:
            most = min(theirs.last, api.versions.last)
            version = most if version_max is None else min(most, version_max)
            if version in theirs and version in api.versions:
                return version
        served = "not at all" if theirs is None else f"in versions {theirs}"
        message = f"{self.address} serves {api.name} {served}, we need {api.versions}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)

    async def send(
        self,
        request: Message,
        api: Api,
        *,
        timeout_s: float = TIMEOUT_S,
        version_max: int | None = None,
    ) -> Any:
        """The answer to a request: a message of the type `api.response`."""
        version = self.version(api, version_max)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(request, api, version)
        except TimeoutError:
            self._fail(f"no answer to {api.name} within {timeout_s:g} s")
            raise self._failed() from None

    async def post(self, request: Message, api: Api, *, version_max: int | None = None) -> None:
        """Send a request that is not answered: Produce with acks=0."""
        version = self.version(api, version_max)
        await self._writable.wait()
        self._write(request, api, version)

    async def _exchange(self, request: Message, api: Api, version: int) -> Message:
        await self._slots.acquire()
        try:
            await self._writable.wait()
            correlation_id = self._write(request, api, version)
        except BaseException:
            self._slots.release()
            raise
        answer: asyncio.Future[Message] = self._loop.create_future()
        # From here on the slot belongs to the request, and is free again once it is answered.
        self._pending[correlation_id] = _Pending(api, version, answer)
        return await answer

    def _write(self, request: Message, api: Api, version: int) -> int:
        if self._failure is not None:
            raise self._failed()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id + 1 & 0x7FFFFFFF
        header = RequestHeader(
            request_api_key=api.key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=self._client_id,
        )
        head = encode_request_header(header, api.request_header_version(version))
        body = encoder(type(request), version, api.is_flexible(version))(request)
        size = len(head) + sum(map(len, body))
        assert self._transport is not None
        self._transport.writelines([_LENGTH.pack(size) + head, *body])
        return correlation_id

    async def _open(self, security: Security) -> None:
        context = _ssl_context(security)
        name = None if context is None else self.address.host
        try:
            found = await self._loop.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectionFailed(self.address, str(error.strerror or error)) from None
        failure = ConnectionFailed(self.address, "the host has no address")
        for *_, place in found:  # `localhost` may have two, and a server on only one of them.
            try:
                await self._loop.create_connection(
                    lambda: self, str(place[0]), int(place[1]), ssl=context, server_hostname=name
                )
                return
            except OSError as error:
                failure = _not_opened(self.address, error, with_tls=context is not None)
        raise failure

    async def _negotiate(self, timeout_s: float) -> None:
        self._versions = {API_VERSIONS.key: API_VERSIONS.versions}
        request = ApiVersionsRequest(
            client_software_name="chronik", client_software_version=__version__
        )
        response: ApiVersionsResponse = await self.send(request, API_VERSIONS, timeout_s=timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # Brokers before Kafka 2.4 name no versions in that answer; each of them knows 0.
            response = await self.send(
                request, API_VERSIONS, timeout_s=timeout_s, version_max=API_VERSIONS.versions.first
            )
        if response.error_code:
            raise ConnectionFailed(self.address, f"ApiVersions: error {response.error_code}")
        self._versions = {
            entry.api_key: Versions(entry.min_version, entry.max_version)
            for entry in response.api_keys
        }

    async def _authenticate(self, security: Security, mechanism: str, timeout_s: float) -> None:
        handshake: SaslHandshakeResponse = await self.send(
            SaslHandshakeRequest(mechanism=mechanism), SASL_HANDSHAKE, timeout_s=timeout_s
        )
        if handshake.error_code:
            offered = ", ".join(handshake.mechanisms) or "nothing"
            message = f"{self.address} does not take {mechanism}, but {offered}"
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
        nonce = secrets.token_urlsafe(24)
        steps = sasl.conversation(mechanism, security.username, security.password, nonce)
        try:
            message_bytes = next(steps)
            while True:
                answer = await self._proof(message_bytes, security.username, timeout_s)
                message_bytes = steps.send(answer)
        except StopIteration:
            return
        except sasl.SaslRefused as error:
            message = f"{self.address}: {error}"
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, message) from None

    async def _proof(self, message: bytes, username: str, timeout_s: float) -> bytes:
        response: SaslAuthenticateResponse = await self.send(
            SaslAuthenticateRequest(auth_bytes=message), SASL_AUTHENTICATE, timeout_s=timeout_s
        )
        if response.error_code:
            reason = response.error_message or "no reason given"
            text = f"{self.address} does not let {username!r} in: {reason}"
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        return response.auth_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writable = cast(asyncio.WriteTransport, transport)  # uvloop's is one by its methods only
        self._transport = writable
        self._writable.set()
        if self._failure is not None:
            writable.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        by = _reason(exc) if isinstance(exc, OSError) else "the connection was closed"
        self._fail(by)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._received += len(data)
        if self._received < self._needed:
            return
        # Joined once the whole frame is there, so that a large one is copied only once.
        view = memoryview(b"".join(self._chunks))
        position = 0
        try:
            while (end := self._frame_end(view, position)) <= len(view):
                self._answer(view[position + _LENGTH.size : end])
                position = end
        except ProtocolError as error:
            self._fail(f"this is no answer of a Kafka broker: {error}")
            return
        self._chunks = [bytes(view[position:])]
        self._received = len(view) - position
        self._needed = end - position

    def _frame_end(self, view: memoryview, position: int) -> int:
        start = position + _LENGTH.size
        if start > len(view):
            return start
        (size,) = _LENGTH.unpack_from(view, position)
        if size >> 16 == _TLS_ALERT:
            raise ProtocolError("it speaks TLS, and we do not")
        if not 0 < size <= RESPONSE_BYTES_MAX:
            raise ProtocolError(f"a frame of {size} bytes")
        return start + int(size)

    def _answer(self, frame: Buffer) -> None:
        header, position = decode_response_header(frame)
        pending = self._pending.get(header.correlation_id)
        if pending is None:
            raise ProtocolError(f"request {header.correlation_id} was not asked")
        api, version, answer = pending
        if api.response_header_version(version):
            position = skip_tagged_fields(frame, position)
        if api is API_VERSIONS and _is_unsupported_version(frame, position):
            version = 0
        response, _ = decoder(api.response, version, api.is_flexible(version))(frame, position)
        del self._pending[header.correlation_id]
        self._slots.release()
        if not answer.done():
            answer.set_result(response)

    def _fail(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = reason
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        self._chunks.clear()
        self._writable.set()
        for pending in self._pending.values():
            self._slots.release()
            if not pending.answer.done():
                pending.answer.set_exception(self._failed())
        self._pending.clear()

    def _failed(self) -> ConnectionFailed:
        assert self._failure is not None
        return ConnectionFailed(self.address, self._failure)


def _is_unsupported_version(frame: Buffer, position: int) -> bool:
    """Whether ApiVersions was refused: that answer is in version 0, whatever was asked."""
    if len(frame) < position + _ERROR_CODE.size:
        raise ProtocolError("an empty answer")
    (code,) = _ERROR_CODE.unpack_from(frame, position)
    return bool(code == ErrorCode.UNSUPPORTED_VERSION)


def _ssl_context(security: Security) -> ssl.SSLContext | None:
    try:
        return security.ssl_context()
    except OSError as error:  # ssl.SSLError is one: a file that is no PEM, or a wrong password.
        wrong = error.strerror or str(error)
        files = (security.ca_location, security.certificate_location, security.key_location)
        named = ", ".join(file for file in files if file)
        message = f"a certificate or key cannot be read ({named}): {wrong}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message) from None


def _not_opened(address: Address, error: OSError, *, with_tls: bool) -> ConnectionFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Untrusted(address, _reason(error))
    if with_tls and isinstance(error, ConnectionResetError):
        # To a broker without TLS our greeting is a request of absurd length.
        return ConnectionFailed(
            address, "the connection was closed as TLS began: it may not speak TLS"
        )
    return ConnectionFailed(address, _reason(error))


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    # asyncio puts the address into its own text; the plain words of the errno read better.
    if error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or "the connection was closed"
