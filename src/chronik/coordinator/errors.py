"""What a partition says, in the words of the coordinator whose log it is.

Clients look for another coordinator only if they are told that this one is none: what they make of
NOT_LEADER_OR_FOLLOWER is their own affair, and librdkafka asks the same node for ever.
"""

from typing import Final

from chronik.protocol.errors import ErrorCode

_IS_ELSEWHERE: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)


def coordinator_error(error_code: ErrorCode) -> ErrorCode:
    """NOT_COORDINATOR if another node leads or should, else COORDINATOR_NOT_AVAILABLE."""
    if error_code in _IS_ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
