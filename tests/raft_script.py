"""A Raft group that does one thing at a time, for scripts and unit tests: time and messages move
only when they are told to, and every step can be read as a line of text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chronik.raft.leading import NotLeader, NotNow
from chronik.raft.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from chronik.raft.node import RaftNode, Ready
from chronik.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Membership,
    RaftConfig,
    Role,
    Snapshot,
)

STABLE_STEPS_MAX = 10_000


@dataclass
class Member:
    """One node and its disk, which saves when it is told to."""

    config: RaftConfig
    founding: Membership
    state: HardState = field(default_factory=HardState)
    snapshot: Snapshot = field(default_factory=Snapshot)
    entries: list[Entry] = field(default_factory=list)
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.start(self.now_ms)

    def start(self, now_ms: int) -> None:
        """Begin a life with what the disk holds."""
        self.now_ms = now_ms
        self.unsaved: list[Ready] = []
        self.outbox: list[Message] = []
        self.applied: list[Entry] = []
        self.reads: list[tuple[object, int]] = []
        self.node = RaftNode.restore(
            self.config,
            state=self.state,
            snapshot=self.snapshot,
            entries=self.entries,
            founding=self.founding,
            jitter=lambda: self.config.node_id / 10,  # so that no two campaign at once
            now_ms=now_ms,
        )

    def pump(self) -> None:
        """Take over what there is to do, and save nothing yet."""
        while (ready := self.node.ready()) is not None:
            self.node.advance(ready)
            self.outbox += ready.messages
            self.applied += ready.committed
            self.reads += ready.reads
            self.unsaved.append(ready)

    def save(self) -> None:
        """Save what was taken over, and what follows from that."""
        self.pump()
        while self.unsaved:
            ready = self.unsaved.pop(0)
            self._write(ready)
            self.node.saved(ready)
            self.outbox += ready.after_save
            self.pump()

    def _write(self, ready: Ready) -> None:
        self.state = ready.hard_state or self.state
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        first = self.snapshot.index + 1
        if ready.replaced_from is not None:
            del self.entries[max(ready.replaced_from - first, 0) :]
        self.entries += [entry for entry in ready.entries if entry.index >= first]

    def compact(self) -> Snapshot:
        """A snapshot of all that is applied."""
        self.save()
        node = self.node
        index = node.applied_index
        term = node.log.term_at(index)
        assert term is not None
        self.entries = self.entries[index - self.snapshot.index :]
        self.snapshot = Snapshot(index, term, node.members.at(index))
        node.compact(self.snapshot)
        return self.snapshot

    def step(self, message: Message) -> list[Message]:
        """Take a message, save, and say what is to be sent."""
        self.node.step(message, self.now_ms)
        return self.drain()

    def tick(self, after_ms: int) -> list[Message]:
        """Let time pass, save, and say what is to be sent."""
        self.now_ms += after_ms
        self.node.tick(self.now_ms)
        return self.drain()

    def drain(self) -> list[Message]:
        """Save, and take what is to be sent."""
        self.save()
        sent, self.outbox = self.outbox, []
        return sent


class Group:
    """Some members and what is on its way between them."""

    def __init__(self, count: int = 3, voters: int | None = None, **settings: int) -> None:
        self.now_ms = 0
        self.founding = Membership(frozenset(range(1, (voters or count) + 1)))
        self.members: dict[int, Member] = {}
        self.wire: list[Message] = []
        self.cut: set[frozenset[int]] = set()
        self.down: set[int] = set()
        self.settings = settings
        for node_id in range(1, count + 1):
            is_founder = node_id in self.founding.voters
            founding = self.founding if is_founder else Membership()
            config = RaftConfig(node_id=node_id, **settings)
            self.members[node_id] = Member(config, founding)

    def __getitem__(self, node_id: int) -> RaftNode:
        return self.members[node_id].node

    def collect(self) -> None:
        """Save everywhere; what is to be sent gets on its way."""
        for node_id, member in self.members.items():
            if node_id in self.down:
                continue
            for message in member.drain():
                if frozenset({message.sender, message.recipient}) not in self.cut:
                    self.wire.append(message)

    def deliver(self, to: int | None = None) -> list[Message]:
        """Let what is on its way arrive, at one node or at all."""
        self.collect()
        arriving = [m for m in self.wire if to is None or m.recipient == to]
        self.wire = [m for m in self.wire if m not in arriving]
        for message in arriving:
            if message.recipient not in self.down:
                self[message.recipient].step(message, self.now_ms)
        return arriving

    def stabilize(self) -> list[Message]:
        """Until nothing moves."""
        moved: list[Message] = []
        for _ in range(STABLE_STEPS_MAX):
            arrived = self.deliver()
            moved += arrived
            if not arrived:
                self.collect()
                if not self.wire:
                    return moved
        raise AssertionError("it never becomes quiet")

    def pass_time(self, for_ms: int) -> None:
        """Let time pass for everybody, without a message moving."""
        self.now_ms += for_ms
        for node_id, member in self.members.items():
            member.now_ms = self.now_ms
            if node_id not in self.down:
                member.node.tick(self.now_ms)

    def forget_promises(self) -> None:
        """As if no leader had been heard for long enough, and nobody's patience had ended."""
        self.now_ms += self.members[1].config.election_ms_min
        for member in self.members.values():
            member.now_ms = member.node.now_ms = self.now_ms
            member.node._await_leader()

    def campaign(self, node_id: int) -> None:
        """Let the patience of a node end, when nobody keeps a promise any more."""
        if any(self.now_ms < each.node._promised_until_ms for each in self.members.values()):
            self.forget_promises()
        self.hurry(node_id)

    def hurry(self, node_id: int) -> None:
        """The same, while others may still keep a promise."""
        self[node_id]._election_at_ms = self.now_ms
        self[node_id].tick(self.now_ms)

    def elect(self, node_id: int) -> RaftNode:
        """Make a node the leader."""
        self.campaign(node_id)
        self.stabilize()
        assert self[node_id].role is Role.LEADER
        return self[node_id]

    def crash(self, node_id: int) -> None:
        """A process ends; what it had not saved is gone."""
        self.down.add(node_id)
        self.members[node_id].unsaved = []

    def start(self, node_id: int) -> None:
        """And begins again."""
        self.down.discard(node_id)
        self.members[node_id].start(self.now_ms)


class Script:
    """Carries out commands, and tells in lines of text what came of them."""

    def __init__(self) -> None:
        self.group_ = Group()

    def run(self, line: str) -> list[str]:
        name, *words = line.split()
        numbers = [int(word) if word.isdigit() else word for word in words]
        try:
            return getattr(self, name)(*numbers) or []
        except NotLeader as error:
            return [f"not the leader, which is {error.leader_id}"]
        except NotNow as error:
            return [f"not now: {error}"]

    def group(self, count: int, voters: int | None = None) -> None:
        self.group_ = Group(count, voters)

    def campaign(self, node_id: int) -> None:
        self.group_.campaign(node_id)

    def hurry(self, node_id: int) -> None:
        self.group_.hurry(node_id)

    def elect(self, node_id: int) -> None:
        self.group_.elect(node_id)

    def propose(self, node_id: int, data: object) -> list[str]:
        index = self.group_[node_id].propose(str(data).encode())
        return [f"index {index}"]

    def members(self, node_id: int, voters: object, learners: object = "") -> list[str]:
        membership = Membership(parsed(voters), parsed(learners))
        index = self.group_[node_id].propose_membership(membership)
        return [f"index {index}"]

    def transfer(self, node_id: int, to: int) -> None:
        self.group_[node_id].transfer(to, self.group_.now_ms)

    def read(self, node_id: int, name: str) -> list[str]:
        self.group_[node_id].read_index(name, self.group_.now_ms)
        return self._reads()

    def _reads(self) -> list[str]:
        told = []
        for member in self.group_.members.values():
            member.pump()
            told += [f"read {token} at {index}" for token, index in member.reads]
            member.reads = []
        return told

    def compact(self, node_id: int) -> list[str]:
        return [f"snapshot at {self.group_.members[node_id].compact().index}"]

    def stabilize(self) -> list[str]:
        return [shown(message) for message in self.group_.stabilize()] + self._reads()

    def deliver(self, node_id: int) -> list[str]:
        return [shown(message) for message in self.group_.deliver(node_id)]

    def cut(self, first: int, second: int) -> None:
        self.group_.cut.add(frozenset({first, second}))

    def heal(self) -> None:
        self.group_.cut.clear()

    def crash(self, node_id: int) -> None:
        self.group_.crash(node_id)

    def start(self, node_id: int) -> None:
        self.group_.start(node_id)

    def wait(self, for_ms: int) -> list[str]:
        for _ in range(0, for_ms, 25):
            self.group_.pass_time(25)
            self.group_.stabilize()
        return self._reads()

    def status(self) -> list[str]:
        told = []
        for node_id, member in self.group_.members.items():
            node = member.node
            lease = " with a lease" if node.has_lease(self.group_.now_ms) else ""
            life = "down" if node_id in self.group_.down else node.role.value + lease
            told.append(
                f"{node_id} {life}, term {node.term}, leader {node.leader_id}, "
                f"last {node.log.last_index}, commit {node.commit_index}"
            )
        return told

    def log(self, node_id: int) -> list[str]:
        log = self.group_[node_id].log
        shown_entries = " ".join(said(entry) for entry in log.entries)
        return [f"after {log.snapshot.index}: {shown_entries}"]


def parsed(numbers: object) -> frozenset[int]:
    return frozenset(int(each) for each in str(numbers).split(",") if each)


def said(entry: Entry) -> str:
    """An entry in a word."""
    data = entry.data.decode() if entry.kind is EntryKind.COMMAND else entry.kind.value
    return f"{entry.term}:{data}"


def shown(message: Message) -> str:
    """A message in a line."""
    start = f"{message.sender}->{message.recipient} term {message.term} "
    match message:
        case RequestVote():
            kind = "pre-vote?" if message.is_pre_vote else "vote?"
            kind = "vote? (transfer)" if message.is_transfer else kind
            return f"{start}{kind} log {message.last_term}:{message.last_index}"
        case VoteReply():
            kind = "pre-vote" if message.is_pre_vote else "vote"
            return f"{start}{kind} {'granted' if message.is_granted else 'refused'}"
        case AppendEntries():
            entries = " ".join(said(entry) for entry in message.entries) or "heartbeat"
            after = f"{message.previous_term}:{message.previous_index}"
            return f"{start}append after {after}, commit {message.commit_index}: {entries}"
        case AppendReply() if message.is_accepted:
            return f"{start}saved {message.match_index} of {message.held_index}"
        case AppendReply():
            conflict = f"{message.conflict_term}:{message.conflict_index}"
            return f"{start}refused, try {conflict}"
        case InstallSnapshot():
            return f"{start}snapshot {message.snapshot.term}:{message.snapshot.index}"
        case TimeoutNow():
            return f"{start}begin now"
