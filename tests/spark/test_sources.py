"""One suite for Spark's own `kafka` source and for `chronik`, against the same broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


START_MS = 1_700_000_000_000


def run_to_end(frame: Any, checkpoint: Path, rows: list[Any], **trigger: Any) -> Any:
    """Run a stream over what is there now and collect its rows; the query, ended."""
    query = (
        frame.writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return query


def test_batch_columns_and_types(read: Callable[..., Any], topics: Any) -> None:
    topic = topics.create(partitions=2)
    topics.produce(
        topic, b"v", key=b"k", partition=1, timestamp=START_MS, headers=[("h", b"1"), ("h", None)]
    )
    topics.produce(topic, None, partition=0, timestamp=START_MS + 1)
    frames = [
        read(source, topic, includeHeaders="true").orderBy("partition")
        for source in ("chronik", "kafka")
    ]
    ours, theirs = frames
    assert ours.schema == theirs.schema
    rows = ours.collect()
    assert rows == theirs.collect()
    assert rows[1].headers == [("h", b"1"), ("h", None)]
    assert (rows[1].key, rows[1].value, rows[0].value) == (b"k", b"v", None)
    assert rows[1].timestamp.timestamp() * 1000 == START_MS
