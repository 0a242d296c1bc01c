"""One worker of a chain: consume, transform and produce, each batch in a transaction.

A process of its own, made to be killed: `chain.py BOOTSTRAP SOURCE SINK GROUP WORKER PROTOCOL`.
It carries every record to the same partition of the sink and adds the sink's name to the value.

A batch counts only for the membership under which it was consumed. So the group metadata is taken
before consuming, and a batch during which it changed, or a rebalance was told, is given up: its
records are consumed again from the committed offsets. The rest is the broker's part: to refuse the
offsets of a member that is none any more (KIP-447).
"""

import os
import sys
import threading
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

BATCH_RECORDS = 2_000
CALL_TIMEOUT_S = 30.0  # a node may be killed several times while a call is retried
PATIENCE_S = 15.0  # much longer than a failover
LINK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    # A client that has lost its only node forgets it by default, and with it, for ever, the offsets
    # that it was about to send there (librdkafka 2.16).
    "metadata.recovery.strategy": "none",
    "log_level": 0,  # Every kill of the node would be news.
}


class Patience(threading.Thread):
    """Begins the process anew if its work stands still.

    librdkafka (2.16) waits for ever for a coordinator that was out of the metadata for a moment,
    whatever timeout it was given.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._since = time.monotonic()

    def renew(self) -> None:
        self._since = time.monotonic()

    def run(self) -> None:
        while time.monotonic() < self._since + PATIENCE_S:
            time.sleep(0.5)
        print("began anew: a call has not returned", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, *sys.argv])


class Worker:
    """A member of the group and its transactional producer."""

    def __init__(
        self,
        patience: Patience,
        bootstrap: str,
        source: str,
        sink: str,
        group: str,
        name: str,
        protocol: str,
    ) -> None:
        self._patience = patience
        self._source, self._sink = source, sink
        link = {**LINK, "bootstrap.servers": bootstrap, "client.id": name}
        self._producer = Producer(
            {
                **link,
                "transactional.id": name,
                "transaction.timeout.ms": 10_000,
                "linger.ms": 5,
                "message.timeout.ms": 9_000,
            }
        )
        membership = {"group.protocol": "consumer"}
        if protocol != "consumer":
            membership = {
                "partition.assignment.strategy": protocol,
                "session.timeout.ms": 2_000,
                "heartbeat.interval.ms": 300,
            }
        self._consumer = Consumer(
            {
                **link,
                **membership,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 10,
            }
        )
        self._outside = self._consumer.consumer_group_metadata()
        self._rebalanced = False

    def run(self) -> None:
        self._producer.init_transactions(CALL_TIMEOUT_S)
        told = self._told_of_a_rebalance
        self._consumer.subscribe([self._source], on_assign=told, on_revoke=told, on_lost=told)
        while True:
            self._patience.renew()
            membership = self._consumer.consumer_group_metadata()
            self._rebalanced = False
            messages = self._consumer.consume(BATCH_RECORDS, 0.05)
            records = [each for each in messages if each.error() is None]
            if not records:
                continue
            is_same = membership == self._consumer.consumer_group_metadata()
            if self._rebalanced or not is_same or membership == self._outside:
                self._rewind()
            else:
                self._carry(records, membership)

    def _told_of_a_rebalance(self, *_: object) -> None:
        self._rebalanced = True

    def _carry(self, records: list[Message], membership: object) -> None:
        try:
            self._producer.begin_transaction()
            for record in records:
                value = record.value()
                assert value is not None
                self._producer.produce(
                    self._sink, value + f" {self._sink}".encode(), partition=record.partition()
                )
                self._producer.poll(0)
            self._producer.send_offsets_to_transaction(
                _next_offsets(records), membership, CALL_TIMEOUT_S
            )
            self._commit()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            print("aborted:", error.args[0].str(), file=sys.stderr, flush=True)
            self._producer.abort_transaction(CALL_TIMEOUT_S)
            self._rewind()

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(CALL_TIMEOUT_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _rewind(self) -> None:
        """Go back to where the group stands."""
        mine = self._consumer.assignment()
        for each in self._consumer.committed(mine, CALL_TIMEOUT_S) if mine else ():
            if each.error is not None:
                raise KafkaException(each.error)
            self._consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))

    def close(self) -> None:
        self._consumer.close()


def _next_offsets(records: Iterable[Message]) -> list[TopicPartition]:
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        topic, partition, offset = record.topic(), record.partition(), record.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        ends[topic, partition] = offset + 1
    return [TopicPartition(*place, end) for place, end in ends.items()]


def main() -> None:
    patience = Patience()
    patience.start()
    while True:
        worker = Worker(patience, *sys.argv[1:])
        try:
            worker.run()
        except KafkaException as error:  # Fenced, or out of luck: begin anew, as a service does.
            print("began anew:", error.args[0], file=sys.stderr, flush=True)
            worker.close()


if __name__ == "__main__":
    main()
