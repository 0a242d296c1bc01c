"""What a partition says, in the words of the coordinator whose log it is.

Clients look for another coordinator, and ask again, if they are told that this one is none. What
they make of NOT_LEADER_OR_FOLLOWER is their own affair: librdkafka asks the same node for ever. On
COORDINATOR_NOT_AVAILABLE some give up.
"""

from chronik.protocol.errors import ErrorCode


def coordinator_error(error_code: ErrorCode) -> ErrorCode:
    """NOT_COORDINATOR if another node leads, else COORDINATOR_NOT_AVAILABLE."""
    if error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
