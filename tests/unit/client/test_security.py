"""TLS and SASL of the client, against a small server that checks what it is told."""

import asyncio
import base64
import hashlib
import hmac
import pickle
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from chronik.client.link import Address, ConnectionFailed, Link, Untrusted
from chronik.client.sasl import SaslRefused, conversation
from chronik.client.security import PLAINTEXT, Security
from chronik.protocol.api import Api
from chronik.protocol.apis import API_VERSIONS, METADATA
from chronik.protocol.client_apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from chronik.protocol.codec import decoder, encoder
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chronik.protocol.messages.headers import decode_request_header, skip_tagged_fields
from chronik.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chronik.protocol.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

TLS = Path(__file__).parents[2] / "vectors" / "tls"
CA = str(TLS / "ca.pem")
LENGTH = Struct(">i")
APIS = {api.key: api for api in (API_VERSIONS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE)}
PASSWORD = "pencil"
ITERATIONS = 4096


class Server:
    """Answers Metadata to whoever has proved to know the password, if one is wanted."""

    def __init__(self, mechanism: str | None = None, *, lies: bool = False) -> None:
        self.mechanism = mechanism
        self.lies = lies
        self.names: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state: dict[str, Any] = {"done": self.mechanism is None}
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > 10_000:  # A TLS greeting, read as a length, is larger by far.
                    return
                self._answer(await reader.readexactly(size), writer, state)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    def _answer(self, frame: bytes, writer: asyncio.StreamWriter, state: dict[str, Any]) -> None:
        header, position = decode_request_header(frame)
        api, version = APIS[header.request_api_key], header.request_api_version
        if api.request_header_version(version) == 2:
            position = skip_tagged_fields(frame, position)
        body, _ = decoder(api.request, version, api.is_flexible(version))(frame, position)
        response = self._response(api, body, state)
        assert response is not None
        head = header.correlation_id.to_bytes(4)
        if api.response_header_version(version):
            head += b"\x00"
        payload = head + b"".join(
            encoder(api.response, version, api.is_flexible(version))(response)
        )
        writer.write(LENGTH.pack(len(payload)) + payload)

    def _response(self, api: Api, body: Any, state: dict[str, Any]) -> Any:
        if api is API_VERSIONS:
            keys = [
                ApiVersion(
                    api_key=each.key,
                    min_version=each.versions.first,
                    max_version=each.versions.last,
                )
                for each in APIS.values()
            ]
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        if api is SASL_HANDSHAKE:
            wrong = body.mechanism != self.mechanism
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if wrong else 0
            return SaslHandshakeResponse(error_code=code, mechanisms=[self.mechanism or ""])
        if api is SASL_AUTHENTICATE:
            return self._authenticate(bytes(body.auth_bytes), state)
        assert state["done"], "nobody has said who it is"
        return MetadataResponse(brokers=[], topics=[], cluster_id="safe", controller_id=-1)

    def _authenticate(self, message: bytes, state: dict[str, Any]) -> SaslAuthenticateResponse:
        if self.mechanism == "PLAIN":
            _, name, password = message.decode().split("\0")
            answer = b"" if password == PASSWORD else None
            self.names.append(name)
            state["done"] = answer is not None
        else:
            answer = self._scram(message.decode(), state)
        if answer is None:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(
                error_code=code, error_message="wrong password", auth_bytes=b""
            )
        return SaslAuthenticateResponse(error_code=0, auth_bytes=answer)

    def _scram(self, message: str, state: dict[str, Any]) -> bytes | None:
        name = (self.mechanism or "").removeprefix("SCRAM-").replace("-", "").lower()
        if message.startswith("n,,"):
            state["first"] = message[3:]
            found = dict(part.split("=", 1) for part in message[3:].split(","))
            self.names.append(found["n"])
            salt = base64.b64encode(b"salty").decode()
            state["server"] = f"r={found['r']}server,s={salt},i={ITERATIONS}"
            return str(state["server"]).encode()
        bare, _, proof = message.rpartition(",p=")
        signed = f"{state['first']},{state['server']},{bare}".encode()
        salted = hashlib.pbkdf2_hmac(name, PASSWORD.encode(), b"salty", ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        wanted = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != wanted:
            return None
        state["done"] = True
        server_key = hmac.digest(salted, b"Server Key", name)
        shown = hmac.digest(server_key, signed + (b"!" if self.lies else b""), name)
        return b"v=" + base64.b64encode(shown)


@asynccontextmanager
async def serving(
    server: Server, *, tls: bool = False, mutual: bool = False
) -> AsyncIterator[Address]:
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
        if mutual:
            context.load_verify_locations(CA)
            context.verify_mode = ssl.CERT_REQUIRED
    running = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield Address(*running.sockets[0].getsockname())
    finally:
        running.close()
        await running.wait_closed()


async def ask(address: Address, security: Security) -> str | None:
    link = await Link.connect(address, timeout_s=5, security=security)
    response: MetadataResponse = await link.send(MetadataRequest(topics=[]), METADATA)
    link.close()
    await asyncio.sleep(0)
    return response.cluster_id


def run(server: Server, security: Security, **how: bool) -> str | None:
    async def work() -> str | None:
        async with serving(server, **how) as address:
            return await ask(address, security)

    return asyncio.run(work())


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_name_and_password(mechanism: str, tls: bool) -> None:
    server = Server(mechanism)
    security = Security(
        tls=tls,
        ca_location=CA if tls else None,
        mechanism=mechanism,
        username="bob",
        password=PASSWORD,
    )
    assert run(server, security, tls=tls) == "safe"
    assert server.names == ["bob"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_said_once_and_not_shown(mechanism: str) -> None:
    security = Security(mechanism=mechanism, username="bob", password="guess-me")
    with pytest.raises(KafkaError) as got:
        run(Server(mechanism), security)
    assert got.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "does not let 'bob' in: wrong password" in str(got.value)
    assert "guess-me" not in str(got.value)


def test_a_mechanism_that_the_server_has_not() -> None:
    security = Security(mechanism="PLAIN", username="bob", password=PASSWORD)
    with pytest.raises(KafkaError, match="does not take PLAIN, but SCRAM-SHA-256"):
        run(Server("SCRAM-SHA-256"), security)


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    security = Security(mechanism="SCRAM-SHA-512", username="bob", password=PASSWORD)
    with pytest.raises(KafkaError, match="does not know the password"):
        run(Server("SCRAM-SHA-512", lies=True), security)


def test_names_with_marks_of_their_own() -> None:
    server = Server("SCRAM-SHA-256")
    security = Security(mechanism="SCRAM-SHA-256", username="a=b,c", password=PASSWORD)
    assert run(server, security) == "safe"
    assert server.names == ["a=3Db=2Cc"]


def test_tls_alone_and_with_our_certificate() -> None:
    trusting = Security(tls=True, ca_location=CA)
    assert run(Server(), trusting, tls=True) == "safe"
    assert run(Server(), Security(tls=True, ca_certificates=Path(CA).read_text()), tls=True)
    ours = Security(
        tls=True,
        ca_location=CA,
        certificate_location=str(TLS / "client.pem"),
        key_location=str(TLS / "client.key"),
    )
    assert run(Server(), ours, tls=True, mutual=True) == "safe"
    with pytest.raises(ConnectionFailed):
        run(Server(), trusting, tls=True, mutual=True)


def test_a_server_that_nobody_vouches_for() -> None:
    with pytest.raises(Untrusted, match="its certificate is not trusted"):
        run(Server(), Security(tls=True), tls=True)


def test_a_certificate_for_another_host() -> None:
    async def work(security: Security) -> str | None:
        async with serving(Server(), tls=True) as address:
            return await ask(Address("localhost", address.port), security)

    with pytest.raises(ConnectionFailed, match="localhost"):
        asyncio.run(work(Security(tls=True, ca_location=CA)))
    assert asyncio.run(work(Security(tls=True, ca_location=CA, verify_hostname=False))) == "safe"


def test_tls_and_plain_do_not_meet() -> None:
    with pytest.raises(ConnectionFailed, match="closed as TLS began: it may not speak TLS"):
        run(Server(), Security(tls=True, ca_location=CA))
    with pytest.raises(ConnectionFailed, match=r"closed|reset|TLS"):
        run(Server(), PLAINTEXT, tls=True)


@pytest.mark.parametrize("name", ["nowhere.pem", __file__])
def test_files_that_are_no_certificates(name: str) -> None:
    security = Security(tls=True, ca_location=CA, certificate_location=name)
    with pytest.raises(KafkaError, match="a certificate or key cannot be read"):
        run(Server(), security, tls=True)


def test_secrets_are_not_shown() -> None:
    security = Security(username="bob", password="hidden-1", key_password="hidden-2")
    assert "hidden" not in repr(security)
    assert pickle.loads(pickle.dumps(security)) == security


def test_the_example_of_the_rfc() -> None:
    steps = conversation("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert next(steps) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert steps.send(server_first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        steps.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("challenge", "text"),
    [
        (b"r=other,s=AAAA,i=4096", "nonce"),
        (b"r=mine,s=AAAA,i=4096", "nonce"),
        (b"r=mine1,s=AAAA,i=1", "1 iterations"),
        (b"r=mine1,s=AAAA,i=999999999", "iterations"),
        (b"r=mine1,s=?,i=4096", "malformed"),
        (b"r=mine1,i=4096", "malformed"),
        (b"e=unknown-user", "unknown-user"),
        (b"\xff", "nonce"),
    ],
)
def test_challenges_that_are_refused(challenge: bytes, text: str) -> None:
    steps = conversation("SCRAM-SHA-256", "user", "pencil", "mine")
    next(steps)
    with pytest.raises(SaslRefused, match=text):
        steps.send(challenge)
