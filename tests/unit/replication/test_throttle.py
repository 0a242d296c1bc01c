"""How fast replicas that are not in sync are filled."""

from chronik.config.effective import BrokerConfig
from chronik.replication.throttle import DELAY_S_MAX, LEADER_RATE, Throttle


class StillClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


def throttle_of(rate: int | None) -> tuple[Throttle, StillClock]:
    clock = StillClock()
    given = {} if rate is None else {LEADER_RATE: str(rate)}
    config = BrokerConfig(static={}, cluster={}, broker=given)
    return Throttle(LEADER_RATE, 1, lambda: config, clock), clock


def test_it_concerns_the_replicas_that_are_named():
    throttle, _ = throttle_of(1000)
    assert throttle.concerns({"*"}, 7)
    assert throttle.concerns({"7:2", "7:1"}, 7)
    assert not throttle.concerns({"7:2", "1:1", "17:1"}, 7)
    assert not throttle.concerns(frozenset(), 7)


def test_bytes_take_their_time():
    throttle, clock = throttle_of(1000)
    assert throttle.delay_s() == 0
    throttle.passed(1500)  # A second of it was free: nothing had passed before.
    assert throttle.delay_s() == 0.5
    clock.now += 0.5
    assert throttle.delay_s() == 0
    throttle.passed(500)
    assert throttle.delay_s() == 0.5


def test_over_a_long_time_the_rate_holds():
    throttle, clock = throttle_of(1000)
    passed = 0
    end = clock.now + 60
    while clock.now < end:
        delay_s = throttle.delay_s()
        if delay_s:
            clock.now += delay_s
        else:
            throttle.passed(300)
            passed += 300
    assert 60_000 <= passed <= 61_500


def test_a_long_wait_is_looked_at_again():
    throttle, _ = throttle_of(1)
    throttle.passed(1_000_000)
    assert throttle.delay_s() == DELAY_S_MAX


def test_portions_are_about_a_second_and_never_tiny():
    assert throttle_of(100_000)[0].portion_bytes(1_000_000) == 100_000
    assert throttle_of(10)[0].portion_bytes(1_000_000) == 4096
    assert throttle_of(None)[0].portion_bytes(1_000_000) == 1_000_000


def test_without_a_rate_nothing_waits():
    throttle, _ = throttle_of(None)
    throttle.passed(10**12)
    assert throttle.delay_s() == 0
