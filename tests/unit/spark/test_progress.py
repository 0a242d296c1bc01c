"""Progress: what is news is committed, once, and a failure stops nothing."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from chronik.model import TopicPartition
from chronik.spark.errors import SourceError
from chronik.spark.progress import Progress

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Facts:
    """Remembers commits, or refuses them."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.refusal = ""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.refusal:
            raise SourceError(self.refusal)
        self.commits.append(dict(offsets))


def reach(progress: Progress, facts: Facts, ends: dict[TopicPartition, int]) -> bool:
    asked: Any = facts
    return progress.reached(asked, ends)


def test_only_news_is_committed() -> None:
    progress, facts = Progress("g"), Facts()
    assert reach(progress, facts, {PLACE: 3, OTHER: 0})
    assert not reach(progress, facts, {PLACE: 3, OTHER: 0})
    assert reach(progress, facts, {PLACE: 4, OTHER: 0})
    assert facts.commits == [{PLACE: 3, OTHER: 0}, {PLACE: 4}]


def test_a_refusal_is_said_once_and_made_good_later(caplog: pytest.LogCaptureFixture) -> None:
    progress, facts = Progress("g"), Facts()
    facts.refusal = "group g has members: stop them first"
    with caplog.at_level(logging.WARNING):
        assert not reach(progress, facts, {PLACE: 3})
        assert not reach(progress, facts, {PLACE: 3})
    assert len(caplog.records) == 1
    facts.refusal = ""
    assert reach(progress, facts, {PLACE: 3})
    assert facts.commits == [{PLACE: 3}]


def test_offsets_that_go_back_are_news() -> None:
    # A topic that was created again begins anew, and so does its lag.
    progress, facts = Progress("g"), Facts()
    reach(progress, facts, {PLACE: 9})
    reach(progress, facts, {PLACE: 1})
    assert facts.commits == [{PLACE: 9}, {PLACE: 1}]
