"""SaslHandshake and SaslAuthenticate: which mechanism, and its messages as opaque bytes.

From v1 of the handshake on, the mechanism's messages travel in SaslAuthenticate requests (KIP-152);
before, they were bytes without any header, which is not spoken here.
"""

from collections.abc import Sequence
from typing import Annotated

from chronik.protocol.schema import Message, blob, int16, int64, since, string


class SaslHandshakeRequest(Message):
    """Chooses a mechanism."""

    mechanism: string


class SaslHandshakeResponse(Message):
    """Whether it is there, and which are."""

    error_code: int16
    mechanisms: Sequence[string]


class SaslAuthenticateRequest(Message):
    """The next message of the mechanism."""

    auth_bytes: blob


class SaslAuthenticateResponse(Message):
    """The server's answer to it."""

    error_code: int16
    error_message: string | None = None
    auth_bytes: blob
    session_lifetime_ms: Annotated[int64, since(1)] = 0
