"""What the machines of one shard of groups share.

A shard is one partition of `__consumer_offsets`: the groups whose ids hash to it, and their
offsets. `classic`, `consumer` and `offsets` each move their own part of this state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronik.config.effective import BrokerConfig
from chronik.config.group_settings import group_value
from chronik.coordinator.classic.group import ClassicGroup
from chronik.coordinator.groups.committed_offsets import CommittedOffsets
from chronik.coordinator.timers import Timers
from chronik.metadata.image import Image

if TYPE_CHECKING:
    from chronik.coordinator.consumer.group import ConsumerGroup


class GroupConfig:
    """The settings that groups follow, the broker's and their own, read when they are needed."""

    __slots__ = ("_broker", "_own")

    def __init__(
        self, broker: Callable[[], BrokerConfig], own: Callable[[str], Mapping[str, str]]
    ) -> None:
        self._broker = broker
        self._own = own  # what was set for a group, by its id

    def integer(self, name: str) -> int:
        return self._broker().integer(name)

    def of_group(self, group_id: str, name: str) -> int:
        return group_value(name, self._own(group_id), self._broker())

    def words(self, name: str) -> tuple[str, ...]:
        value = self._broker().get(name)
        assert isinstance(value, tuple)
        return value

    def text(self, name: str) -> str:
        return str(self._broker().get(name))


@dataclass(slots=True, kw_only=True)
class GroupState:
    """The groups of one shard, their deadlines, and what they look at."""

    config: GroupConfig
    new_id: Callable[[], str]  # a random id in text, never given twice
    groups: "dict[str, ClassicGroup | ConsumerGroup]" = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    timers: Timers = field(default_factory=Timers)
    image: Image = field(default_factory=Image)  # the committed metadata: topics, partitions, racks
