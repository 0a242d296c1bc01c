"""What counts as a machine that stands still."""

import os
import time

import pytest
import stalls
from stalls import Stalls


def test_a_machine_that_works_has_no_stalls() -> None:
    counted = Stalls()
    time.sleep(0.5)
    assert counted.total_s == 0


def test_a_disk_that_does_not_answer_is_a_stall_while_it_lasts_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalls, "ROUND_S", 0.3)
    monkeypatch.setattr(stalls, "PAUSE_S", 0.01)
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.8))
    counted = Stalls()
    time.sleep(0.6)
    during_s = counted.total_s
    time.sleep(0.6)
    assert 0 < during_s < 0.5
    assert counted.total_s > during_s
