"""What an audit has looked at, and what it has found wrong."""

from dataclasses import asdict, dataclass
from typing import Any, Final

FINDINGS_MAX: Final = 100  # listed of one question; more would be read by nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it must be."""

    topic: str
    partition: int
    kind: str  # divergence, crc, gap, duplicate, missing, extra, unreadable
    offset: int | None
    node_id: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """How much of one topic was looked at."""

    topic: str
    partition_count: int
    replica_count: int  # that were read, of all partitions
    batch_count: int
    record_count: int
    byte_count: int
    table_format: str | None = None
    row_count: int | None = None
    dead_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """An audit's result."""

    topics: tuple[Audited, ...]
    findings: tuple[Finding, ...]
    # There may be more of a kind in a topic than are listed.
    finding_count: int

    def as_json(self) -> dict[str, Any]:
        return {
            "topics": [asdict(each) for each in self.topics],
            "findings": [asdict(each) for each in self.findings],
            "finding_count": self.finding_count,
        }
