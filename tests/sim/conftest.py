"""The processes that campaigns run in."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest


@pytest.fixture
def pool() -> Iterator[ProcessPoolExecutor]:
    """Processes whose hashes do not depend on chance; a seed is the same in each of them.

    New ones for each test, so that none grows for ever. (The executor's own way for that,
    max_tasks_per_child, can wait for ever in Python 3.11: cpython issue 115634.)
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONHASHSEED", "0")
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as workers:
            yield workers
