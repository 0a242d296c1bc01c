"""Deadlines by key, against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from chronik.coordinator.timers import Timers

KEY = st.sampled_from("abcd")
STEP = st.one_of(
    st.tuples(st.just("set"), KEY, st.integers(0, 50)),
    st.tuples(st.just("cancel"), KEY),
    st.tuples(st.just("due"), st.integers(0, 20)),
)


def test_due_in_order():
    timers = Timers()
    timers.set("late", 9)
    timers.set("early", 3)
    timers.set("also early", 3)
    assert timers.next_deadline_ms == 3
    assert timers.due(2) == []
    assert timers.due(9) == ["early", "also early", "late"]
    assert timers.next_deadline_ms is None
    assert len(timers) == 0


def test_moved_deadline_is_due_once():
    timers = Timers()
    for deadline_ms in (5, 9, 3, 7):
        timers.set("key", deadline_ms)
    assert timers.due(6) == []
    assert timers.due(10) == ["key"]
    assert timers.due(100) == []


@given(st.lists(STEP))
def test_any_sequence(steps):
    timers, model, now_ms = Timers(), {}, 0
    for name, *arguments in steps:
        if name == "set":
            key, delay_ms = arguments
            timers.set(key, now_ms + delay_ms)
            model[key] = now_ms + delay_ms
        elif name == "cancel":
            assert timers.cancel(arguments[0]) == (model.pop(arguments[0], None) is not None)
        else:
            now_ms += arguments[0]
            expected = {key for key, at_ms in model.items() if at_ms <= now_ms}
            found = timers.due(now_ms)
            assert len(found) == len(expected)
            assert set(found) == expected
            for key in expected:
                del model[key]
        assert timers.next_deadline_ms == min(model.values(), default=None)
        assert {key: timers.get(key) for key in model} == model
        assert len(timers) == len(model)
