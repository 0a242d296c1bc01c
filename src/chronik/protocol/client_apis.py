"""Requests that our client makes of other brokers, and that this broker does not answer.

They are apart from the API table, which says what is served: a client that asks for versions must
not be told of these.
"""

from typing import Final

from chronik.protocol.api import Api
from chronik.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from chronik.protocol.schema import Versions

SASL_HANDSHAKE: Final = Api(
    key=17,
    name="SaslHandshake",
    request=SaslHandshakeRequest,
    response=SaslHandshakeResponse,
    versions=Versions(1, 1),
    flexible_since=None,
    summary="Choose how to authenticate.",
)
SASL_AUTHENTICATE: Final = Api(
    key=36,
    name="SaslAuthenticate",
    request=SaslAuthenticateRequest,
    response=SaslAuthenticateResponse,
    versions=Versions(0, 2),
    flexible_since=2,
    summary="Exchange the messages of the mechanism.",
)
