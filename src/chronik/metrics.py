"""Counters that the hot path can afford: plain integers, read by whoever renders them.

A request costs two additions and one bisection. `dashboard` turns them into Prometheus' format
when somebody asks.
"""

from bisect import bisect_left
from typing import Final

# Upper bounds in seconds. Half a millisecond is a request from memory, five an fsync.
LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
# Of the pauses between two Raft messages of one peer. A heartbeat comes every 75 ms; after 400 an
# election may begin.
RAFT_GAP_BOUNDS_S: Final = (
    0.01,
    0.05,
    0.075,
    0.08,
    0.085,
    0.09,
    0.1,
    0.125,
    0.15,
    0.2,
    0.3,
    0.4,
    1,
)


class Histogram:
    """Counts of observations by upper bound, their sum and the greatest."""

    __slots__ = ("bounds", "counts", "greatest", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.greatest = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value > self.greatest:
            self.greatest = value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Metrics:
    """Everything that one node counts."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}  # by api name and version
        self.latencies: dict[str, Histogram] = {}  # by api name
        self.errors: dict[str, int] = {}  # by reason: protocol, unsupported, internal, ...
        self.connections_accepted = 0
        self.connections_open = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_bytes_in = 0
        self.records_bytes_out = 0
        self.loop_lag = Histogram()

    def request(self, api: str, version: int, seconds: float) -> None:
        key = (api, version)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.latencies.get(api)
        if histogram is None:
            histogram = self.latencies[api] = Histogram()
        histogram.observe(seconds)

    def error(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1
