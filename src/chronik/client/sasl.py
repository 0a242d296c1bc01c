"""What a client says to prove who it is: PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677).

Pure: a conversation is a generator. It gives what to send and is sent what was answered, until it
ends; an answer that is wrong raises SaslRefused. SCRAM shows the password to nobody and has the
server prove that it knows it too.
"""

import base64
import hashlib
import hmac
import unicodedata
from collections.abc import Generator
from typing import Final

Conversation = Generator[bytes, bytes, None]

ITERATIONS_MIN: Final = 4096  # RFC 7677; fewer make the password too easy to guess
ITERATIONS_MAX: Final = 1_000_000  # about a second: a server must not keep us busy for ever
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NO_CHANNEL_BINDING: Final = "n,,"


class SaslRefused(Exception):
    """An answer that does not prove what it should."""


def conversation(mechanism: str, username: str, password: str, nonce: str) -> Conversation:
    """What to send, step by step; the nonce is random and never used again."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return _scram(_HASHES[mechanism], username, password, nonce)


def _plain(username: str, password: str) -> Conversation:
    yield f"\0{username}\0{password}".encode()


def _scram(hash_name: str, username: str, password: str, nonce: str) -> Conversation:
    name = _prepared(username).replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    server_first = (yield f"{_NO_CHANNEL_BINDING}{first_bare}".encode()).decode(errors="replace")
    found = _attributes(server_first)
    salt, iterations, both_nonces = _challenge(found, nonce)
    binding = base64.b64encode(_NO_CHANNEL_BINDING.encode()).decode()
    final_bare = f"c={binding},r={both_nonces}"
    signed = f"{first_bare},{server_first},{final_bare}".encode()
    salted = hashlib.pbkdf2_hmac(hash_name, _prepared(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, signed, hash_name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    server_final = yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    wanted = base64.b64encode(hmac.digest(server_key, signed, hash_name)).decode()
    answered = _attributes(server_final.decode(errors="replace"))
    if "e" in answered:
        raise SaslRefused(f"the server refuses the password: {answered['e']}")
    if not hmac.compare_digest(answered.get("v", "").encode(), wanted.encode()):
        raise SaslRefused("the server does not know the password, so it is not the one we want")


def _attributes(message: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in message.split(","))
    return {name: value for name, mark, value in pairs if mark}


def _challenge(found: dict[str, str], nonce: str) -> tuple[bytes, int, str]:
    if "e" in found:
        raise SaslRefused(f"the server refuses: {found['e']}")
    both_nonces = found.get("r", "")
    if not both_nonces.startswith(nonce) or len(both_nonces) == len(nonce):
        raise SaslRefused("the server's nonce does not continue ours")
    try:
        salt = base64.b64decode(found["s"], validate=True)
        iterations = int(found["i"])
    except (KeyError, ValueError):
        raise SaslRefused("the server's challenge is malformed") from None
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise SaslRefused(f"the server asks for {iterations} iterations")
    return salt, iterations, both_nonces


def _prepared(text: str) -> str:
    """SASLprep's normal form, so that a password typed elsewhere is the same bytes."""
    return unicodedata.normalize("NFKC", text)
