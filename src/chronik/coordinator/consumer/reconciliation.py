"""How a member comes from what it owns to what it shall own: one step at a time.

First the member gives back what is not its own any more. It says so by a heartbeat whose owned
partitions lack them; until then it stays in its epoch. Then it moves to the target's epoch and gets
what of its target is free; the rest follows as the others give theirs back. Members that have
nothing to do go on reading meanwhile: nobody stops the group.

Invariant: a partition is handed out only if nobody owns it, or waits to give it back.
"""

from collections.abc import Callable, Set
from dataclasses import replace

from chronik.coordinator.consumer.group import Assignment, ConsumerMember, MemberState, Owned

# Topic id to partitions, as a heartbeat reports them; None if it reports nothing.
Reported = dict[bytes, set[int]] | None


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    target: Assignment,
    subscribed_ids: Set[bytes],
    is_owned: Callable[[bytes, int], bool],
    reported: Reported,
    subscription_changed: bool,
) -> ConsumerMember:
    """The member after the step that it can take now; the same one if it can take none."""
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch == target_epoch:
                return _drop_unsubscribed(member, subscribed_ids, reported, subscription_changed)
        case MemberState.UNREVOKED_PARTITIONS:
            if _holds(reported, member.pending_revocation):
                return _drop_unsubscribed(member, subscribed_ids, reported, subscription_changed)
        case MemberState.UNRELEASED_PARTITIONS | MemberState.UNKNOWN:
            pass  # A member in an unknown state comes here only once it owns nothing.
    wanted = {topic: each for topic, each in target.items() if topic in subscribed_ids}
    return _next(member, target_epoch, wanted, is_owned, reported)


def _holds(reported: Reported, owned: Owned) -> bool:
    """Whether the member may still own one of these: it says so, or it says nothing."""
    if reported is None:
        return True
    return any(not owned[topic].keys().isdisjoint(reported.get(topic, ())) for topic in owned)


def _next(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    is_owned: Callable[[bytes, int], bool],
    reported: Reported,
) -> ConsumerMember:
    kept, revoked = _split(member.assigned, target)
    if revoked and _holds(reported, revoked):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
            pending_revocation=revoked,
        )
    given, waits = _give(member, kept, target, target_epoch, is_owned)
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    if (state, target_epoch, given) == (member.state, member.member_epoch, member.assigned):
        return member
    return replace(
        member,
        state=state,
        member_epoch=target_epoch,
        previous_member_epoch=member.member_epoch,
        assigned=given,
        pending_revocation={},
    )


def _split(assigned: Owned, target: Assignment) -> tuple[Owned, Owned]:
    """What of an assignment stays with the target, and what does not."""
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic_id, partitions in assigned.items():
        wanted = target.get(topic_id, frozenset())
        for partition, epoch in partitions.items():
            where = kept if partition in wanted else revoked
            where.setdefault(topic_id, {})[partition] = epoch
    return kept, revoked


def _give(
    member: ConsumerMember,
    kept: Owned,
    target: Assignment,
    target_epoch: int,
    is_owned: Callable[[bytes, int], bool],
) -> tuple[Owned, bool]:
    """What the member owns with all of its target that is free; whether something is not."""
    given = {topic_id: dict(partitions) for topic_id, partitions in kept.items()}
    waits = False
    for topic_id, wanted in target.items():
        own = member.pending_revocation.get(topic_id, {})
        for partition in sorted(wanted - given.get(topic_id, {}).keys()):
            # What it has just given back itself is free, although it is still noted as its own.
            if partition not in own and is_owned(topic_id, partition):
                waits = True
            else:
                given.setdefault(topic_id, {})[partition] = target_epoch
    return given, waits


def _drop_unsubscribed(
    member: ConsumerMember,
    subscribed_ids: Set[bytes],
    reported: Reported,
    subscription_changed: bool,
) -> ConsumerMember:
    """Take back at once what the member has unsubscribed from, before there is a target for it."""
    dropped = member.assigned.keys() - subscribed_ids
    if not subscription_changed or not dropped:
        return member
    kept = {topic: each for topic, each in member.assigned.items() if topic not in dropped}
    pending = {topic: dict(each) for topic, each in member.pending_revocation.items()}
    for topic_id in dropped:
        pending.setdefault(topic_id, {}).update(member.assigned[topic_id])
    if not _holds(reported, pending):
        return replace(member, previous_member_epoch=member.member_epoch, assigned=kept)
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_member_epoch=member.member_epoch,
        assigned=kept,
        pending_revocation=pending,
    )
