"""Groups and transactions of kcat behind the commands of the matrix: a process for each.

A member is `kcat -G`, which commits by itself and tells its assignments on stderr; a transaction is
one run of `kcat -P` with a `transactional.id`: it commits at the end of its input and aborts at
SIGINT.
"""

from __future__ import annotations

import atexit
import pathlib
import re
import signal
import subprocess
import threading
import time

from driver import TIMEOUT_SECONDS, Refused, to_bytes, to_text

RECORD_END = "~record~"
# Values of the group cells are text without line ends.
FORMAT = r"%t %p %o %s\n"
ASSIGNED = re.compile(r"% Group .* rebalanced .*: assigned: ?(.*)$")
REVOKED = re.compile(r"% Group .* rebalanced .*: revoked")
CHANGED = re.compile(r"% Group .* incremental (assignment|revoke) of .*protocol\): (.*)$")
FAILED = re.compile(r"ERROR|rror:|FATAL|fenced")


def partitions(words):
    """The partitions that a line names: `topic [0], topic [1]`."""
    found = re.findall(r"(\S+) \[(\d+)\]", words)
    return sorted([topic, int(partition)] for topic, partition in found)


def catches(pid, number):
    """Whether a process handles a signal."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    mask = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return mask is None or bool(int(mask[1], 16) >> (number - 1) & 1)


class Member:
    """A `kcat -G` and what it has said."""

    def __init__(self, command, failure):
        self._failure = failure
        self.records = []
        self.errors = []
        self.assigned = []
        self.rebalances = 0
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for reader in (self._read_records, self._read_words):
            threading.Thread(target=reader, daemon=True).start()

    def _read_records(self):
        for line in self._process.stdout:
            topic, partition, offset, value = line.rstrip("\n").split(" ", 3)
            self.records.append([topic, int(partition), int(offset), to_text(value.encode())])

    def _read_words(self):
        for line in self._process.stderr:
            told, changed = ASSIGNED.search(line), CHANGED.search(line)
            if told:
                self.assigned = partitions(told[1])
                self.rebalances += 1
            elif changed:
                named = partitions(changed[2])
                kept = [at for at in self.assigned if at not in named]
                self.assigned = sorted(kept + (named if changed[1] == "assignment" else []))
                self.rebalances += 1
            elif REVOKED.search(line):
                self.assigned = []
            elif FAILED.search(line):
                refused = self._failure(line.encode())
                self.errors.append({"code": refused.code, "text": str(refused)})

    def close(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait(TIMEOUT_SECONDS)

    def kill(self):
        self._process.kill()


class Transaction:
    """A `kcat -P` whose input is still open."""

    def __init__(self, command, failure):
        self._failure = failure
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def write(self, records):
        for sent in records:
            self._process.stdin.write(to_bytes(sent["value"]) + RECORD_END.encode())
        self._process.stdin.flush()

    def end(self, how):
        if how == "abort":
            while self._process.poll() is None and not catches(self._process.pid, signal.SIGINT):
                time.sleep(0.01)  # It has just begun.
            self._process.send_signal(signal.SIGINT)
            # It looks at the signal between two records.
            time.sleep(0.2)
        _, said = self._process.communicate(timeout=TIMEOUT_SECONDS)
        if how == "commit" and (self._process.returncode or FAILED.search(said.decode())):
            raise self._failure(said)


def commands(program, common, settings, failure):
    """The commands; `settings` turns names into kcat's options, `failure` its words into errors."""
    members, transactions = {}, {}

    @atexit.register
    def end():
        # A cell that failed may have left members behind, and nobody else would end them.
        for member in members.values():
            member.kill()

    def member_open(
        bootstrap,
        member,
        group,
        topics=None,
        pattern=None,
        reset="earliest",
        instance=None,
        assignors=None,
        session_ms=10000,
        auto_commit=True,
        isolation="read_committed",
    ):
        options = settings(
            auto_offset_reset={"none": "error"}.get(reset, reset),
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=100,
            max_poll_interval_ms=TIMEOUT_SECONDS * 1000,
            enable_auto_commit=str(auto_commit).lower(),
            auto_commit_interval_ms=100,
            isolation_level=isolation,
            fetch_wait_max_ms=50,
            topic_metadata_refresh_interval_ms=500,
        )
        if instance is not None:
            options += settings(group_instance_id=instance)
        if assignors:
            options += settings(partition_assignment_strategy=",".join(assignors))
        wanted = [f"^{pattern}$"] if pattern else topics
        where = ["-u", "-f", FORMAT, "-G", group, *wanted]
        members[member] = Member([program, "-b", bootstrap, *common, *options, *where], failure)

    def member_state(bootstrap, member):
        seen = members[member]
        return {
            "assigned": list(seen.assigned),
            "records": list(seen.records),
            "errors": list(seen.errors),
            "rebalances": seen.rebalances,
        }

    def member_close(bootstrap, member):
        members.pop(member).close()

    def txn_open(bootstrap, producer, transactional_id, topic, timeout_ms=60000, codec="none"):
        options = settings(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            message_timeout_ms=min(timeout_ms, TIMEOUT_SECONDS * 1000),
            linger_ms=2,
        )
        where = ["-P", "-t", topic, "-p", "0", "-z", codec, "-D", RECORD_END]
        command = [program, "-b", bootstrap, *common, *options, *where]
        transactions[producer] = Transaction(command, failure)

    def txn_produce(bootstrap, producer, records):
        transactions[producer].write(records)

    def txn_commit(bootstrap, producer):
        if producer not in transactions:
            raise Refused(None, "no such transaction")
        transactions.pop(producer).end("commit")

    def txn_abort(bootstrap, producer):
        transactions.pop(producer).end("abort")

    served = [member_open, member_state, member_close, txn_open, txn_produce, txn_commit, txn_abort]
    return {f.__name__: f for f in served}
