"""The log in memory: dense, never rewriting what is committed, honest about what is on disk."""

import pytest

from chronik.raft.log import RaftLog
from chronik.raft.types import Entry, EntryKind, Snapshot


def entry(index, term, data=b"x"):
    return Entry(term=term, index=index, kind=EntryKind.COMMAND, data=data)


def log_of(*terms, snapshot=None):
    snapshot = snapshot or Snapshot()
    entries = [entry(snapshot.index + n, term) for n, term in enumerate(terms, 1)]
    return RaftLog(snapshot=snapshot, entries=entries)


def terms(log):
    return [each.term for each in log.entries]


def test_terms_are_known_from_the_snapshot_on():
    log = log_of(2, 3, snapshot=Snapshot(5, 2))
    assert [log.term_at(index) for index in (4, 5, 6, 7, 8)] == [None, 2, 2, 3, None]
    assert (log.first_index, log.last_index, log.last_term) == (6, 7, 3)
    assert log_of().term_at(0) == 0


def test_what_was_loaded_is_saved():
    assert log_of(1, 1).saved_index == 2


def test_an_append_is_the_next_entry():
    with pytest.raises(AssertionError):
        log_of(1).append(entry(3, 1))
    with pytest.raises(AssertionError):
        log_of(2).append(entry(2, 1))


def test_slice_has_one_entry_in_any_case():
    log = log_of()
    for index in (1, 2, 3):
        log.append(entry(index, 1, b"12345"))
    assert [each.index for each in log.slice(1, 0)] == [1]
    assert [each.index for each in log.slice(1, 10)] == [1, 2]
    assert [each.index for each in log.slice(2, 100)] == [2, 3]
    assert log.slice(4, 100) == ()


def test_between_has_both_ends_and_may_be_empty():
    log = log_of(1, 1, 1, snapshot=Snapshot(5, 1))
    assert [each.index for each in log.between(6, 7)] == [6, 7]
    assert log.between(6, 5) == ()
    assert log.between(6, 2) == ()
    assert log.between(9, 8) == ()


def test_merge_replaces_from_the_first_conflict():
    log = log_of(1, 1, 1)
    assert log.merge([entry(2, 1), entry(3, 2), entry(4, 2)], 1) == 3
    assert terms(log) == [1, 1, 2, 2]


def test_merge_of_an_old_message_drops_nothing():
    log = log_of(1, 1, 2)
    assert log.merge([entry(1, 1), entry(2, 1)], 0) is None
    assert terms(log) == [1, 1, 2]


def test_merge_skips_what_the_snapshot_holds():
    log = log_of(snapshot=Snapshot(2, 1))
    assert log.merge([entry(1, 1), entry(2, 1), entry(3, 1)], 2) is None
    assert log.last_index == 3


def test_a_committed_entry_is_never_replaced():
    with pytest.raises(AssertionError, match="committed"):
        log_of(1, 1).merge([entry(2, 2)], 2)


def test_an_entry_counts_once_it_is_saved():
    log = log_of()
    log.append(entry(1, 1))
    log.hand_over()
    log.append(entry(2, 1))
    assert log.saved_index == 0
    log.saved()
    assert log.saved_index == 1


def test_an_entry_that_was_replaced_while_it_was_saved_does_not_count():
    log = log_of(1)
    log.append(entry(2, 1))
    log.append(entry(3, 1))
    log.hand_over()
    log.merge([entry(3, 2)], 1)
    log.saved()
    assert log.saved_index == 2


def test_not_even_if_the_same_entry_comes_back():
    log = log_of(1)
    log.append(entry(2, 1))
    log.hand_over()
    log.merge([entry(2, 2)], 1)
    log.hand_over()
    log.merge([entry(2, 1)], 1)
    log.hand_over()
    log.saved()  # The disk has entry 2 of term 1, and is about to replace it.
    assert log.saved_index == 1


def test_a_replaced_entry_is_handed_over_again():
    log = log_of(1, 1, 1)
    log.merge([entry(2, 2)], 1)
    assert log.handed_index == 1
    assert log.saved_index == 1


@pytest.mark.parametrize(
    ("last", "is_covered"),
    [((3, 2), True), ((4, 2), True), ((2, 2), False), ((9, 1), False), ((1, 3), True)],
)
def test_the_later_log_has_the_later_last_term_or_the_same_and_is_as_long(last, is_covered):
    index, term = last
    assert log_of(1, 2, 2).is_covered_by(index, term) is is_covered


def test_compaction_keeps_what_follows():
    log = log_of(1, 1, 2)
    log.compact(Snapshot(2, 1))
    assert terms(log) == [2]
    assert (log.first_index, log.last_index) == (3, 3)
    log.compact(Snapshot(1, 1))
    assert log.snapshot.index == 2


def test_compaction_counts_as_saved():
    log = log_of()
    log.append(entry(1, 1))
    log.compact(Snapshot(1, 1))
    assert (log.saved_index, log.handed_index) == (1, 1)


def test_a_leaders_snapshot_counts_once_it_is_saved():
    log = log_of(1, 1)
    log.append(entry(3, 1))
    log.hand_over()
    log.replace(Snapshot(9, 4))
    log.hand_over()
    log.saved()
    assert log.saved_index == 0
    log.saved()
    assert log.saved_index == 9


def test_the_last_entry_of_a_term_or_an_earlier_one():
    log = log_of(1, 1, 4, 4, 6)
    assert log.last_at_most(9, 9) == 5
    assert log.last_at_most(5, 5) == 4
    assert log.last_at_most(3, 4) == 3
    assert log.last_at_most(4, 3) == 2
    assert log.last_at_most(4, 0) == 0


def test_what_is_forgotten_has_no_common_entry():
    assert log_of(6, snapshot=Snapshot(5, 5)).last_at_most(6, 4) is None
    assert log_of(6, snapshot=Snapshot(5, 5)).last_at_most(4, 5) is None
