"""The nodes that form or find a cluster: `--peers 1@HOST:KAFKA_PORT:INTERNAL_PORT,2@...`.

Peers only bring nodes together. Once there is a cluster, its committed membership rules, and what
stands here is where to look for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from chronik.config.definitions import InvalidSetting


@dataclass(frozen=True, slots=True)
class Peer:
    """One node, as all of them know it."""

    node_id: int
    host: str
    kafka_port: int
    internal_port: int
    rack: str | None = None
    internal_host: str | None = None  # where it differs from that for clients

    @property
    def internal(self) -> tuple[str, int]:
        """Where other nodes reach it."""
        return self.internal_host or self.host, self.internal_port

    def __str__(self) -> str:
        return f"{self.node_id}@{self.host}:{self.kafka_port}:{self.internal_port}"


def parse_peers(text: str) -> tuple[Peer, ...]:
    """The peers that an option or a variable names; ValueError if it is not well formed."""
    return _checked([_parse(item.strip()) for item in text.split(",")])


def _parse(item: str) -> Peer:
    number, at, rest = item.partition("@")
    host, first, internal_port = rest.rpartition(":")
    host, second, kafka_port = host.rpartition(":")
    if not (at and first and second and host):
        raise ValueError(item)
    return _peer(int(number), host, int(kafka_port), int(internal_port), None)


def _peer(node_id: int, host: str, kafka_port: int, internal_port: int, rack: str | None) -> Peer:
    host = host.removeprefix("[").removesuffix("]")
    ports = (kafka_port, internal_port)
    if node_id < 0 or not all(0 < port < 65536 for port in ports) or kafka_port == internal_port:
        raise ValueError(f"{node_id}@{host}:{kafka_port}:{internal_port}")
    return Peer(node_id, host, kafka_port, internal_port, rack)


def _checked(peers: Sequence[Peer]) -> tuple[Peer, ...]:
    if len({peer.node_id for peer in peers}) != len(peers):
        raise ValueError("two peers have the same id")
    return tuple(sorted(peers, key=lambda peer: peer.node_id))


def peers_of_tables(tables: Any, file: str) -> tuple[Peer, ...]:
    """The peers of a TOML file's [[peers]], each with id, kafka, internal and perhaps rack."""
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise InvalidSetting(f"{file}: write each peer as a table of its own: [[peers]]")
    try:
        return _checked([_of_table(table) for table in tables])
    except (KeyError, ValueError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidSetting(
            f"{file}: [[peers]] have id, kafka = HOST:PORT, internal = HOST:PORT and perhaps rack:"
            f" {reason}"
        ) from None


def _of_table(table: Mapping[str, Any]) -> Peer:
    unknown = sorted(set(table) - {"id", "kafka", "internal", "rack"})
    if unknown:
        raise ValueError(f"{unknown[0]} is not known")
    kafka_host, _, kafka_port = str(table["kafka"]).rpartition(":")
    internal_host, _, internal_port = str(table["internal"]).rpartition(":")
    for name, host in (("kafka", kafka_host), ("internal", internal_host)):
        if not host:
            raise ValueError(f"{name} of peer {table['id']} is not HOST:PORT")
    rack = table.get("rack")
    if rack is not None and not isinstance(rack, str):
        raise ValueError(f'rack of peer {table["id"]} is no text: write rack = "{rack}"')
    peer = _peer(int(table["id"]), kafka_host, int(kafka_port), int(internal_port), rack)
    if internal_host == kafka_host:
        return peer
    return replace(peer, internal_host=internal_host.removeprefix("[").removesuffix("]"))


def cluster_id_of(peers: Sequence[Peer]) -> bytes:
    """The id of the cluster that these peers form: each of them finds the same one by itself."""
    text = ",".join(map(str, sorted(peers, key=lambda peer: peer.node_id)))
    return sha256(text.encode()).digest()[:16]
