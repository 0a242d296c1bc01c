"""A streaming query's progress as a consumer group's offsets, so that any Kafka tool shows its lag.

It only informs: the checkpoint alone says where a query goes on. So a commit that fails (somebody
else's consumers are in the group, the coordinator is away) is logged and does not stop the query,
and what was committed last is not committed again.
"""

import logging
from collections.abc import Mapping

from chronik.model import TopicPartition
from chronik.spark.errors import SourceError
from chronik.spark.log_facts import LogFacts

logger = logging.getLogger(__name__)


class Progress:
    """Commits how far a query has come."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._committed: dict[TopicPartition, int] = {}
        self._complaint = ""

    def reached(self, facts: LogFacts, ends: Mapping[TopicPartition, int]) -> bool:
        """Commit the ends that are news; whether there were any."""
        news = {place: end for place, end in ends.items() if self._committed.get(place) != end}
        if not news:
            return False
        try:
            facts.commit(self._group_id, news)
        except SourceError as error:
            if str(error) != self._complaint:
                logger.warning("progress is not committed to group %s: %s", self._group_id, error)
            self._complaint = str(error)
            return False
        self._committed.update(news)
        self._complaint = ""
        return True
