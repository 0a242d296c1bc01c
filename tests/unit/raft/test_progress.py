"""What a leader knows of one follower, and when it may send."""

from chronik.raft.progress import Flow, Progress


def replicating(match_index=0):
    progress = Progress(next_index=match_index + 1)
    progress.accepted(match_index)
    progress.found(match_index)
    return progress


def test_a_probe_waits_for_its_answer():
    progress = Progress(next_index=5)
    assert progress.can_send(16)
    progress.sent(7)
    assert not progress.can_send(16)
    assert progress.next_index == 5


def test_an_answer_begins_the_pipeline():
    progress = Progress(next_index=5)
    progress.sent(7)
    assert progress.accepted(7)
    progress.found(7)
    assert progress.flow is Flow.REPLICATING
    assert (progress.match_index, progress.next_index) == (7, 8)


def test_the_pipeline_begins_after_what_the_follower_holds_unsaved():
    progress = Progress(next_index=5)
    assert not progress.accepted(0)
    progress.found(4)
    assert (progress.match_index, progress.next_index) == (0, 5)


def test_the_pipeline_is_bounded():
    progress = replicating()
    for last in (1, 2):
        assert progress.can_send(2)
        progress.sent(last)
    assert not progress.can_send(2)
    progress.accepted(1)
    assert progress.can_send(2)
    assert progress.next_index == 3


def test_old_news_changes_nothing():
    progress = replicating(7)
    progress.sent(9)
    assert not progress.accepted(3)
    progress.found(3)
    assert (progress.match_index, progress.next_index) == (7, 10)
    assert list(progress.inflight) == [9]


def test_a_refusal_makes_what_was_on_its_way_void():
    progress = replicating(7)
    progress.sent(9)
    progress.probe(8)
    assert progress.flow is Flow.PROBING
    assert (progress.next_index, len(progress.inflight)) == (8, 0)
    assert progress.can_send(2)


def test_what_is_saved_is_never_probed_again():
    progress = replicating(7)
    progress.probe(2)
    assert progress.next_index == 8


def test_nothing_is_sent_beside_a_snapshot():
    progress = Progress(next_index=1)
    progress.send_snapshot(9)
    assert not progress.can_send(16)
    progress.accepted(4)
    progress.found(4)
    assert progress.flow is Flow.SNAPSHOT
    progress.accepted(9)
    progress.found(9)
    assert progress.flow is Flow.REPLICATING
    assert progress.next_index == 10
