"""Who is alive is who was heard of within a session, or a grace after its connection closed."""

import pytest

from chronik.metadata.commands import UpdateBrokerStatus
from chronik.metadata.image import Image
from chronik.metadata.liveness import GRACE_MS, SESSION_MS, Liveness, fence, unfence
from chronik.metadata.records import BrokerRecord, BrokerRemovedRecord, BrokerStatus
from chronik.protocol.errors import ErrorCode, KafkaError

ONLINE, OFFLINE, MAINTENANCE = BrokerStatus


def broker(
    node_id: int, epoch: int = 5, status: BrokerStatus = ONLINE, in_maintenance: bool = False
) -> BrokerRecord:
    return BrokerRecord(
        node_id=node_id,
        epoch=epoch,
        incarnation_id=f"i{epoch}",
        directory_id="d",
        host="h",
        port=1,
        status=status,
        in_maintenance=in_maintenance,
    )


@pytest.fixture
def image() -> Image:
    return Image().apply([broker(1), broker(2)])


@pytest.fixture
def liveness(image: Image) -> Liveness:
    made = Liveness()
    made.follow(image, 1000)
    return made


def refused(liveness: Liveness, node_id: int, epoch: int) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        liveness.heartbeat(node_id, epoch, 1000)
    return error.value.code


def test_a_new_leader_gives_everybody_a_full_session(liveness: Liveness) -> None:
    end = 1000 + SESSION_MS
    assert liveness.next_deadline_ms == end
    assert liveness.due(end - 1) == []
    assert liveness.due(end) == [1, 2]


def test_a_heartbeat_begins_the_session_again(liveness: Liveness) -> None:
    liveness.heartbeat(1, 5, 2000)
    assert liveness.due(1000 + SESSION_MS) == [2]
    assert liveness.due(2000 + SESSION_MS) == [1]


def test_who_is_due_is_named_again_only_a_session_later(liveness: Liveness) -> None:
    end = 1000 + SESSION_MS
    assert liveness.due(end) == [1, 2]
    assert liveness.due(end + 1) == []
    assert liveness.due(end + SESSION_MS) == [1, 2]


def test_a_heartbeat_of_an_old_registration_is_refused(liveness: Liveness) -> None:
    assert refused(liveness, 1, 4) is ErrorCode.STALE_BROKER_EPOCH
    assert refused(liveness, 9, 4) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_registration_that_is_not_applied_here_yet_may_beat(liveness: Liveness) -> None:
    liveness.heartbeat(1, 6, 2000)
    assert liveness.due(1000 + SESSION_MS) == [2]


def test_a_lost_connection_ends_the_session_after_a_grace(liveness: Liveness) -> None:
    liveness.connection_lost(1, "i5", 2000)
    assert liveness.next_deadline_ms == 2000 + GRACE_MS
    assert liveness.due(2000 + GRACE_MS) == [1]


def test_a_new_connection_or_a_heartbeat_saves_the_session(liveness: Liveness) -> None:
    liveness.connection_lost(1, "i5", 2000)
    liveness.connection_made(1, "i5", 2100)
    liveness.connection_lost(2, "i5", 2000)
    liveness.heartbeat(2, 5, 2100)
    assert liveness.due(2000 + GRACE_MS) == []
    assert liveness.next_deadline_ms == 2100 + SESSION_MS


def test_a_lost_connection_never_lengthens_a_session(liveness: Liveness) -> None:
    liveness.connection_lost(1, "i5", 999 + SESSION_MS)
    assert liveness.due(1000 + SESSION_MS) == [1, 2]


def test_an_earlier_processs_connections_do_not_count(liveness: Liveness) -> None:
    liveness.connection_lost(1, "i4", 2000)
    liveness.connection_lost(9, "i4", 2000)
    assert liveness.due(2000 + GRACE_MS) == []
    liveness.connection_made(1, "i4", 2000)
    assert liveness.due(1000 + SESSION_MS) == [1, 2]


def test_a_new_registration_has_a_full_session(liveness: Liveness, image: Image) -> None:
    liveness.connection_lost(1, "i5", 2000)
    liveness.follow(image.apply([broker(1, epoch=6)]), 2100)
    assert liveness.due(2000 + GRACE_MS) == []
    assert refused(liveness, 1, 5) is ErrorCode.STALE_BROKER_EPOCH
    assert liveness.due(2100 + SESSION_MS) == [1, 2]


def test_nothing_is_expected_of_who_is_offline_or_removed(liveness: Liveness, image: Image) -> None:
    gone = image.apply([broker(1, status=OFFLINE), BrokerRemovedRecord(node_id=2)])
    liveness.follow(gone, 2000)
    assert liveness.next_deadline_ms is None
    assert liveness.due(10**9) == []
    liveness.connection_lost(1, "i5", 2000)
    assert liveness.next_deadline_ms is None


def test_who_is_online_again_without_a_word_has_one_session(
    liveness: Liveness, image: Image
) -> None:
    liveness.follow(image.apply([broker(1, status=OFFLINE)]), 2000)
    liveness.follow(image, 9000)
    assert liveness.due(9000) == [2]
    assert liveness.due(9000 + SESSION_MS) == [1, 2]


def test_a_fenced_broker_that_beats_has_a_session_when_it_is_back(
    liveness: Liveness, image: Image
) -> None:
    liveness.follow(image.apply([broker(1, status=OFFLINE)]), 2000)
    liveness.heartbeat(1, 5, 3000)
    liveness.follow(image, 3010)
    liveness.heartbeat(2, 5, 3010)
    assert liveness.next_deadline_ms == 3000 + SESSION_MS


def test_silence_is_told(liveness: Liveness) -> None:
    liveness.heartbeat(1, 5, 2000)
    assert liveness.silence_ms(1, 2050) == 50
    assert liveness.silence_ms(2, 2050) == 1050
    assert liveness.silence_ms(9, 2050) is None


def test_fencing_is_for_the_registration_that_is_online(image: Image) -> None:
    assert fence(image, 1) == UpdateBrokerStatus(node_id=1, broker_epoch=5, status=OFFLINE)
    assert fence(image, 9) is None
    one = image.apply([broker(1, status=OFFLINE)])
    assert fence(one, 1) is None
    assert fence(one, 2) is None  # The last that clients are told of.


@pytest.mark.parametrize(("in_maintenance", "status"), [(False, ONLINE), (True, MAINTENANCE)])
def test_unfencing_brings_back_what_was(
    image: Image, in_maintenance: bool, status: BrokerStatus
) -> None:
    assert unfence(image, 1) is None
    assert unfence(image, 9) is None
    gone = image.apply([broker(1, status=OFFLINE, in_maintenance=in_maintenance)])
    assert unfence(gone, 1) == UpdateBrokerStatus(node_id=1, broker_epoch=5, status=status)
