"""What an audit needs to know of a cluster, whether it runs or lies still.

`running` asks the brokers, `stopped` reads the data directories. Everything that judges
(`replica_check`, `table_check`) is the same for both.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from chronik.spark.audit.findings import Finding
from chronik.spark.audit.replicas import ReadReplica, Replica
from chronik.spark.log_facts import Topic
from chronik.spark.offset_range import OffsetRange
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = StructType(
    [StructField("partition", IntegerType()), StructField("offset", LongType())]
)


class AuditedCluster(Protocol):
    """Where an audit has its facts from."""

    @property
    def read_replica(self) -> ReadReplica:
        """What reads one of `replicas`, in a task."""
        ...

    @property
    def findings(self) -> Sequence[Finding]:
        """What was wrong with the cluster itself."""
        ...

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics of these names, or all but the cluster's own; SourceError if one is not."""
        ...

    def tables(self, config: PipelineConfig) -> dict[str, TopicConfig]:
        """The topics that are to have a table."""
        ...

    def replicas(self, topics: Iterable[Topic]) -> list[Replica]:
        """Every copy of every partition, with the offsets that it must have."""
        ...

    def is_compacted(self, topic: Topic) -> bool:
        """Whether the topic's settings let compaction take records from the middle of a log."""
        ...

    def starts(self, topic: Topic) -> Mapping[int, int]:
        """The log start offset of each partition."""
        ...

    def records(self, spark: "SparkSession", ranges: Sequence[OffsetRange]) -> "DataFrame":
        """The committed data records of some ranges: a row of RECORDS each."""
        ...

    def leave_out(self, findings: Iterable[Finding]) -> None:
        """Read records from no replica that these are about, where there is another."""
        ...
