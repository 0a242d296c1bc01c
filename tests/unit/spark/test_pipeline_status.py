"""The status of many topics, of which one cannot be looked at."""

from pathlib import Path
from typing import Any

import pytest

from chronik.spark.connection import Connection
from chronik.spark.lake.table import LakeError
from chronik.spark.pipeline import status
from chronik.spark.pipeline.config import PipelineConfig, TopicConfig
from chronik.spark.pipeline.discovery import Discovered
from chronik.spark.pipeline.status import TopicStatus, read_status


def test_a_table_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = tuple(TopicConfig(name=name, table="iceberg") for name in "abc")

    def look(topic: TopicConfig, *_: Any) -> TopicStatus:
        if topic.name == "b":
            raise LakeError("its files are not there")
        return TopicStatus(topic=topic.name, table_format=topic.table)

    monkeypatch.setattr(status, "discover", lambda *_: Discovered(topics=topics, errors={}))
    monkeypatch.setattr(status, "_status", look)
    config = PipelineConfig(warehouse=str(tmp_path))
    found = read_status(config, Connection(bootstrap="127.0.0.1:1"))
    assert [(each.topic, each.error) for each in found] == [
        ("a", None),
        ("b", "its files are not there"),
        ("c", None),
    ]
