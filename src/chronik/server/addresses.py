"""Where a node is reached if nobody says it, and whether it could listen where it should."""

import socket

from chronik.config.settings import Settings, address_text


def reachable(host: str, bound: tuple[str, int]) -> tuple[str, int]:
    """Where others reach what listens on `host` and was bound there."""
    if host in ("0.0.0.0", "::", ""):
        return _host_name(), bound[1]
    # One address family: a client must not try the other first.
    return bound[0] if host == "localhost" else host, bound[1]


def _host_name() -> str:
    """This machine's name if it resolves, since a client must reach what we advertise."""
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError:
        return "127.0.0.1"
    return name


def why_not_serving(settings: Settings) -> str | None:
    """Why a node with these settings could not listen, asked before others count on it."""
    for option, port, hint in (
        ("--port", settings.port, ""),
        ("--http-port", settings.http_port, "; -1 turns it off"),
    ):
        if port <= 0:
            continue
        try:
            _bind(settings.host, port)
        except OSError as error:
            where = address_text(settings.host, port)
            return f"cannot listen on {where} ({option}): {error.strerror or error}{hint}"
    return None


def _bind(host: str, port: int) -> None:
    """Bind as a listener would, without listening: no client meets a port that closes again."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(address)
