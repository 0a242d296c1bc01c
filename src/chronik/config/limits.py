"""Every limit of the node that is not a Kafka setting, each with its reason."""

from typing import Final

# A request other than Produce. The largest honest ones (10,000 topics with configs) have 2 MiB;
# decoding 8 MiB of small fields takes the loop a tenth of a second at most.
CONTROL_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024

# Requests of one connection that were read and not yet answered. Clients pipeline 5 to a few
# dozen; beyond this the connection is not read until answers have left.
INFLIGHT_REQUESTS_MAX: Final = 100

# Response bytes queued on one connection before it is not read any more. A fetch response may
# exceed it by itself; it only stops the next request.
WRITE_QUEUE_BYTES_MAX: Final = 1024 * 1024

# Response bytes that slow readers have not taken, over all connections. Beyond it a fetch gives
# one batch at a time, so that a thousand stalled consumers cannot fill the memory.
QUEUED_RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024

# A connection that has sent a part of a frame must send more of it within this time.
PARTIAL_FRAME_TIMEOUT_S: Final = 30.0

# A whole frame must arrive within this time, however steadily it trickles: 100 MiB at a third of
# a MiB a second.
FRAME_TIMEOUT_S: Final = 300.0

# A connection that we closed is aborted after this time if its peer does not take what is queued.
CLOSE_GRACE_S: Final = 2.0

# A fetch response is built in memory, so that one consumer cannot ask a node for all of it.
FETCH_BYTES_MAX: Final = 55 * 1024 * 1024  # Kafka's own fetch.max.bytes

TOPIC_NAME_LENGTH_MAX: Final = 249  # Kafka's: leaves room for a partition number in a file name
PARTITIONS_PER_TOPIC_MAX: Final = 10_000  # Kafka's: one metadata entry holds a whole topic
PARTITIONS_PER_REQUEST_MAX: Final = 2_000  # DescribeTopicPartitions pages at this size, as Kafka's

# Producer ids are handed out from blocks, so that one id costs no metadata entry.
PRODUCER_ID_BLOCK: Final = 1_000

# Entries of the metadata that are proposed and not committed. A thousand topics of a hundred
# partitions have 15 MB; beyond this a slow disk or a slow follower would fill the memory.
UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024

# A snapshot of the metadata is written after this many entries. Replaying them takes about 50 ms.
SNAPSHOT_ENTRY_COUNT: Final = 5_000
