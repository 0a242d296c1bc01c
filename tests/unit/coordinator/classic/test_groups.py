"""Groups of the classic protocol: joining, syncing, heartbeats, leaving, and what goes wrong."""

import pytest
from group_world import FORMAT, Client, World, assign, stable_group, subscription

from chronik.coordinator.classic.group import ClassicState
from chronik.coordinator.groups.records import GroupMetadataKey, encode_key, encode_value
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import LeaveGroupRequest, MemberIdentity


@pytest.fixture
def world() -> World:
    return World()


def two(world, **options):
    clients = Client(world, "a", **options), Client(world, "b", **options)
    stable_group(world, *clients)
    return clients


def code(answer):
    return ErrorCode(answer.error_code)


def test_first_rebalance_waits_for_the_delay(world):
    a = Client(world, "a")
    assert a.enter() is None
    world.advance(2_999)
    assert a.joined() is None
    world.advance(1)
    assert code(a.joined()) is ErrorCode.NONE
    assert a.joined().generation_id == 1
    assert a.joined().leader == a.member_id
    assert [each.member_id for each in a.joined().members] == [a.member_id]


def test_delay_is_extended_while_members_come_up_to_the_rebalance_timeout(world):
    a = Client(world, "a", rebalance=8_000)
    a.enter()
    others = []
    for _ in range(5):
        world.advance(1_500)
        others.append(Client(world, "x", rebalance=8_000))
        others[-1].enter()
        assert a.joined() is None
    world.advance(499)
    assert a.joined() is None
    world.advance(1)
    assert len(a.joined().members) == 6


def test_delay_ends_when_nobody_comes_any_more(world):
    a, b = Client(world, "a"), Client(world, "b")
    a.enter()
    world.advance(1_000)
    b.enter()
    world.advance(2_000)
    assert a.joined() is None
    world.advance(3_000)
    assert len(a.joined().members) == 2


def test_member_id_required_from_version_4_on(world):
    old, young = Client(world, "old", version=3), Client(world, "young", version=4)
    assert old.join() is None
    answer = young.join()
    assert code(answer) is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("young-")
    assert young.join() is None


def test_static_member_needs_no_second_join(world):
    assert Client(world, "a", instance="i").join() is None
    assert "i" in world.group().static_members


def test_pending_member_holds_up_the_rebalance_until_its_session_ends(world):
    a, b = Client(world, "a"), Client(world, "b")
    stable_group(world, a)
    b.join()
    assert a.join() is None
    world.advance(9_999)
    assert a.joined() is None
    world.advance(1)
    assert code(a.joined()) is ErrorCode.NONE
    assert code(b.join()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_version_0_has_one_timeout(world):
    Client(world, "a", version=0, session=7_000).join()
    (member,) = world.group().members.values()
    assert member.rebalance_timeout_ms == 7_000


def test_second_member_rebalances_the_group(world):
    a, b = Client(world, "a"), Client(world, "b")
    stable_group(world, a)
    assert b.enter() is None
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    a.join()
    assert a.joined().generation_id == 2
    assert b.joined().leader == a.member_id
    assert b.joined().members == []
    assign([a, b])
    assert world.group().state is ClassicState.STABLE


def test_member_that_does_not_rejoin_is_removed_at_the_rebalance_timeout(world):
    a, b = two(world, rebalance=20_000, session=30_000)
    c = Client(world, "c", rebalance=20_000, session=30_000)
    c.enter()
    a.join()
    world.advance(19_999)
    assert c.joined() is None
    world.advance(1)
    assert set(world.group().members) == {a.member_id, c.member_id}
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_timeout_is_the_longest_of_the_members(world):
    a = Client(world, "a", rebalance=20_000, session=100_000)
    b = Client(world, "b", rebalance=50_000, session=100_000)
    stable_group(world, a, b)
    a.join()
    world.advance(49_999)
    assert a.joined() is None
    world.advance(1)
    assert code(a.joined()) is ErrorCode.NONE


def test_member_that_never_syncs_is_removed(world):
    a, b = Client(world, "a"), Client(world, "b")
    for client in (a, b):
        client.enter()
    world.advance(6_000)
    a.joined(), b.joined()
    a.sync({a.member_id: b"all"})
    for _ in range(11):
        world.advance(5_000)
        assert a.heartbeat() is ErrorCode.NONE
        b.heartbeat()
    world.advance(5_000)
    assert list(world.group().members) == [a.member_id]
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_session_timeout_removes_a_member_and_rebalances(world):
    a, b = two(world)
    for _ in range(2):
        world.advance(5_000)
        code_ = a.heartbeat()
    assert code_ is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(world.group().members) == [a.member_id]
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_waiting_member_does_not_time_out(world):
    a, b = two(world, session=10_000, rebalance=300_000)
    a.join()
    for _ in range(20):
        world.advance(5_000)
        assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert a.joined() is None
    assert a.member_id in world.group().members


def test_new_member_is_given_up_after_five_minutes(world):
    a = Client(world, "a", rebalance=900_000, session=900_000)
    stable_group(world, a)
    b = Client(world, "b", rebalance=900_000, version=3)
    assert b.join() is None
    world.advance(299_999)
    assert b.joined() is None
    world.advance(1)
    assert code(b.joined()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_keeps_the_session(world):
    world.create("t")
    (a,) = clients = [Client(world, "a")]
    stable_group(world, *clients)
    for _ in range(4):
        world.advance(9_000)
        assert a.commit({("t", 0): 1}) is ErrorCode.NONE
    assert a.heartbeat() is ErrorCode.NONE


def test_last_member_leaves_and_the_group_is_empty(world):
    a = Client(world, "a")
    stable_group(world, a)
    assert a.leave() is ErrorCode.NONE
    assert world.group().state is ClassicState.EMPTY
    assert world.group().generation_id == 2
    assert a.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.replayed().state.groups["g"] == world.group()


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_leave_in_every_shape(world, version):
    a, b = two(world)
    assert b.leave(version) is ErrorCode.NONE
    assert b.leave(version) is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_administrator_removes_static_members_by_their_names(world):
    stable_group(world, Client(world, "a", instance="i"), Client(world, "b", instance="j"))
    identities = [
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="", group_instance_id="nobody"),
        MemberIdentity(member_id="other", group_instance_id="j"),
    ]
    request = LeaveGroupRequest(group_id="g", members=identities)
    caller = Client(world, "admin").caller
    answer = world.ask(
        lambda shard, token, now_ms: shard.leave_group(request, caller, token, now_ms)
    )
    assert [code(each) for each in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert list(world.group().static_members) == ["j"]


def test_static_member_restarts_without_a_rebalance(world):
    a, b = Client(world, "a", instance="i"), Client(world, "b", instance="j")
    stable_group(world, a, b)
    again = Client(world, "b", instance="j")
    answer = again.join()
    assert code(answer) is ErrorCode.NONE
    assert answer.generation_id == 1
    assert again.member_id != b.member_id
    assert again.sync().assignment == b"b"
    assert a.heartbeat() is ErrorCode.NONE
    assert b.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert b.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert list(world.replayed().state.groups["g"].members) == list(world.group().members)


@pytest.mark.parametrize(("version", "skips"), [(9, True), (8, False)])
def test_static_leader_that_restarts_does_not_assign(world, version, skips):
    a, b = Client(world, "a", instance="i"), Client(world, "b", instance="j")
    stable_group(world, a, b)
    again = Client(world, "a", instance="i", version=version)
    answer = again.join()
    assert answer.skip_assignment is skips
    assert (answer.leader == again.member_id) is skips
    assert bool(answer.members) is skips
    assert world.group().leader_id == again.member_id


def test_static_member_with_another_favourite_rebalances(world):
    protocols = {"range": b"", "roundrobin": b""}
    a = Client(world, "a", instance="i", protocols=protocols, type="connect")
    stable_group(world, a)
    again = Client(world, "a", instance="i", type="connect")
    again.protocols = {"roundrobin": b"", "range": b""}
    answer = again.join()
    assert answer.generation_id == 2
    assert answer.protocol_name == "roundrobin"


def test_static_member_replaced_while_it_waits(world):
    a = Client(world, "a", instance="i")
    a.join()
    again = Client(world, "a", instance="i")
    assert again.join() is None
    assert code(a.joined()) is ErrorCode.FENCED_INSTANCE_ID
    world.advance(3_000)
    assert code(again.joined()) is ErrorCode.NONE


def test_static_member_that_is_away_stays_through_a_rebalance_until_its_session_ends(world):
    a, b = Client(world, "a"), Client(world, "b", instance="j", session=30_000)
    stable_group(world, a, b)
    a.rebalance_timeout_ms = b.rebalance_timeout_ms
    a.join()
    world.advance(25_000)
    assert b.member_id in world.group().members
    world.advance(5_000)
    assert code(a.joined()) is ErrorCode.NONE
    assert b.member_id not in world.group().members


def test_leader_rejoins_and_everybody_joins_again(world):
    a, b = two(world)
    assert a.join() is None
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    b.join()
    assert a.joined().generation_id == b.joined().generation_id == 2


def test_follower_that_rejoins_unchanged_is_answered_at_once(world):
    a, b = two(world)
    answer = b.join()
    assert answer.generation_id == 1
    assert b.sync().assignment == b"b"
    assert a.heartbeat() is ErrorCode.NONE


def test_follower_with_another_subscription_rebalances(world):
    a, b = two(world)
    b.protocols = {"range": subscription("u")}
    assert b.join() is None
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_join_while_completing_is_answered_with_the_generation(world):
    a = Client(world, "a")
    a.enter()
    world.advance(3_000)
    first = a.joined()
    assert a.join() == first


def test_another_join_of_the_same_member_supersedes_the_first(world):
    a = Client(world, "a")
    a.enter()
    first = a.joining
    assert a.join() is None
    assert code(world.answers[first]) is ErrorCode.REBALANCE_IN_PROGRESS
    world.advance(3_000)
    assert code(a.joined()) is ErrorCode.NONE


def test_generations_and_members_are_fenced(world):
    a, b = two(world)
    assert a.heartbeat(generation_id=0) is ErrorCode.ILLEGAL_GENERATION
    a.generation_id = 7
    assert code(a.sync()) is ErrorCode.ILLEGAL_GENERATION
    b.member_id = "stranger"
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(b.sync()) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(b.join()) is ErrorCode.UNKNOWN_MEMBER_ID
    assert Client(world, "c", group="other").heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_during_the_join_phase_sends_back_to_it(world):
    a, b = two(world)
    a.join()
    assert code(b.sync()) is ErrorCode.REBALANCE_IN_PROGRESS


def test_waiting_sync_is_sent_back_by_a_new_member(world):
    a, b = Client(world, "a"), Client(world, "b")
    for client in (a, b):
        client.enter()
    world.advance(6_000)
    a.joined(), b.joined()
    follower = b if a.joined().members else a
    assert follower.sync() is None
    Client(world, "c").enter()
    assert code(follower.synced()) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "fields", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}, {"protocol_name": None}]
)
def test_sync_with_another_protocol(world, fields):
    (a, _) = two(world)
    assert code(a.sync(**fields)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_protocols_are_chosen_by_vote_among_those_that_all_know(world):
    a = Client(world, "a", protocols={"range": b"", "sticky": b"", "mine": b""})
    b = Client(world, "b", protocols={"sticky": b"", "range": b""})
    c = Client(world, "c", protocols={"sticky": b"", "range": b""})
    for client in (a, b, c):
        client.enter()
    world.advance(6_000)
    assert {client.joined().protocol_name for client in (a, b, c)} == {"sticky"}


def test_protocols_without_one_in_common_are_refused(world):
    stable_group(world, Client(world, "a"))
    stranger = Client(world, "b", protocols={"sticky": b""})
    assert code(stranger.join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    connect = Client(world, "c", type="connect")
    assert code(connect.join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("options", [{"type": ""}, {"protocols": {}}])
def test_nothing_to_vote_for(world, options):
    assert code(Client(world, "a", **options).join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "g" not in world.state.groups


@pytest.mark.parametrize("session", [5_999, 1_800_001])
def test_session_timeout_has_bounds(world, session):
    answer = Client(world, "a", session=session).join()
    assert code(answer) is ErrorCode.INVALID_SESSION_TIMEOUT


def test_empty_group_id(world):
    a = Client(world, "a", group="")
    assert code(a.join()) is ErrorCode.INVALID_GROUP_ID
    assert code(a.sync()) is ErrorCode.INVALID_GROUP_ID
    assert a.heartbeat() is ErrorCode.INVALID_GROUP_ID
    assert a.leave(version=2) is ErrorCode.INVALID_GROUP_ID


def test_group_is_full():
    world = World(group_max_size=2)
    a, b = two(world)
    assert code(Client(world, "c").join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    a.join()
    b.join()
    assign([a, b])


def test_group_that_is_too_large_after_a_restart_shrinks(world):
    clients = [Client(world, name) for name in "abc"]
    stable_group(world, *clients)
    smaller = World(group_max_size=2)
    smaller.log = world.log
    smaller.crash()
    for client in clients:
        client.world = smaller
        client.join()
    codes = [client.joined().error_code for client in clients]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_generation_survives_a_crash(world):
    a, b = two(world)
    world.crash()
    assert world.group().state is ClassicState.STABLE
    assert a.heartbeat() is b.heartbeat() is ErrorCode.NONE
    assert b.sync().assignment == b"b"
    world.advance(9_999)
    assert len(world.group().members) == 2
    world.advance(1)
    assert world.group().members == {}


def test_generation_without_assignment_does_not_survive_a_crash(world):
    a = Client(world, "a")
    a.enter()
    world.advance(3_000)
    a.joined()
    world.crash()
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(a.sync({a.member_id: b"x"})) is ErrorCode.UNKNOWN_MEMBER_ID


def test_opaque_metadata_is_nobodys_business(world):
    a = Client(world, "a", type="connect", protocols={"default": b"\xff\x00"})
    stable_group(world, a)
    assert world.group().subscribed_topics is None
    assert not world.group().is_subscribed_to("t")
    b = Client(world, "b", group="h", protocols={"range": b"\xff"})
    stable_group(world, b)
    assert world.group("h").is_subscribed_to("anything")


def test_pending_member_leaves_an_empty_group(world):
    a = Client(world, "a")
    a.join()
    assert a.leave() is ErrorCode.NONE
    assert world.group().pending_members == set()
    assert world.group().state is ClassicState.EMPTY


def test_another_member_leads_if_the_leader_does_not_rejoin(world):
    a = Client(world, "a", instance="i", session=100_000)
    b = Client(world, "b", session=100_000)
    stable_group(world, a, b)
    c = Client(world, "c")
    c.enter()
    b.join()
    world.advance(60_000)
    assert b.joined().leader == b.member_id
    assert {each.member_id for each in b.joined().members} == set(world.group().members)


def test_rebalance_that_nobody_joins_goes_on_until_sessions_end(world):
    a = Client(world, "a", instance="i", session=200_000)
    b = Client(world, "b", session=200_000)
    stable_group(world, a, b)
    b.leave()
    world.advance(100_000)
    assert world.group().state is ClassicState.PREPARING_REBALANCE
    assert a.join().generation_id == 2


def test_everybody_leaves_during_the_first_delay(world):
    a, b = Client(world, "a"), Client(world, "b")
    a.enter()
    b.enter()
    a.leave()
    b.leave()
    assert code(a.joined()) is code(b.joined()) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group().state is ClassicState.PREPARING_REBALANCE
    c = Client(world, "c")
    assert c.enter() is None
    world.advance(6_000)
    assert [each.member_id for each in c.joined().members] == [c.member_id]


def test_late_tick_after_the_join_phase_has_ended(world):
    """A session and the join phase end in one tick: the first one already ends the second."""
    a, b = (Client(world, name, session=6_000, rebalance=7_000) for name in "ab")
    stable_group(world, a, b)
    world.crash()
    a.join()
    world.now_ms += 20_000
    world.take(world.shard.tick(world.now_ms))
    assert code(a.joined()) is ErrorCode.NONE
    assert a.joined().generation_id == 2


def test_late_tick_after_everybody_has_synced(world):
    a, b = two(world, rebalance=7_000, session=6_000)
    world.crash()
    assert world.state.timers.get(("classic", "sync", "g")) is None
    timer = ("classic", "sync", "g")
    world.state.timers.set(timer, world.now_ms)
    world.advance(0)
    assert a.heartbeat() is b.heartbeat() is ErrorCode.NONE


def test_full_group_turns_a_pending_member_away():
    world = World(group_max_size=1)
    a, b = Client(world, "a"), Client(world, "b")
    a.join()
    b.join()
    assert a.join() is None
    assert code(b.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group().pending_members == set()
    world.advance(3_000)
    assert code(a.joined()) is ErrorCode.NONE


def test_static_member_is_back_in_a_full_group():
    world = World(group_max_size=1)
    stable_group(world, Client(world, "a", instance="i"))
    assert code(Client(world, "a", instance="i").join()) is ErrorCode.NONE
    assert code(Client(world, "b", instance="j").join()) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_records_of_early_brokers_have_no_rebalance_timeout(world):
    stable_group(world, Client(world, "a"))
    key = GroupMetadataKey(group="g")
    record = next(FORMAT.decode(k, v) for k, v, _ in reversed(world.log))
    assert record.key == key
    data = encode_value(record.value, version=0)
    shard = world.fresh()
    shard.replay(FORMAT.decode(encode_key(key), data), None)
    (member,) = shard.state.groups["g"].members.values()
    assert member.rebalance_timeout_ms == member.session_timeout_ms == 10_000
    assert shard.state.groups["g"].state_timestamp_ms == -1
