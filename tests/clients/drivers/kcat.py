"""The kcat program (an old librdkafka) behind the commands of the matrix.

Each command is one or more runs of the binary, whose path is this driver's argument. kcat has no
admin client, sets no timestamps, and takes headers and "empty means null" for a whole run, so that
records which differ in those go through several runs, in order.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys

import kcat_groups
from driver import TIMEOUT_MS, TIMEOUT_SECONDS, Refused, enough, headers_of, record, serve, to_bytes

# No record of the suite contains these.
KEY_END, RECORD_END = "~key~", "~record~"
FORMAT = r"%o %T %K %S\n%h\n%k%s"
CODES = {
    "Offset out of range": 1,
    "Unknown topic or partition": 3,
    "Message size too large": 10,
    "Invalid topic": 17,
    "Invalid timestamp": 32,
    "Broker failed to validate record": 87,
    "Static consumer fenced": 82,
    "fenced by a newer": 90,
    "fenced": 90,
}


def settings(**values):
    pairs = (f"{name.replace('_', '.')}={value}" for name, value in values.items())
    return [part for pair in pairs for part in ("-X", pair)]


COMMON = settings(reconnect_backoff_ms=10, retry_backoff_ms=20)


def failure(output):
    """The error that kcat printed, with the number behind librdkafka's words."""
    text = output.decode(errors="replace").strip()
    return Refused(next((code for words, code in CODES.items() if words in text), None), text)


def run(bootstrap, *arguments, given=b""):
    command = [sys.argv[1], "-b", bootstrap, *COMMON, *arguments]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Refused(None, f"not done in {TIMEOUT_SECONDS} s: {error.stderr}") from None
    if done.returncode or b"Delivery failed" in done.stderr or b"ERROR" in done.stderr:
        raise failure(done.stderr)
    return done


def line(sent):
    key, value = to_bytes(sent.get("key")), to_bytes(sent.get("value"))
    return (b"" if key is None else key + KEY_END.encode()) + (value or b"")


def produce(
    bootstrap,
    topic,
    records,
    partition=0,
    codec="none",
    acks="all",
    idempotent=False,
    timeout_ms=TIMEOUT_MS,
):
    options = settings(
        acks=acks,
        enable_idempotence=str(idempotent).lower(),
        linger_ms=2,
        message_timeout_ms=timeout_ms,
        message_max_bytes=10000000,
    )
    offsets = []

    def alike(sent):
        return (headers_of(sent), sent.get("value") is None)

    for (headers, null), group in itertools.groupby(records, alike):
        flags = ["-Z"] if null else []
        for name, value in headers:
            flags += ["-H", name if value is None else f"{name}={value.decode()}"]
        given = RECORD_END.encode().join(line(sent) for sent in group) + RECORD_END.encode()
        where = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-v", "-v"]
        split = ["-D", RECORD_END, "-K", KEY_END]
        done = run(bootstrap, *where, *split, *flags, *options, given=given)
        offsets += [int(number) for number in re.findall(rb"\(offset (-?\d+)\)", done.stderr)]
    return enough(offsets, len(records))


def reading(topic, partition, start, count, reset, isolation="read_committed"):
    at = f"s@{start['timestamp']}" if isinstance(start, dict) else str(start)
    at = {"earliest": "beginning", "latest": "end"}.get(at, at)
    options = settings(
        fetch_wait_max_ms=100, topic_auto_offset_reset=reset, isolation_level=isolation
    )
    where = ["-C", "-t", topic, "-p", str(partition), "-o", at, "-c", str(count)]
    return [*where, "-u", "-f", FORMAT, *options]


def parsed(output):
    records = []
    while output:
        sizes, headers, output = output.split(b"\n", 2)
        offset, timestamp, key_bytes, value_bytes = map(int, sizes.split())
        key_end, value_end = max(key_bytes, 0), max(key_bytes, 0) + max(value_bytes, 0)
        key = None if key_bytes < 0 else output[:key_end]
        value = None if value_bytes < 0 else output[key_end:value_end]
        pairs = (pair.partition(b"=") for pair in headers.split(b",") if pair)
        named = [(name.decode(), None if data == b"NULL" else data) for name, _, data in pairs]
        records.append(record(offset, timestamp, key, value, named))
        output = output[value_end:]
    return records


def consume(bootstrap, topic, start, count, partition=0, reset="error", isolation="read_committed"):
    done = run(bootstrap, "-q", *reading(topic, partition, start, count, reset, isolation))
    return enough(parsed(done.stdout), count)


def follow(bootstrap, topic, records, partition=0):
    command = [sys.argv[1], "-b", bootstrap, *COMMON]
    command += reading(topic, partition, "latest", len(records), "error")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            # kcat says so once its fetcher stands at the end.
            for said in process.stderr:
                if b"Reached end" in said:
                    break
            produce(bootstrap, topic, records, partition)
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    return enough(parsed(output), len(records))


def offset(bootstrap, topic, at, partition=0):
    asked = {"earliest": -2, "latest": -1}.get(at, at)
    done = run(bootstrap, "-Q", "-t", f"{topic}:{partition}:{asked}")
    return int(re.search(rb"offset (-?\d+)", done.stdout)[1])


def listing(bootstrap):
    return json.loads(run(bootstrap, "-L", "-J").stdout)


def brokers(bootstrap):
    told = listing(bootstrap)["brokers"]
    addresses = ((broker["id"], *broker["name"].rsplit(":", 1)) for broker in told)
    return [[number, host, int(port)] for number, host, port in addresses]


def topics(bootstrap):
    return sorted(topic["topic"] for topic in listing(bootstrap)["topics"])


if __name__ == "__main__":
    commands = (produce, consume, follow, offset, brokers, topics)
    served = {command.__name__: command for command in commands}
    served.update(kcat_groups.commands(sys.argv[1], COMMON, settings, failure))
    serve(served, lambda error: None)
