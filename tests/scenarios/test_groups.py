"""Scripts for groups: each line is a command, and what it led to stands below it, indented.

A line that begins with # is a comment. Commands (options are name=value):

    topic NAME...                       create topics with two partitions
    untopic NAME                        delete a topic
    config NAME=VALUE...                settings of the broker, before anything else
    client NAME [instance= version= session= rebalance= protocols=range,sticky type= topics=t,u]
    join NAME / enter NAME              JoinGroup; enter asks for a member id first if it must
    sync NAME [OTHER=SHARE...]          SyncGroup; with shares it is the leader's
    heartbeat NAME [generation=]
    leave NAME [version=]
    forget NAME                         the client restarts and knows nothing any more
    commit NAME|- TOPIC-N=OFFSET...     as a member, or without membership
    txn ID TOPIC-N=OFFSET...            in the transaction of a producer
    end ID commit|abort                 that transaction's marker
    fetch [stable]                      all offsets, or all of t, if none may be pending
    describe / list / delete
    advance MS                          time passes
    crash                               the log is all that is left
"""

from pathlib import Path

import pytest
from group_world import FORMAT, Client, World, subscription
from scripts_played import check_script

from chronik.coordinator.effects import Caller
from chronik.coordinator.groups.records import GroupMetadataKey, OffsetCommitKey
from chronik.protocol.errors import ErrorCode

SCRIPTS = sorted((Path(__file__).parent / "groups").glob("*.txt"))


def code(number):
    return ErrorCode(number).name


class Player:
    """Plays one script."""

    def __init__(self):
        self.world = World()
        self.clients = {}
        self.shown = set()

    def run(self, line):
        """Carry out a command; what it led to, as lines of text."""
        written = len(self.world.log)
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        said = getattr(self, name)(*names, **options) or []
        return [*said, *self.logged(written), *self.answered()]

    # Commands.

    def config(self, **settings):
        self.world = World(**{name.replace(".", "_"): value for name, value in settings.items()})

    def topic(self, *names):
        self.world.create(*names)

    def untopic(self, name):
        self.world.delete(name)

    def client(self, name, protocols="range", topics="t", **options):
        numbers = {key: int(value) for key, value in options.items() if value.isdigit()}
        metadata = subscription(*topics.split(","))
        self.clients[name] = Client(
            self.world,
            name,
            protocols=dict.fromkeys(protocols.split(","), metadata),
            **{**options, **numbers},
        )

    def member(self, name):
        if name not in self.clients:
            self.client(name)
        return self.clients[name]

    def join(self, name):
        self.member(name).join()

    def enter(self, name):
        self.member(name).enter()

    def sync(self, name, **shares):
        assignments = {self.clients[each].member_id: s.encode() for each, s in shares.items()}
        self.clients[name].sync(assignments)

    def heartbeat(self, name, generation=None):
        client = self.clients[name]
        return [f"{client.heartbeat(None if generation is None else int(generation)).name}"]

    def leave(self, name, version="5"):
        return [self.clients[name].leave(int(version)).name]

    def forget(self, name):
        self.clients[name].member_id = ""

    def commit(self, name, **offsets):
        commit = self.world.commit if name == "-" else self.clients[name].commit
        return [said(commit(parsed(offsets)))]

    def txn(self, producer_id, **offsets):
        return [said(self.world.txn_commit(int(producer_id), parsed(offsets)))]

    def end(self, producer_id, outcome):
        self.world.end(int(producer_id), outcome == "commit")

    def fetch(self, stable=None):
        found = self.world.fetch()
        if stable:
            found = self.world.fetch(("t", 0), ("t", 1), stable=True)
        return [f"{topic}-{index} {said(offset)}" for (topic, index), offset in found.items()]

    def describe(self):
        caller = Caller("admin", "/h", 6)
        group = self.world.ask(lambda shard, token, _: shard.describe_group("g", caller, 0, token))
        members = [f"{each.member_id}={each.member_assignment.decode()}" for each in group.members]
        shown = f"{code(group.error_code)} {group.group_state} {group.protocol_data} "
        return [(shown + " ".join(members)).strip()]

    def list(self):
        found = self.world.shard.list_groups((), ())
        return [
            f"{each.group_id} {each.group_state} {each.group_type} '{each.protocol_type}'"
            for each in found
        ]

    def delete(self):
        answer = self.world.ask(lambda shard, token, now: shard.delete_group("g", token, now))
        return [code(answer.error_code)]

    def advance(self, elapsed_ms):
        self.world.advance(int(elapsed_ms))

    def crash(self):
        self.world.crash()

    # What came of it.

    def logged(self, start):
        for entry in self.world.log[start:]:
            if len(entry) == 2:
                yield f"log: marker of {entry[0].producer_id}"
                continue
            key, value, producer = entry
            by = f" by {producer.producer_id}" if producer else ""
            yield f"log: {recorded(*FORMAT.decode(key, value))}{by}"

    def answered(self):
        for name, client in self.clients.items():
            for token, answer in ((client.joining, client.joined()), (client.syncing, None)):
                if token in self.world.answers and token not in self.shown:
                    self.shown.add(token)
                    yield f"{name}: {shown(answer or client.synced())}"


def recorded(key, value):
    """A record in a line."""
    if isinstance(key, OffsetCommitKey):
        offset = "removed" if value is None else value.offset
        return f"offset {key.group} {key.topic}-{key.partition} {offset}"
    assert isinstance(key, GroupMetadataKey)
    if value is None:
        return f"group {key.group} removed"
    members = [f"{each.member_id}={each.assignment.decode()}" for each in value.members]
    text = f"group {key.group} generation={value.generation} leader={value.leader} "
    return (text + " ".join(members)).strip()


def parsed(offsets):
    found = {}
    for name, offset in offsets.items():
        topic, _, index = name.rpartition("-")
        found[topic, int(index)] = int(offset)
    return found


def said(value):
    if isinstance(value, list):
        return " ".join(each.name for each in value)
    return value.name if isinstance(value, ErrorCode) else str(value)


def shown(answer):
    """A JoinGroup's or SyncGroup's answer in a line."""
    if isinstance(answer, ErrorCode):
        return answer.name
    if answer.error_code:
        member_id = getattr(answer, "member_id", "")
        return f"{code(answer.error_code)} {member_id}".strip()
    if not hasattr(answer, "leader"):
        return f"reads {answer.assignment.decode() or 'nothing'}"
    members = ",".join(each.member_id for each in answer.members)
    text = f"in generation {answer.generation_id} as {answer.member_id}, {answer.protocol_name}"
    text += f" led by {answer.leader}"
    text += f", members {members}" if members else ""
    return text + (", skips the assignment" if answer.skip_assignment else "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path, request):
    check_script(path, Player().run, request)


def test_there_are_scripts():
    assert len(SCRIPTS) >= 12
