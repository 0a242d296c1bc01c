"""Ports for the processes that tests start, and that keep them when they are started again.

They lie below those that the kernel gives to clients, one of which could else take a port before
its node does. Each process of a test run has a share of its own.
"""

import itertools
import os
import socket

INTERNAL_PORT_OFFSET = 100  # where a node that is told one port takes another
_SHARE = 2_500
_FIRST = 10_000 + _SHARE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
_next = itertools.count(os.getpid() * 37)


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A port that nobody has now and no other test gets soon."""
    while True:
        port = _FIRST + next(_next) % (_SHARE - INTERNAL_PORT_OFFSET)
        if is_free(port) and is_free(port + INTERNAL_PORT_OFFSET):
            return port
