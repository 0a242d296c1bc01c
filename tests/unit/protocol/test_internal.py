"""The internal port's bytes: what is said arrives, and what is no message is refused."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.metadata.raft_wire import decode_raft, encode_raft, supersedes
from chronik.protocol import internal, internal_handshake
from chronik.protocol.errors import ProtocolError
from chronik.protocol.internal import (
    FRAME_HEADER,
    Answer,
    Call,
    Challenge,
    FrameBuffer,
    Hello,
    Identity,
    Proof,
    Raft,
    Refused,
    SnapshotData,
    SnapshotParts,
    decode_message,
    encode_frame,
)
from chronik.protocol.internal_handshake import (
    NONCE_SIZE,
    ConnectingHandshake,
    HandshakeRefused,
    ReachedHandshake,
    mismatch,
    refusal,
    without_secret,
)
from chronik.raft.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from chronik.raft.types import Entry, EntryKind, Membership, Snapshot

number = st.integers(0, 2**63 - 1)
ids = st.frozensets(st.integers(0, 2**31 - 1), max_size=5)
entry = st.builds(
    Entry, term=number, index=number, kind=st.sampled_from(EntryKind), data=st.binary(max_size=50)
)
membership = st.builds(
    Membership,
    voters=ids,
    learners=ids,
    directories=st.dictionaries(st.integers(0, 2**31 - 1), st.text(max_size=10), max_size=4),
)
addressed = {"term": number, "sender": number, "recipient": number}
raft_message: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        RequestVote,
        **addressed,
        last_index=number,
        last_term=number,
        is_pre_vote=st.booleans(),
        is_transfer=st.booleans(),
    ),
    st.builds(VoteReply, **addressed, is_pre_vote=st.booleans(), is_granted=st.booleans()),
    st.builds(
        AppendEntries,
        **addressed,
        previous_index=number,
        previous_term=number,
        entries=st.lists(entry, max_size=5).map(tuple),
        commit_index=number,
        round=number,
    ),
    st.builds(
        AppendReply,
        **addressed,
        is_accepted=st.booleans(),
        match_index=number,
        held_index=number,
        conflict_index=number,
        conflict_term=number,
        round=number,
    ),
    st.builds(
        InstallSnapshot,
        **addressed,
        snapshot=st.builds(Snapshot, index=number, term=number, membership=membership),
        round=number,
    ),
    st.builds(TimeoutNow, **addressed),
)
raft = st.builds(Raft, kind=st.text(max_size=20), payload=st.binary(max_size=100))
identity = {
    "cluster_id": st.text(max_size=10),
    "node_id": number,
    "directory_id": st.text(max_size=10),
    "incarnation_id": st.text(max_size=10),
}
message = st.one_of(
    st.builds(
        Hello, **identity, purpose=st.sampled_from(["raft", "call"]), nonce=st.binary(max_size=40)
    ),
    st.builds(Challenge, **identity, nonce=st.binary(max_size=40)),
    st.builds(Proof, st.binary(max_size=40)),
    st.builds(Refused, st.text(max_size=10), st.text(max_size=40)),
    raft,
    st.builds(SnapshotData, number, raft, number, number, st.binary(max_size=40)),
    st.builds(Call, number, st.text(max_size=10), st.binary(max_size=40)),
    st.builds(Answer, number, st.integers(-1, 200), st.text(max_size=10), st.binary(max_size=40)),
)


@given(message)
def test_every_message_survives_its_frame(said: Any) -> None:
    frame = encode_frame(said)
    assert FRAME_HEADER.unpack_from(frame)[0] == len(frame) - FRAME_HEADER.size
    heard = decode_message(frame[FRAME_HEADER.size :])
    assert heard == said
    assert type(heard) is type(said)


@given(raft_message)
def test_every_raft_message_survives_the_wire(said: Message) -> None:
    framed = encode_frame(encode_raft(said))
    outer = decode_message(framed[FRAME_HEADER.size :])
    assert isinstance(outer, Raft)
    heard = decode_raft(outer)
    assert heard == said
    assert type(heard) is type(said)
    if isinstance(heard, InstallSnapshot):
        assert isinstance(heard.snapshot.membership.voters, frozenset)
    if isinstance(heard, AppendEntries):
        assert all(isinstance(each.kind, EntryKind) for each in heard.entries)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        decode_message(data)
    except ProtocolError:
        pass


@given(raft_message, st.binary(max_size=100), st.randoms(use_true_random=False))
def test_a_damaged_raft_message_is_a_message_or_a_protocol_error(
    said: Message, noise: bytes, chance: random.Random
) -> None:
    encoded = encode_raft(said)
    payload = bytearray(encoded.payload)
    for byte in noise[: len(payload)]:
        payload[chance.randrange(len(payload))] = byte
    for damaged in (Raft(encoded.kind, bytes(payload)), Raft(encoded.kind, noise)):
        try:
            decode_raft(damaged)
        except ProtocolError:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 100_000,  # nesting without end
        b"\x92\xa6answer\x00" + b"\xc1",
        b"\x95\xa6answer\x00\x00\x00\xa0" + b"\xdd\xff\xff\xff\xff" * 2,
        b"\x93\xa7refused\xa1\xff\xa1x",  # no UTF-8
        b"\x99\xa6answer\x00\x00\xa0\xc4\x00" + b"\x91" * 100_000,  # in fields to be skipped
        msgspec.msgpack.encode(["call", 2**64 - 1, "m"]),
        msgspec.msgpack.encode(["hello", "c", 1, "d", "i", "gossip", b"n" * 32, 1]),
    ],
)
def test_what_is_no_message_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(data)


def test_an_unknown_kind_of_raft_message_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="Gossip"):
        decode_raft(Raft("Gossip", b"\x80"))


def test_a_message_is_never_decoded_as_another() -> None:
    said = encode_raft(TimeoutNow(term=1, sender=1, recipient=2))
    with pytest.raises(ProtocolError):
        decode_raft(Raft("AppendEntries", said.payload))


def test_fields_of_a_newer_version_are_skipped() -> None:
    payload = msgspec.msgpack.encode({"term": 1, "sender": 2, "recipient": 3, "later": [1]})
    assert decode_raft(Raft("TimeoutNow", payload)) == TimeoutNow(term=1, sender=2, recipient=3)
    longer = msgspec.msgpack.encode(["answer", 7, 0, "", b"x", "later"])
    assert decode_message(longer) == Answer(7, 0, "", b"x")


def test_heartbeats_and_vote_requests_supersede_and_appends_do_not() -> None:
    to = {"term": 1, "sender": 1, "recipient": 2}
    one = Entry(term=1, index=1, kind=EntryKind.NO_OP)
    assert supersedes(AppendEntries(**to, previous_index=0, previous_term=0))
    assert not supersedes(AppendEntries(**to, previous_index=0, previous_term=0, entries=(one,)))
    assert supersedes(RequestVote(**to, last_index=0, last_term=0))
    assert not supersedes(VoteReply(**to, is_pre_vote=True, is_granted=True))
    assert not supersedes(AppendReply(**to, is_accepted=True))


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 50))
def test_frames_come_out_however_the_bytes_are_cut(bodies: list[bytes], step: int) -> None:
    data = b"".join(FRAME_HEADER.pack(len(body)) + body for body in bodies)
    buffer = FrameBuffer()
    frames = []
    for position in range(0, len(data), step):
        buffer.feed(data[position : position + step])
        while (frame := buffer.next_frame()) is not None:
            frames.append(frame)
    assert frames == bodies
    assert len(buffer) == 0


def test_a_frame_beyond_the_bound_is_refused_before_it_has_come() -> None:
    buffer = FrameBuffer(100)
    buffer.feed(FRAME_HEADER.pack(101))
    with pytest.raises(ProtocolError, match="101"):
        buffer.next_frame()


def test_a_message_too_large_for_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal, "FRAME_BYTES_MAX", 1000)
    with pytest.raises(ProtocolError):
        encode_frame(Call(1, "m", bytes(1000)))


# Snapshots in parts.

WHOLE = Raft("InstallSnapshot", b"s")


def test_parts_of_a_snapshot_become_the_whole() -> None:
    parts = SnapshotParts()
    assert parts.add(SnapshotData(1, WHOLE, 0, 5, b"abc")) is None
    assert parts.add(SnapshotData(2, WHOLE, 3, 5, b"de")) == b"abcde"
    assert parts.add(SnapshotData(3, WHOLE, 0, 0, b"")) == b""


def test_a_snapshot_may_begin_anew() -> None:
    parts = SnapshotParts()
    parts.add(SnapshotData(1, WHOLE, 0, 5, b"abc"))
    assert parts.add(SnapshotData(2, Raft("InstallSnapshot", b"t"), 0, 2, b"xy")) == b"xy"


@pytest.mark.parametrize(
    "part",
    [
        SnapshotData(2, WHOLE, 4, 5, b"e"),  # a gap
        SnapshotData(2, WHOLE, 3, 4, b"de"),  # beyond the end
        SnapshotData(2, WHOLE, 3, 5, b""),  # no progress
        SnapshotData(2, Raft("InstallSnapshot", b"t"), 3, 5, b"de"),  # of another
        SnapshotData(2, WHOLE, 0, 2**40, b"x"),  # too large
    ],
)
def test_a_part_that_does_not_fit_is_refused(part: SnapshotData) -> None:
    parts = SnapshotParts()
    parts.add(SnapshotData(1, WHOLE, 0, 5, b"abc"))
    with pytest.raises(ProtocolError):
        parts.add(part)


# The handshake.

ONE = Identity("c", 1, "d1", "i1")
TWO = Identity("c", 2, "d2", "i2")


def body(frame: bytes) -> bytes:
    return frame[FRAME_HEADER.size :]


def shake(secret: bytes, other: bytes) -> tuple[ConnectingHandshake, ReachedHandshake]:
    connecting = ConnectingHandshake(ONE, "raft", secret, b"1" * 32)
    reached = ReachedHandshake(TWO, other, b"2" * 32)
    proof = connecting.receive(body(reached.receive(body(connecting.opening))))
    assert reached.proved is None
    assert reached.receive(body(proof)) == b""
    assert connecting.peer is None
    connecting.receive(body(reached.accept()))
    return connecting, reached


@pytest.mark.parametrize("secret", [b"", b"s3cret"])
def test_both_sides_know_each_other_afterwards(secret: bytes) -> None:
    connecting, reached = shake(secret, secret)
    assert reached.proved is not None
    assert (reached.proved.node_id, reached.proved.purpose) == (1, "raft")
    assert connecting.peer is not None
    assert connecting.peer.node_id == 2


@pytest.mark.parametrize(("ours", "theirs"), [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_another_secret_is_refused(ours: bytes, theirs: bytes) -> None:
    with pytest.raises(HandshakeRefused, match="secret"):
        shake(ours, theirs)


def test_a_node_that_only_pretends_to_know_the_secret_is_refused() -> None:
    connecting = ConnectingHandshake(ONE, "raft", b"s", b"1" * 32)
    pretender = ReachedHandshake(TWO, b"guess", b"2" * 32)
    proof = connecting.receive(body(pretender.receive(body(connecting.opening))))
    # Neither a proof by another secret nor our own, reflected, is one.
    for digest in (b"x" * 32, msgspec.msgpack.decode(body(proof))[1], b""):
        with pytest.raises(HandshakeRefused, match="secret"):
            connecting.receive(body(encode_frame(Proof(digest))))
    assert connecting.peer is None


def test_a_replayed_conversation_is_refused() -> None:
    connecting = ConnectingHandshake(ONE, "raft", b"s", b"1" * 32)
    reached = ReachedHandshake(TWO, b"s", b"2" * 32)
    proof = connecting.receive(body(reached.receive(body(connecting.opening))))
    again = ReachedHandshake(TWO, b"s", b"3" * 32)
    again.receive(body(connecting.opening))
    with pytest.raises(HandshakeRefused, match="secret"):
        again.receive(body(proof))
    assert again.proved is None


def test_what_is_changed_on_the_way_is_refused() -> None:
    connecting = ConnectingHandshake(ONE, "raft", b"s", b"1" * 32)
    as_another = ConnectingHandshake(Identity("c", 9, "d1", "i1"), "raft", b"s", b"1" * 32)
    reached = ReachedHandshake(TWO, b"s", b"2" * 32)
    proof = connecting.receive(body(reached.receive(body(as_another.opening))))
    with pytest.raises(HandshakeRefused):
        reached.receive(body(proof))


def test_another_version_is_refused_by_both() -> None:
    hello = Hello("c", 1, "d", "i", "raft", b"1" * 32, 2)
    with pytest.raises(HandshakeRefused, match="version 2"):
        ReachedHandshake(TWO, b"s", b"2" * 32).receive(body(encode_frame(hello)))
    challenge = Challenge("c", 1, "d", "i", b"1" * 32, 3)
    with pytest.raises(HandshakeRefused, match="version 3"):
        ConnectingHandshake(ONE, "raft", b"s", b"1" * 32).receive(body(encode_frame(challenge)))


@given(st.lists(message, max_size=4))
def test_any_talk_in_a_handshake_ends_it_or_is_part_of_it(talk: list[Any]) -> None:
    sides = (
        ConnectingHandshake(ONE, "raft", b"s", b"1" * 32),
        ReachedHandshake(TWO, b"s", b"2" * 32),
    )
    for side in sides:
        try:
            for said in talk:
                side.receive(body(encode_frame(said)))
        except (ProtocolError, HandshakeRefused):
            pass
    assert sides[0].peer is None
    assert sides[1].proved is None


def test_a_refusal_is_one_short_line() -> None:
    frame = refusal(HandshakeRefused("not-admitted", "one\ntwo\x1b[31m" + "x" * 10_000))
    connecting = ConnectingHandshake(ONE, "raft", b"s", b"1" * 32)
    with pytest.raises(HandshakeRefused) as caught:
        connecting.receive(body(frame))
    assert str(caught.value).startswith("one two [31mxxx")
    assert len(str(caught.value)) == internal_handshake.REASON_LENGTH_MAX


def test_who_can_never_be_of_one_cluster() -> None:
    assert mismatch(ONE, TWO) is None
    assert mismatch(ONE, Identity("", 2, "d", "i")) is None
    assert "cluster other" in str(mismatch(ONE, Identity("other", 2, "d", "i")))
    assert "id 1" in str(mismatch(ONE, Identity("c", 1, "d", "another process")))
    assert mismatch(ONE, ONE) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_this_machine_needs_no_secret(host: str) -> None:
    assert without_secret(host) is None


@pytest.mark.parametrize("host", ["10.0.0.1", "::", "0.0.0.0", "fe80::1%eth0", "", "a.example"])
def test_any_other_machine_needs_a_secret(host: str) -> None:
    assert "without a cluster secret" in str(without_secret(host))


def test_nodes_without_an_id_yet_are_not_taken_for_one() -> None:
    one, other = (Identity("", -1, f"d{number}", f"i{number}") for number in (1, 2))
    assert mismatch(one, other) is None
    assert "two nodes have the id 0" in str(
        mismatch(Identity("", 0, "d1", "i1"), Identity("c", 0, "d2", "i2"))
    )


def test_who_connects_may_say_where_it_is() -> None:
    handshake = ConnectingHandshake(
        Identity("c", 1, "d", "i"), "raft", b"s", bytes(NONCE_SIZE), ("node-1", 9192)
    )
    hello = decode_message(handshake.opening[FRAME_HEADER.size :])
    assert isinstance(hello, Hello)
    assert (hello.host, hello.port) == ("node-1", 9192)
