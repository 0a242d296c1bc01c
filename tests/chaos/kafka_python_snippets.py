"""The reports' own snippets, for kafka-python in its own environment. Prints JSON.

brokers HOST:PORT              what a client of 0.10 knows of the cluster
create HOST:PORT PREFIX COUNT  topics by the administrator, a hundred a request
send HOST:PORT TOPIC           one record to a topic that nobody has created; seconds to the ack
"""

import json
import sys
import time

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

BATCH = 100


def brokers(bootstrap):
    c = KafkaConsumer(bootstrap_servers=[bootstrap], api_version=(0, 10, 0))
    # This client is lazy: before it is asked for something it shows what it has not asked for.
    topics = c.topics()
    return {"cluster": str(c._client.cluster), "topics": sorted(topics)}


def create(bootstrap, prefix, count):
    # Without api_version, which it refuses below 0.10.1.
    admin = KafkaAdminClient(bootstrap_servers=[bootstrap], request_timeout_ms=60_000)
    names = [f"{prefix}-{number:04}" for number in range(int(count))]
    began = time.monotonic()
    for first in range(0, len(names), BATCH):
        admin.create_topics([NewTopic(name, 3, 3) for name in names[first : first + BATCH]])
    return {"created": len(names), "seconds": time.monotonic() - began}


def send(bootstrap, topic):
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    began = time.monotonic()
    producer.send(topic, b"Hello").get(timeout=20)
    return {"seconds": time.monotonic() - began}


COMMANDS = {"brokers": brokers, "create": create, "send": send}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
