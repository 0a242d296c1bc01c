"""What the dashboard may look at. It is given by the broker, and nothing here changes anything."""

from collections.abc import Callable
from dataclasses import dataclass

from chronik.metadata.runtime import MetadataRuntime
from chronik.metrics import Metrics
from chronik.replication.replicas import Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The parts of a node that have something to show."""

    node_id: int
    metrics: Metrics
    metadata: MetadataRuntime
    replicas: Replicas
    fetch_session_count: Callable[[], int]
