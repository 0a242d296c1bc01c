"""Log lines."""

import logging
import sys

from chronik.cli.logs import LineFormatter


def line(message: str, *args: object, **extra: object) -> str:
    record = logging.LogRecord("chronik.x", logging.INFO, "f.py", 1, message, args, None)
    record.created = 1.5
    vars(record).update(extra)
    return LineFormatter().format(record)


def test_one_line_with_values_quoted_where_needed() -> None:
    assert line("ready %s", "now", port=9092, reason='a "b" c', empty="", pair="a=b") == (
        "1970-01-01T00:00:01.500Z INFO    chronik.x ready now"
        ' port=9092 reason="a \\"b\\" c" empty="" pair="a=b"'
    )


def test_messages_and_values_cannot_forge_a_line() -> None:
    text = line("a\nb", client="x\ny")
    assert "\n" not in text
    assert text.endswith('a\\nb client="x\\ny"')


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    first, *rest = LineFormatter().format(record).splitlines()
    assert first.endswith("ERROR   x failed")
    assert rest[-1] == "ValueError: broken"
