"""A member of a group that is made to be killed: `member.py BOOTSTRAP TOPIC GROUP PROTOCOL FILE`.

It writes down each record that it has read, as `PARTITION OFFSET VALUE`, and commits afterwards:
what it did not write down is read again by somebody else.
"""

import sys

from confluent_kafka import Consumer, KafkaException

BATCH_RECORDS = 500


def main() -> None:
    bootstrap, topic, group, protocol, path = sys.argv[1:]
    membership = {"group.protocol": "consumer"}
    if protocol != "consumer":
        membership = {
            "partition.assignment.strategy": protocol,
            "session.timeout.ms": 2_000,
            "heartbeat.interval.ms": 300,
        }
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "metadata.recovery.strategy": "none",
            "log_level": 0,
            **membership,
        }
    )
    consumer.subscribe([topic])
    with open(path, "a", buffering=1) as found:
        while True:
            for message in consumer.consume(BATCH_RECORDS, 0.1):
                value = message.value()
                if message.error() is None and value is not None:
                    line = f"{message.partition()} {message.offset()} {value.decode()}\n"
                    found.write(line)
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                # Nothing read, or not its partitions any more: somebody reads them again.
                print("not committed:", error.args[0].str(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
