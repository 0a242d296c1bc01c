"""What stock clients do to a cluster of processes: create topics, write, read."""

from typing import Any

from cluster_processes import ClusterProcesses, eventually
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic


def create(cluster: ClusterProcesses, node_id: int, *names: str, partitions: int = 3) -> None:
    """Create topics on one node."""
    admin = cluster.admin(node_id)  # Kept until all is done: it cancels what it is asked for.
    made = admin.create_topics([NewTopic(name, partitions, 1) for name in names])
    for future in made.values():
        future.result(30)


def write(cluster: ClusterProcesses, node_id: int, topic: str, values: list[str]) -> None:
    """Write these values, found by one node, and wait until each is acknowledged."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster.ports[node_id]}"})
    for value in values:
        producer.produce(
            topic, value, key=value, on_delivery=lambda error, _: error and errors.append(error)
        )
    assert producer.flush(30) == 0
    assert errors == []


def read(cluster: ClusterProcesses, topic: str, count: int, group: str = "g") -> list[str]:
    """So many values, in order, as a group reads them that goes on where it was."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= count

    eventually(enough, f"{count} records of {topic}", 30)
    consumer.close()
    return sorted(found)
