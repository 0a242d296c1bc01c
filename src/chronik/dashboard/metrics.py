"""The node's counters in Prometheus' format, made when somebody asks for them."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from chronik.dashboard.status import Status
from chronik.metadata.health import health
from chronik.metadata.partitions import min_in_sync
from chronik.metrics import Histogram
from chronik.replication.lag import follower_lags


class NodeCollector(Collector):
    """Turns plain integers into metric families."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._connections()
        yield from self._raft()
        yield from self._logs()
        yield from self._replication()

    def _requests(self) -> Iterator[Metric]:
        metrics = self._status.metrics
        requests = CounterMetricFamily(
            "chronik_requests", "Requests answered.", labels=("api", "version")
        )
        for (api, version), count in sorted(metrics.requests.items()):
            requests.add_metric((api, str(version)), count)
        yield requests
        latency = HistogramMetricFamily(
            "chronik_request_seconds", "From a request's arrival to its answer.", labels=("api",)
        )
        for api, histogram in sorted(metrics.latencies.items()):
            latency.add_metric((api,), _buckets(histogram), histogram.total)
        yield latency
        errors = CounterMetricFamily(
            "chronik_connection_errors", "Connections closed by us, by reason.", labels=("reason",)
        )
        for reason, count in sorted(metrics.errors.items()):
            errors.add_metric((reason,), count)
        yield errors
        lag = HistogramMetricFamily(
            "chronik_loop_lag_seconds", "How late the event loop runs what is due."
        )
        lag.add_metric((), _buckets(metrics.loop_lag), metrics.loop_lag.total)
        yield lag
        yield GaugeMetricFamily(
            "chronik_loop_lag_max_seconds",
            "The latest that the event loop ran anything since the start.",
            value=metrics.loop_lag.greatest,
        )

    def _raft(self) -> Iterator[Metric]:
        consensus = self._status.metadata.consensus
        gaps = HistogramMetricFamily(
            "chronik_raft_gap_seconds", "Pauses between two Raft messages of one peer."
        )
        gaps.add_metric((), _buckets(consensus.gaps), consensus.gaps.total)
        yield gaps
        for name, text, value in (
            ("chronik_raft_gap_max_seconds", "The longest of them.", consensus.gaps.greatest),
            ("chronik_raft_term", "Raft's term.", consensus.node.term),
            ("chronik_raft_commit_index", "What is committed.", consensus.node.commit_index),
        ):
            yield GaugeMetricFamily(name, text, value=value)

    def _connections(self) -> Iterator[Metric]:
        metrics = self._status.metrics
        for name, text, count in (
            ("chronik_connections_accepted", "Connections accepted.", metrics.connections_accepted),
            ("chronik_bytes_in", "Bytes received.", metrics.bytes_in),
            ("chronik_bytes_out", "Bytes sent.", metrics.bytes_out),
            ("chronik_record_bytes_in", "Record bytes produced.", metrics.records_bytes_in),
            ("chronik_record_bytes_out", "Record bytes fetched.", metrics.records_bytes_out),
        ):
            yield CounterMetricFamily(name, text, value=count)
        yield GaugeMetricFamily(
            "chronik_connections_open", "Connections open.", value=metrics.connections_open
        )
        yield GaugeMetricFamily(
            "chronik_fetch_sessions",
            "Incremental fetch sessions.",
            value=self._status.fetch_session_count(),
        )

    def _logs(self) -> Iterator[Metric]:
        """Sums over topics, not partitions: nine thousand series take a tenth of a second."""
        sizes: dict[str, int] = {}
        offline = 0
        for partition in self._status.replicas.used():
            sizes[partition.name] = sizes.get(partition.name, 0) + partition.log.size_bytes
            offline += partition.failure is not None
        log_bytes = GaugeMetricFamily(
            "chronik_log_bytes", "Bytes in the logs of partitions in use.", labels=("topic",)
        )
        for topic, size in sorted(sizes.items()):
            log_bytes.add_metric((topic,), size)
        yield log_bytes
        image = self._status.metadata.image
        yield GaugeMetricFamily("chronik_topics", "Topics.", value=len(image.topics))
        yield GaugeMetricFamily(
            "chronik_brokers", "Brokers online.", value=len(image.online_brokers)
        )
        yield GaugeMetricFamily(
            "chronik_partitions_offline", "Partitions whose disk failed.", value=offline
        )
        yield GaugeMetricFamily(
            "chronik_metadata_applied_index",
            "The metadata entry applied last.",
            value=self._status.metadata.applied_index,
        )

    def _replication(self) -> Iterator[Metric]:
        status = self._status
        image = status.metadata.image
        found = health(image, min_in_sync(image, status.metadata.broker_config(image)))
        for name, text, value in (
            ("partitions", "Partitions of the cluster.", found.partition_count),
            ("under_replicated", "With replicas out of sync.", found.under_replicated_count),
            ("under_min_isr", "Too few in sync for acks=all.", found.under_min_isr_count),
            ("leaderless", "Without a leader.", found.offline_count),
            ("reassigning", "Moving to other replicas.", found.moving_count),
            ("not_preferred", "Not led by the preferred replica.", found.not_preferred_count),
        ):
            suffix = "" if name == "partitions" else f"_{name}"
            yield GaugeMetricFamily(f"chronik_cluster_partitions{suffix}", text, value=value)
        yield GaugeMetricFamily(
            "chronik_cluster_leader_skew",
            "How much more the busiest broker leads than its share.",
            value=found.leader_skew,
        )
        own = status.node_id
        yield GaugeMetricFamily("chronik_leaders", "Partitions led here.", value=found.leaders[own])
        yield GaugeMetricFamily(
            "chronik_replicas", "Replicas held here.", value=found.replicas[own]
        )
        lags = follower_lags(status.replicas.loaded())
        for name, text, values in (
            (
                "chronik_follower_lag_records",
                "Records that a follower lacks of what is led here.",
                {node_id: lag.records_total for node_id, lag in lags.items()},
            ),
            (
                "chronik_follower_lag_records_max",
                "The same in its worst partition.",
                {node_id: lag.records_max for node_id, lag in lags.items()},
            ),
        ):
            family = GaugeMetricFamily(name, text, labels=("follower",))
            for node_id, records in sorted(values.items()):
                family.add_metric((str(node_id),), records)
            yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets


def registry(status: Status) -> CollectorRegistry:
    """A registry with this node's metrics alone."""
    own = CollectorRegistry()
    own.register(NodeCollector(status))
    return own


def render(own: CollectorRegistry) -> bytes:
    """The text that Prometheus scrapes."""
    return generate_latest(own)
