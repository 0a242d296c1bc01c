"""How a client protects its connections: TLS, and a name and password by SASL.

    PLAINTEXT        neither                 SSL              TLS, with or without our certificate
    SASL_PLAINTEXT   name and password       SASL_SSL         both

A value: made once, and pickled to wherever connections are opened. Its `repr` shows no secret.
Certificates and keys are PEM files, which must be there where connections are opened.
"""

import ssl
from dataclasses import dataclass, field
from typing import Final

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a connection needs before anything can be asked over it."""

    tls: bool = False
    ca_location: str | None = None  # None: the authorities that the system trusts
    ca_certificates: str | None = None  # the same as text, beside or instead of the file
    certificate_location: str | None = None
    key_location: str | None = None  # None: it is in the certificate's file
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)

    def ssl_context(self) -> ssl.SSLContext | None:
        """What TLS is spoken by, if it is. Raises OSError for a file that is absent or no PEM."""
        if not self.tls:
            return None
        context = ssl.create_default_context(
            cafile=self.ca_location, cadata=self.ca_certificates or None
        )
        context.check_hostname = self.verify_hostname
        if self.certificate_location is not None:
            context.load_cert_chain(self.certificate_location, self.key_location, self.key_password)
        return context


PLAINTEXT: Final = Security()
