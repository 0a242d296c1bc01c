"""How a Spark driver and its executors reach a cluster: addresses, patience and security.

A `Connection` is a value: it is made of options once, on the driver, and travels to the executors
by pickle, where `cluster` opens it. Option names are Kafka's own, with or without `kafka.` before
them, in any case, since Spark's `kafka` source asks for them so.

What cannot be done is refused: an option about security that were ignored would send in the clear
what was meant to be hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from chronik.client.cluster import Cluster
from chronik.client.link import parse_bootstrap
from chronik.spark.errors import OptionsError

CLIENT_ID: Final = "chronik-spark"
# Longer than a cluster takes to elect another leader, and no longer than a user waits for a word.
TIMEOUT_S: Final = 30.0

_BOOTSTRAP: Final = ("bootstrap", "bootstrap.servers")
_CLIENT_ID: Final = "client.id"
_TIMEOUT: Final = "default.api.timeout.ms"
_SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.")
_PREFIX: Final = "kafka."


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where a cluster is and how to reach it."""

    bootstrap: str
    client_id: str = CLIENT_ID
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        try:
            parse_bootstrap(self.bootstrap)
        except ValueError as error:
            raise OptionsError(f"kafka.bootstrap.servers={self.bootstrap!r}: {error}") from None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The connection that some options describe; other options are left to others."""
        named = {_plain(name): value for name, value in options.items() if cls.takes(name)}
        _refuse_security(named)
        bootstrap = next((named[name] for name in _BOOTSTRAP if named.get(name)), None)
        if bootstrap is None:
            raise OptionsError(
                "no brokers were given: set the option kafka.bootstrap.servers to HOST:PORT"
            )
        return cls(
            bootstrap=bootstrap,
            client_id=named.get(_CLIENT_ID, CLIENT_ID),
            timeout_s=_timeout_s(named[_TIMEOUT]) if _TIMEOUT in named else TIMEOUT_S,
        )

    @staticmethod
    def takes(name: str) -> bool:
        """Whether an option is about the connection."""
        plain = _plain(name)
        return plain in (*_BOOTSTRAP, _CLIENT_ID, _TIMEOUT) or plain.startswith(_SECURITY_PREFIXES)

    def cluster(self) -> Cluster:
        """A client of the cluster, not yet connected; used in `async with`."""
        return Cluster(
            parse_bootstrap(self.bootstrap), client_id=self.client_id, timeout_s=self.timeout_s
        )


def _plain(name: str) -> str:
    return name.lower().removeprefix(_PREFIX)


def _timeout_s(text: str) -> float:
    try:
        timeout_s = int(text) / 1000
    except ValueError:
        timeout_s = 0.0
    if timeout_s <= 0:
        raise OptionsError(f"kafka.{_TIMEOUT}={text!r} is no positive number of milliseconds")
    return timeout_s


def _refuse_security(named: Mapping[str, str]) -> None:
    plain = named.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
    names = [name for name in named if name.startswith(("sasl.", "ssl."))]
    if not plain or names:
        name = "security.protocol" if not plain else names[0]
        raise OptionsError(
            f"kafka.{name} cannot be used yet: connect to a PLAINTEXT listener of the cluster"
        )
