"""Log lines: one for each event, with its values as key=value.

    2025-01-31T12:00:00.123Z INFO  chronik.server.listener accepted peer=127.0.0.1:51234

What a call gives as `extra` becomes the key=value part, quoted where it holds more than a word.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

_PLAIN: Final = re.compile(r"[^\s\"=]+")
# Every attribute that a record has of its own; the rest came with `extra`.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """Time, level, logger, message, values; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        parts = [
            time.replace("+00:00", "Z"),
            f"{record.levelname:<7}",
            record.name,
            record.getMessage().replace("\n", "\\n"),
        ]
        parts += (
            f"{key}={_value(value)}" for key, value in vars(record).items() if key not in _OWN
        )
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def configure(level: str) -> None:
    """Send all log lines of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
