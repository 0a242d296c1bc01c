"""A member that sleeps at the worst moment: `sleeper.py BOOTSTRAP GROUP TRANSACTIONAL_ID PROTOCOL`.

It consumes the first record, begins a transaction, writes, says so and waits for a line on stdin.
Meanwhile the test stops its process, for longer than its session. Awake again, it goes on as if
nothing had happened, and says what it was answered: one JSON object.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TIMEOUT_S = 20.0


def outcome(call: Callable[[], Any]) -> str:
    """The name of the error that a call ends with, or OK."""
    try:
        call()
    except KafkaException as error:
        return str(error.args[0].name())
    return "OK"


def main() -> None:
    bootstrap, group, transactional_id, protocol = sys.argv[1:]
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    membership = {"group.protocol": "consumer"}
    if protocol == "classic":
        membership = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 200}
    consumer = Consumer(
        settings
        | membership
        | {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["in"])
    producer = Producer(settings | {"transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None, message.error()
    producer.begin_transaction()
    producer.produce("out", b"of a zombie", partition=0)
    producer.flush(TIMEOUT_S)
    membership_then = consumer.consumer_group_metadata()
    print("holding", flush=True)
    sys.stdin.readline()
    offsets = [TopicPartition("in", 0, 1)]
    answers = {
        "commit": outcome(lambda: consumer.commit(offsets=offsets, asynchronous=False)),
        "send_offsets": outcome(
            lambda: producer.send_offsets_to_transaction(offsets, membership_then, TIMEOUT_S)
        ),
        "commit_transaction": outcome(lambda: producer.commit_transaction(TIMEOUT_S)),
        "abort_transaction": outcome(lambda: producer.abort_transaction(TIMEOUT_S)),
    }
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
