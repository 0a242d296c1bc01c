"""What Spark complains of is told in one line, however it is wrapped."""

from typing import Any

import pytest

from chronik.spark.spark_failures import one_line, why

TRACE = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in invoke
    raise ValueError("inner")
ValueError: inner

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 2, in invoke
chronik.spark.errors.UnknownTopic: there is no topic x: create it
Note: no more of this
"""
TASK = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 0.0 (TID 0) (192.0.2.2 executor driver): "
)


class JavaError:
    """As py4j shows one."""

    def __init__(self, *messages: str | None) -> None:
        self._messages = messages

    def getMessage(self) -> str | None:
        return self._messages[0]

    def getCause(self) -> "JavaError | None":
        return JavaError(*self._messages[1:]) if len(self._messages) > 1 else None


class OfJava(Exception):
    def __init__(self, cause: Any) -> None:
        super().__init__("An error occurred while calling o55.collectToPython.\n: trace\n\tat A")
        self.java_exception = cause


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[BY_ZERO] Division by zero.\n== SQL ==\n1/0\n", "[BY_ZERO] Division by zero."),
        (TRACE, "there is no topic x: create it"),
        ("Traceback (most recent call last):\n  File\nKeyError\n", "KeyError"),
        ("\n\n", "Spark failed without a word"),
        (TASK + "java.io.IOException: Cannot run program\n\tat A", "Cannot run program"),
        (TASK + "ExecutorLostFailure (exited)", "ExecutorLostFailure (exited)"),
    ],
)
def test_a_text(text: str, line: str) -> None:
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        (("[GONE] no file\nmore", "File x does not exist"), "[GONE] no file"),
        (("Exception thrown in awaitResult: ", None, "[X] y\nz"), "[X] y"),
        ((TASK + "A: no\n\tat", TRACE), "there is no topic x: create it"),
        ((None,), "Spark failed without a word"),
    ],
)
def test_a_chain_of_causes(messages: tuple[str | None, ...], line: str) -> None:
    assert why(OfJava(JavaError(*messages))) == line
