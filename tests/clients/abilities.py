"""What each client of the matrix has an API for, and how a case chooses the clients that have it.

A cell that a client cannot have is not generated; nothing is skipped for what a broker cannot do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

CODECS = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
# What came after 0.10.0, and with the admin client.
MODERN = frozenset({"headers", "timestamps", "by_timestamp", "zstd", "big_fetch"})
ADMIN = frozenset({"admin", "partitions", "configs", "cluster"})
# Groups, where an application decides what is committed, and what the admin client does with them.
COMMITS = frozenset({"commit"})
GROUP_ADMIN = frozenset({"describe_groups", "delete_groups"})
GROUP_OFFSETS = frozenset({"alter_group_offsets", "delete_group_offsets"})
# kcat has transactions of one run and one topic; the others have an API for them.
TRANSACTIONS = frozenset({"transactional", "transactions"})
ASSIGNORS_EAGER = ("range", "roundrobin", "sticky")
# The sticky assignor of 2.0.2 raises a TypeError in its own code (seen on Python 3.11).
ASSIGNORS_2_0_2 = ("range", "roundrobin")
ASSIGNORS_LIBRDKAFKA = ("range", "roundrobin", "cooperative-sticky")
ASSIGNORS = (*ASSIGNORS_EAGER, "cooperative-sticky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a client has an API for, the codecs that it writes and the assignors that it brings."""

    can: frozenset[str]
    codecs: frozenset[str] = CODECS
    assignors: tuple[str, ...] = ASSIGNORS


# Message format 1: no headers, no zstd. ListOffsets 0 knows no exact time; there is no admin API.
AT_0_10 = COMMITS | {"timestamps"}
CODECS_AT_0_10 = CODECS - {"zstd"}
DATA = MODERN | ADMIN | {"idempotence", "delete_records"}
EVERYTHING = DATA | COMMITS | GROUP_ADMIN | GROUP_OFFSETS | TRANSACTIONS | {"static", "fenced"}
CLIENTS = {
    # Its admin client deletes groups, but not a group's offsets.
    "confluent-kafka": Abilities(
        can=EVERYTHING - {"delete_group_offsets"} | {"consumer_protocol"},
        assignors=ASSIGNORS_LIBRDKAFKA,
    ),
    # No idempotent producer, no DeleteRecords and no static members before 2.1.
    "kafka-python-2.0.2": Abilities(
        can=MODERN | ADMIN | COMMITS | GROUP_ADMIN, assignors=ASSIGNORS_2_0_2
    ),
    "kafka-python-3": Abilities(can=EVERYTHING),
    # `api_version=(0, 10, 0)`, of which both releases have an idea of their own.
    "kafka-python-2.0.2-at-0.10": Abilities(
        can=AT_0_10, codecs=CODECS_AT_0_10, assignors=ASSIGNORS_2_0_2
    ),
    "kafka-python-3-at-0.10": Abilities(
        can=AT_0_10, codecs=CODECS_AT_0_10, assignors=ASSIGNORS_EAGER
    ),
    # It joins as a static member, but does not know the error of a fenced one.
    "aiokafka": Abilities(
        can=DATA | COMMITS | TRANSACTIONS | {"describe_groups", "static"},
        assignors=ASSIGNORS_EAGER,
    ),
    # Its timestamps are its own clock's; it has no admin commands, and commits by itself.
    "kcat": Abilities(
        can=MODERN - {"timestamps"} | {"idempotence", "static", "fenced", "transactional"},
        assignors=ASSIGNORS_LIBRDKAFKA,
    ),
    "java-3.9": Abilities(can=EVERYTHING),
    "java-4": Abilities(can=EVERYTHING | {"consumer_protocol", "server_pattern"}),
}


def able(*needs: str) -> list[str]:
    """The clients that can do all of `needs`."""
    return [name for name, abilities in CLIENTS.items() if abilities.can.issuperset(needs)]


def clients(*needs: str) -> Any:
    """Cells for the clients that can do all of `needs`."""
    return pytest.mark.parametrize("client", able(*needs), indirect=True)


def members(*needs: str) -> Any:
    """The same, and once more for the clients that also have `group.protocol=consumer`."""
    cells = [(name, "classic") for name in able(*needs)]
    cells += [(name, "consumer") for name in able("consumer_protocol", *needs)]
    names = [name if protocol == "classic" else f"{name}-kip848" for name, protocol in cells]
    return pytest.mark.parametrize(("client", "protocol"), cells, ids=names, indirect=["client"])


def values(records: list[dict[str, Any]]) -> list[bytes | None]:
    return [record["value"] for record in records]


def numbered(count: int, prefix: str = "value") -> list[dict[str, Any]]:
    """Records whose content says their place, so that order and loss show."""
    return [{"key": b"key-%d" % i, "value": f"{prefix}-{i}".encode()} for i in range(count)]


def now_ms() -> int:
    return int(time.time() * 1000)
