"""Who the members are, as the log says it: a configuration counts as soon as it is appended.

An entry that is replaced takes its configuration with it, so those that may still be replaced are
remembered.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from chronik.raft.types import Entry, EntryKind, Membership, Snapshot


def encode_membership(membership: Membership) -> bytes:
    """The data of a configuration entry, for people to read too."""
    directories = {str(node): membership.directories[node] for node in membership.directories}
    value = {
        "voters": sorted(membership.voters),
        "learners": sorted(membership.learners),
        "directories": directories,
    }
    return json.dumps(value, sort_keys=True).encode()


def decode_membership(data: bytes) -> Membership:
    """The members that a configuration entry names."""
    value = json.loads(data)
    directories = {int(node): directory for node, directory in value["directories"].items()}
    return Membership(frozenset(value["voters"]), frozenset(value["learners"]), directories)


def why_not(old: Membership, new: Membership) -> str | None:
    """What forbids to go from one configuration to the other in a single step, if anything."""
    if not new.voters:
        return "one voter must remain"
    if new.voters & new.learners:
        return "a node is a voter or a learner, not both"
    if len(old.voters ^ new.voters) > 1:
        # Majorities of the two could miss each other, and each elect a leader.
        return "one voter can be added or removed at a time"
    if new.voters - old.members:
        # A voter must know that it is one when it is asked: it learnt that it is a member before.
        return "a new voter must have been a learner"
    for node_id in old.members & new.members & old.directories.keys():
        if new.directories.get(node_id) != old.directories[node_id]:
            return f"node {node_id} is removed before it comes back with another directory"
    return None


@dataclass(slots=True)
class Members:
    """The configurations of the log, by index; the last one counts."""

    history: list[tuple[int, Membership]] = field(default_factory=lambda: [(0, Membership())])

    @classmethod
    def restore(
        cls, founding: Membership, snapshot: Snapshot, entries: Iterable[Entry]
    ) -> "Members":
        """What a log says; `founding` holds before its first configuration."""
        first = (snapshot.index, snapshot.membership) if snapshot.index else (0, founding)
        members = cls([first])
        for entry in entries:
            members.note(entry)
        return members

    @property
    def current(self) -> Membership:
        """The configuration that counts."""
        return self.history[-1][1]

    @property
    def changed_index(self) -> int:
        """Where the configuration that counts was appended."""
        return self.history[-1][0]

    def at(self, index: int) -> Membership:
        """Who the members were when this entry was the last one."""
        return self.since(index)[1]

    def since(self, index: int) -> tuple[int, Membership]:
        """The same, and where that configuration was appended."""
        return next(each for each in reversed(self.history) if each[0] <= index)

    def note(self, entry: Entry) -> bool:
        """An entry was appended; whether it changes who the members are."""
        if entry.kind is not EntryKind.CONFIGURATION or entry.index <= self.changed_index:
            return False
        self.history.append((entry.index, decode_membership(entry.data)))
        return True

    def truncate(self, index: int) -> None:
        """Entries from here on were replaced."""
        while self.history[-1][0] >= index:
            self.history.pop()

    def reset(self, snapshot: Snapshot) -> None:
        """A snapshot has taken the place of the log."""
        self.history = [(snapshot.index, snapshot.membership)]

    def compact(self, index: int) -> None:
        """Forget the configurations before an entry, except the one that held then."""
        later = [each for each in self.history if each[0] > index]
        self.history = [(index, self.at(index)), *later]
