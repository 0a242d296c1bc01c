"""How DescribeGroups shows a classic group."""

from chronik.coordinator.classic.group import ClassicGroup, ClassicState
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.groups import DescribedGroup, DescribedGroupMember

NOT_FOUND_VERSION = 6  # of DescribeGroups: before, a group that nobody knows is dead


def describe(group: ClassicGroup, operations: int) -> DescribedGroup:
    """The group and its members; their metadata only while there is a protocol."""
    protocol = group.protocol_name if group.state is ClassicState.STABLE else None
    members = [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(protocol) if protocol is not None else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=members,
        authorized_operations=operations,
    )


def describe_unknown(group_id: str, reason: str, version: int) -> DescribedGroup:
    """In place of what is no classic group."""
    knows_not_found = version >= NOT_FOUND_VERSION
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if knows_not_found else ErrorCode.NONE,
        error_message=f"Group {group_id} {reason}." if knows_not_found else None,
        group_id=group_id,
        group_state=ClassicState.DEAD.value,
        protocol_type="",
        protocol_data="",
        members=(),
    )
