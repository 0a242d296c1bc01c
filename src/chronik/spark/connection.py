"""How a Spark driver and its executors reach a cluster: addresses, patience and security.

A `Connection` is a value: it is made of options once, on the driver, and travels to the executors
by pickle, where `cluster` opens it. Option names are Kafka's own, with or without `kafka.` before
them, in any case, since Spark's `kafka` source asks for them so; librdkafka's names of the same
things will do.

    kafka.bootstrap.servers                   or bootstrap: HOST:PORT[,HOST:PORT]
    kafka.client.id, kafka.default.api.timeout.ms
    kafka.security.protocol                   PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
    kafka.sasl.mechanism                      PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
    kafka.sasl.jaas.config                    or kafka.sasl.username and kafka.sasl.password
    kafka.ssl.ca.location                     or kafka.ssl.truststore.location: a PEM file
    kafka.ssl.truststore.certificates         the same as text
    kafka.ssl.certificate.location            or kafka.ssl.keystore.location: a PEM file
    kafka.ssl.key.location, kafka.ssl.key.password
    kafka.ssl.endpoint.identification.algorithm   empty: any host name will do

Files must be there on every executor. What cannot be done is refused: an option about security
that were ignored would send in the clear what was meant to be hidden. No message and no `repr`
shows a secret.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from chronik.client.cluster import Cluster
from chronik.client.link import parse_bootstrap
from chronik.client.security import MECHANISMS, PLAINTEXT, Security
from chronik.spark.errors import OptionsError, hint

CLIENT_ID: Final = "chronik-spark"
# Longer than a cluster takes to elect another leader, and no longer than a user waits for a word.
TIMEOUT_S: Final = 30.0

_BOOTSTRAP: Final = ("bootstrap", "bootstrap.servers")
_CLIENT_ID: Final = "client.id"
_TIMEOUT: Final = "default.api.timeout.ms"
_SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.")
_PREFIX: Final = "kafka."

_PROTOCOL: Final = "security.protocol"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
_JAAS: Final = "sasl.jaas.config"
_USERNAME: Final = "sasl.username"
_PASSWORD: Final = "sasl.password"
_CA: Final = ("ssl.ca.location", "ssl.truststore.location")
_CA_TEXT: Final = ("ssl.truststore.certificates", "ssl.ca.pem")
_CERTIFICATE: Final = ("ssl.certificate.location", "ssl.keystore.location")
_KEY: Final = "ssl.key.location"
_KEY_PASSWORD: Final = "ssl.key.password"
_HOSTNAME: Final = "ssl.endpoint.identification.algorithm"
_STORE_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_SASL_OPTIONS: Final = (*_MECHANISM, _JAAS, _USERNAME, _PASSWORD)
_TLS_OPTIONS: Final = (
    *_CA,
    *_CA_TEXT,
    *_CERTIFICATE,
    _KEY,
    _KEY_PASSWORD,
    _HOSTNAME,
    *_STORE_TYPES,
)
NAMES: Final = (*_BOOTSTRAP, _CLIENT_ID, _TIMEOUT, _PROTOCOL, *_SASL_OPTIONS, *_TLS_OPTIONS)
_LOGIN_MODULES: Final = ("PlainLoginModule", "ScramLoginModule")
_JAAS_PAIR: Final = re.compile(
    r"""(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where a cluster is and how to reach it."""

    bootstrap: str
    client_id: str = CLIENT_ID
    timeout_s: float = TIMEOUT_S
    security: Security = PLAINTEXT

    def __post_init__(self) -> None:
        try:
            parse_bootstrap(self.bootstrap)
        except ValueError:
            raise OptionsError(
                f"kafka.bootstrap.servers={self.bootstrap!r} names no brokers: say HOST:PORT, and"
                " several with commas between them"
            ) from None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The connection that some options describe; other options are left to others."""
        named = {_plain(name): value for name, value in options.items() if cls.takes(name)}
        bootstrap = _first(named, _BOOTSTRAP)
        if not bootstrap:
            raise OptionsError(
                "no brokers were given: set the option kafka.bootstrap.servers to HOST:PORT"
            )
        return cls(
            bootstrap=bootstrap,
            client_id=named.get(_CLIENT_ID, CLIENT_ID),
            timeout_s=_timeout_s(named[_TIMEOUT]) if _TIMEOUT in named else TIMEOUT_S,
            security=_security(named),
        )

    @staticmethod
    def takes(name: str) -> bool:
        """Whether an option is about the connection."""
        plain = _plain(name)
        return plain in (*_BOOTSTRAP, _CLIENT_ID, _TIMEOUT) or plain.startswith(_SECURITY_PREFIXES)

    def cluster(self) -> Cluster:
        """A client of the cluster, not yet connected; used in `async with`."""
        return Cluster(
            parse_bootstrap(self.bootstrap),
            client_id=self.client_id,
            timeout_s=self.timeout_s,
            security=self.security,
        )


def check_names(names: Iterable[str]) -> None:
    """OptionsError for the first that says nothing about a connection."""
    for name in names:
        if _plain(name) not in NAMES:
            raise OptionsError(f"{name} is no option of a connection: {hint(_plain(name), NAMES)}")


def is_bootstrap(name: str) -> bool:
    """Whether an option names the brokers."""
    return _plain(name) in _BOOTSTRAP


def _plain(name: str) -> str:
    return name.lower().removeprefix(_PREFIX)


def _first(named: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((named[name] for name in names if name in named), None)


def _timeout_s(text: str) -> float:
    try:
        timeout_s = int(text) / 1000
    except ValueError:
        timeout_s = 0.0
    if timeout_s <= 0:
        raise OptionsError(f"kafka.{_TIMEOUT}={text!r} is no positive number of milliseconds")
    return timeout_s


def _security(named: Mapping[str, str]) -> Security:
    protocol = named.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise OptionsError(f"kafka.{_PROTOCOL}={protocol} is none of {', '.join(_PROTOCOLS)}")
    tls, with_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in named:
        if not name.startswith(_SECURITY_PREFIXES) or name == _PROTOCOL:
            continue
        if name not in (*_SASL_OPTIONS, *_TLS_OPTIONS):
            known = ", ".join(f"kafka.{each}" for each in (*_SASL_OPTIONS, *_TLS_OPTIONS))
            raise OptionsError(f"kafka.{name} is not known here; what is about security: {known}")
        if (name in _TLS_OPTIONS and not tls) or (name in _SASL_OPTIONS and not with_sasl):
            wanted = "SASL_SSL or SSL" if name in _TLS_OPTIONS else "SASL_SSL or SASL_PLAINTEXT"
            raise OptionsError(
                f"kafka.{name} does nothing with kafka.{_PROTOCOL}={protocol}: set that to {wanted}"
            )
    mechanism, username, password = _sasl(named) if with_sasl else (None, "", "")
    if tls:
        _check_pem(named)
    return Security(
        tls=tls,
        ca_location=_first(named, _CA),
        ca_certificates=_first(named, _CA_TEXT),
        certificate_location=_first(named, _CERTIFICATE),
        key_location=named.get(_KEY),
        key_password=named.get(_KEY_PASSWORD),
        verify_hostname=named.get(_HOSTNAME, "https") != "",
        mechanism=mechanism,
        username=username,
        password=password,
    )


def _sasl(named: Mapping[str, str]) -> tuple[str, str, str]:
    mechanism = (_first(named, _MECHANISM) or "").upper()
    if mechanism not in MECHANISMS:
        raise OptionsError(
            f"kafka.sasl.mechanism={mechanism or 'nothing'} is none of {', '.join(MECHANISMS)}"
        )
    if _JAAS in named:
        username, password = _from_jaas(named[_JAAS])
    else:
        username, password = named.get(_USERNAME, ""), named.get(_PASSWORD, "")
    if not username:
        raise OptionsError(
            "SASL needs kafka.sasl.username and kafka.sasl.password, or kafka.sasl.jaas.config"
        )
    return mechanism, username, password


def _from_jaas(text: str) -> tuple[str, str]:
    """Name and password of a login module's configuration, as Java's client is given it."""
    found = {
        name: re.sub(r"\\(.)", r"\1", quoted[1:-1]) for name, quoted in _JAAS_PAIR.findall(text)
    }
    if not any(module in text for module in _LOGIN_MODULES) or found.keys() != {
        "username",
        "password",
    }:
        raise OptionsError(  # Its text is not shown: there may be a password in it.
            'kafka.sasl.jaas.config must be like: ...PlainLoginModule required username="..."'
            ' password="...";'
        )
    return found["username"], found["password"]


def _check_pem(named: Mapping[str, str]) -> None:
    for name in _STORE_TYPES:
        if named.get(name, "PEM").upper() != "PEM":
            raise OptionsError(
                f"kafka.{name}={named[name]} cannot be read here: convert the store to PEM files"
            )
    for name in (*_CA, *_CERTIFICATE, _KEY):
        if named.get(name, "").lower().endswith((".jks", ".p12", ".pfx", ".keystore")):
            raise OptionsError(
                f"kafka.{name}={named[name]} is no PEM file: convert the store to PEM files"
            )
