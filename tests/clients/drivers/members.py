"""Members of consumer groups for the Python drivers: a thread for each, polling as an application.

A group moves only while its members poll, and a cell has several of them in one process: so each
member lives in a thread of its own, and the commands look at what it has seen or are run by that
thread between two polls. A driver brings an adapter, made on the member's thread, with `poll`,
`assignment`, `commit`, `committed`, `seek`, `position`, `close` and the count `rebalances`.
"""

from __future__ import annotations

import queue
import threading
import traceback

from driver import TIMEOUT_SECONDS, Refused, to_text

POLL_MS = 50  # How long a command waits at most for the member's thread.


class Member(threading.Thread):
    """One consumer; what it got and which errors it met are kept until the cell asks."""

    def __init__(self, opened, code_of):
        super().__init__(daemon=True)
        self._opened = opened
        self._code_of = code_of
        self._calls = queue.Queue()
        self._held = False
        self._done = False
        self.client = None
        self.records = []
        self.errors = []
        self.assigned = []

    def run(self):
        while not self._done:
            self._serve_calls()
            if self.client is not None and not self._held and not self._done:
                self._poll()

    def _serve_calls(self):
        waiting = self._held or self.client is None
        try:
            call, answer = self._calls.get(block=waiting)
        except queue.Empty:
            return
        try:
            answer.put((call(), None))
        except Exception as error:
            answer.put((None, error))

    def _poll(self):
        try:
            told = self.client.poll(POLL_MS)
            self.records += [[t, p, offset, to_text(value)] for t, p, offset, value in told]
            self.assigned = sorted(map(list, self.client.assignment()))
        except Exception as error:
            traceback.print_exc()
            self.errors.append({"code": self._code_of(error), "text": repr(error)})

    def ask(self, call):
        """Run `call` on the member's thread, and give what it gives."""
        answer = queue.Queue()
        self._calls.put((call, answer))
        try:
            value, error = answer.get(timeout=TIMEOUT_SECONDS)
        except queue.Empty:
            raise Refused(None, f"the member was busy for {TIMEOUT_SECONDS} s") from None
        if error is not None:
            raise error
        return value

    def open(self):
        self.client = self._opened()

    def hold(self, held):
        self._held = held

    def close(self):
        self._done = True
        self.client.close()


def commands(opened, code_of):
    """The member commands; `opened(bootstrap, **settings)` makes an adapter."""
    members = {}

    def member_open(bootstrap, member, **settings):
        started = Member(lambda: opened(bootstrap, **settings), code_of)
        started.start()
        started.ask(started.open)
        members[member] = started

    def member_state(bootstrap, member):
        seen = members[member]
        return {
            "assigned": seen.assigned,
            "records": list(seen.records),
            "errors": list(seen.errors),
            "rebalances": seen.client.rebalances,
        }

    def member_commit(bootstrap, member, offsets=None):
        seen = members[member]
        return seen.ask(lambda: seen.client.commit(offsets))

    def member_committed(bootstrap, member, topic, partition=0):
        seen = members[member]
        return seen.ask(lambda: seen.client.committed(topic, partition))

    def member_seek(bootstrap, member, topic, offset, partition=0):
        seen = members[member]
        return seen.ask(lambda: seen.client.seek(topic, partition, offset))

    def member_position(bootstrap, member, topic, partition=0):
        seen = members[member]
        return seen.ask(lambda: seen.client.position(topic, partition))

    def member_hold(bootstrap, member, held=True):
        seen = members[member]
        return seen.ask(lambda: seen.hold(held))

    def member_close(bootstrap, member):
        closing = members.pop(member)
        closing.ask(closing.close)

    served = [member_open, member_state, member_commit, member_committed, member_seek]
    served += [member_position, member_hold, member_close]
    return members, {f.__name__: f for f in served}
