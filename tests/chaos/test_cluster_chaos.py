"""Three real processes in trouble, and a client that creates topics all along.

Nodes are killed -9, stopped and continued; links between them are cut, one way and both, silently
and by closing what was open. Afterwards every topic that was acknowledged is on every node, with
the id that the acknowledgement named: none was lost, and none was made twice.

It lasts `CHRONIK_TEST_MINUTES`; `make chaos` runs ten. `CHRONIK_TEST_SEED` plays the same faults
again, as far as processes do.
"""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_faults import EVERYBODY, Faults
from cluster_processes import ClusterProcesses, eventually
from link_proxies import HOST, LinkProxies
from wire import Wire

from chronik.protocol.apis import CREATE_TOPICS, METADATA
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.metadata import MetadataRequest
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

MINUTES = float(os.environ.get("CHRONIK_TEST_MINUTES", "0.4"))
SEED = int(os.environ.get("CHRONIK_TEST_SEED", "0")) or random.randrange(1, 1_000_000)
CREATE_VERSION, METADATA_VERSION = 7, 12
# What a client may be told while nodes die, and what it means for the topic.
CERTAINLY_NOT = {ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REPLICATION_FACTOR}
PERHAPS = {ErrorCode.REQUEST_TIMED_OUT}


class Creator:
    """Clients that create one topic after the other, each time on some node."""

    def __init__(self, cluster: ClusterProcesses, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(each,)) for each in range(2)]
        self.acked: dict[str, bytes] = {}
        self.outcomes: Counter[str] = Counter()

    def __enter__(self) -> "Creator":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        count = 0
        while not self._end.is_set():
            count += 1
            name = f"topic-{number}-{count}"
            # The same name again until it is known: a second try must not make a second topic.
            while not self._end.wait(0.02) and not self._create(name):
                pass

    def _create(self, name: str) -> bool:
        """Try once; whether the topic is known to exist."""
        topic = CreatableTopic(
            name=name, num_partitions=3, replication_factor=-1, assignments=(), configs=()
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=2_000)
        port = self._cluster.ports[self._chance.choice(EVERYBODY)]
        try:
            wire = Wire(f"127.0.0.1:{port}", 4.0)
        except OSError:
            self.outcomes["no connection"] += 1
            return False
        try:
            (result,) = wire.ask(CREATE_TOPICS, CREATE_VERSION, request).topics
        except OSError:
            self.outcomes["no answer"] += 1
            return False
        finally:
            wire.close()
        code = ErrorCode(result.error_code)
        self.outcomes[code.name] += 1
        if code is ErrorCode.NONE:
            assert name not in self.acked
            self.acked[name] = result.topic_id
        else:
            assert code in CERTAINLY_NOT | PERHAPS | {ErrorCode.TOPIC_ALREADY_EXISTS}, code
        return code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def catalog(cluster: ClusterProcesses, node_id: int) -> dict[str, bytes]:
    """All topics of a node, with their ids."""
    wire = Wire(f"127.0.0.1:{cluster.ports[node_id]}")
    try:
        answer: Any = wire.ask(METADATA, METADATA_VERSION, MetadataRequest(topics=None))
    finally:
        wire.close()
    names = [topic.name for topic in answer.topics]
    assert len(set(names)) == len(names), "a topic is listed twice"
    return {topic.name: topic.topic_id for topic in answer.topics}


@pytest.mark.timeout(MINUTES * 60 + 120)
def test_every_acknowledged_topic_is_on_every_node(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path)
    cluster.peers = cluster.peers_at(HOST)
    chance = random.Random(SEED)
    print(f"\nCHRONIK_TEST_SEED={SEED}, {MINUTES:g} minutes")
    try:
        with LinkProxies(cluster.internal) as links:
            cluster.start()
            cluster.wait_for(EVERYBODY)
            faults = Faults(cluster, links, chance, stop_s_max=4, cut_s_max=3)
            ends = time.monotonic() + MINUTES * 60
            with Creator(cluster, random.Random(SEED + 1)) as creator:
                while time.monotonic() < ends:
                    faults.once()
                    time.sleep(chance.uniform(0, 2))
                # Seconds; on a machine with other work a process alone may take longer to begin.
                settled_s = eventually(lambda: _is_settled(cluster), "all nodes are back", 60)
            cluster.wait_for(EVERYBODY)
            catalogs = [catalog(cluster, node_id) for node_id in EVERYBODY]
            print(f"{dict(faults.counts)}, all back after {settled_s:.1f} s")
            print(f"{len(creator.acked)} topics acknowledged, {dict(creator.outcomes)}")
    except BaseException:
        print(cluster.last_words())
        raise
    finally:
        cluster.kill()
    assert catalogs[0] == catalogs[1] == catalogs[2]
    lost = {name for name, topic_id in creator.acked.items() if catalogs[0].get(name) != topic_id}
    assert lost == set()
    assert len(set(catalogs[0].values())) == len(catalogs[0])
    assert len(creator.acked) > 5, "the client had no chance"


def _is_settled(cluster: ClusterProcesses) -> bool:
    return all(cluster.brokers(node_id) == EVERYBODY for node_id in EVERYBODY)
