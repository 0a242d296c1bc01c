"""The loop that every Python driver shares: JSON commands on stdin, JSON answers on stdout.

A driver is one client library behind the commands of tests/clients/conftest.py. A command is a
line `{"op": name, "args": {...}}`; its answer is `{"ok": value}`, or `{"error": code, "text": why}`
where the code is Kafka's error number, or null when the library gives none. Bytes travel as base64
and null stays null, so that an empty value and no value remain two things.

It runs under each client's own interpreter: standard library only, down to Python 3.9.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback

# Longer than any honest answer on a loaded machine; a cell that needs it fails.
TIMEOUT_SECONDS = 20
TIMEOUT_MS = TIMEOUT_SECONDS * 1000


class Refused(Exception):
    """The client reported an error; `code` is Kafka's number for it, or None."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def to_bytes(text):
    """Bytes of a command's field."""
    return None if text is None else base64.b64decode(text)


def to_text(data):
    """A field of an answer, of bytes."""
    return None if data is None else base64.b64encode(bytes(data)).decode()


def record(offset, timestamp, key, value, headers):
    """One consumed record as the answer shows it."""
    return {
        "offset": offset,
        "timestamp": timestamp,
        "key": to_text(key),
        "value": to_text(value),
        "headers": [[name, to_text(data)] for name, data in headers or []],
    }


def headers_of(sent):
    """The headers of a command's record as (name, bytes) pairs."""
    return [(name, to_bytes(data)) for name, data in sent.get("headers") or []]


def enough(records, count):
    """The first `count` records; fewer means that they did not come in time."""
    if len(records) < count:
        raise Refused(None, f"{len(records)} of {count} records within {TIMEOUT_SECONDS} s")
    return records[:count]


def serve(commands, code_of):
    """Answer commands until stdin ends. `code_of(error)` is Kafka's number for an exception."""
    # Libraries print; the answers keep a stdout of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": commands[command["op"]](**command["args"])}
        except Refused as error:
            answer = {"error": error.code, "text": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": code_of(error), "text": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
