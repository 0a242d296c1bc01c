"""Chronik with both durabilities beside Apache Kafka: interleaved rounds, one table of ratios."""

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")
Rows = dict[str, dict[str, float]]


def interleaved(
    servers: Mapping[str, S], rounds: int, work: Callable[[S], T]
) -> dict[str, list[T]]:
    """What each round gave on each server: all of them meet the same noise."""
    results: dict[str, list[T]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            results[name].append(work(server))
    return results


def medians(results: Mapping[str, list[T]], figure: Callable[[T], float]) -> dict[str, float]:
    """The middle of one figure, for each server."""
    return {name: statistics.median(map(figure, many)) for name, many in results.items()}


def show(rows: Rows, goals: Mapping[str, str]) -> None:
    """The table; goals are about the ratios."""
    print(f"{'':38}{'Kafka':>10}{'fsync':>10}{'ratio':>8}{'replicated':>12}{'ratio':>8}  goal")
    for name, row in rows.items():
        kafka = row["kafka"] or 1e-9
        print(
            f"{name:38}{row['kafka']:10.2f}{row['fsync']:10.2f}{row['fsync'] / kafka:8.2f}"
            f"{row['replicated']:12.2f}{row['replicated'] / kafka:8.2f}  {goals.get(name, '')}"
        )
