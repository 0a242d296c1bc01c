"""Three real processes in trouble, and stock producers with acks=all all along.

Nodes are killed -9, stopped and continued, restarted cleanly one after the other, cut off from each
other, and one of them has a full disk now and then; partitions get other replicas meanwhile.
Afterwards no acknowledged record is lost, none is there twice or out of its producer's order, and
all replicas hold the same batches.

It lasts `CHRONIK_TEST_MINUTES`; `make chaos` runs longer. `CHRONIK_TEST_SEED` plays the same faults
again, as far as processes do.
"""

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cluster_faults import EVERYBODY, Faults
from cluster_processes import ClusterProcesses, eventually
from confluent_kafka.admin import NewTopic
from link_proxies import HOST, LinkProxies
from replicated_topics import reassign
from replication_load import Load, check_records, check_replicas, read_back, tell_batch
from small_disks import on_small_disk, used_bytes

MINUTES = float(os.environ.get("CHRONIK_TEST_MINUTES", "0.5"))
SEED = int(os.environ.get("CHRONIK_TEST_SEED", "0")) or random.randrange(1, 1_000_000)
SMALL = 2  # the node whose disk is full at times
ROOMY = "2000000000"  # enough, and so little that some of it is reserved
TOPIC, IDLE = "load", "idle"
PARTITIONS = 4
PRODUCERS = 3
SETTLE_S = 60.0
REPLAY = (
    f"CHRONIK_TEST_SEED={SEED} CHRONIK_TEST_MINUTES={MINUTES:g} "
    "python -m pytest -s tests/chaos/test_replication.py"
)


class Troubles(Faults):
    """More that goes wrong: restarts, a full disk, and partitions that move meanwhile."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        links: LinkProxies,
        chance: random.Random,
        small_disk: Path,
    ) -> None:
        super().__init__(cluster, links, chance, stop_s_max=5, cut_s_max=5)
        self._small_disk = small_disk

    def kinds(self) -> list[Callable[[], None]]:
        return [*super().kinds(), self._restart, self._fill, self._move]

    def _restart(self) -> None:
        for node_id in self._chance.sample(EVERYBODY, self._chance.choice((1, 3))):
            self._cluster.stop(node_id)
            self._cluster.start(node_id)
            self._pause(0.5, 1.5)

    def _move(self) -> None:
        """Other replicas for some partitions, in another order, or one less for a while."""
        wanted = {
            index: self._chance.sample(EVERYBODY, self._chance.choice((2, 3, 3)))
            for index in range(PARTITIONS)
            if self._chance.random() < 0.5
        }
        reassign(self._cluster, self._chance.choice(EVERYBODY), TOPIC, wanted)
        self._pause(0, 2)

    def _fill(self) -> None:
        """The disk of one node is full, almost or altogether."""
        room = self._chance.choice((0, 0, 20_000_000))
        self._small_disk.write_text(str(used_bytes(self._cluster.data_dir(SMALL)) + room))
        self._pause(1, 6)
        if self._chance.random() < 0.3:
            self._cluster.kill(SMALL)
            self._small_disk.write_text(ROOMY)
            self._cluster.start(SMALL)
        else:
            self._small_disk.write_text(ROOMY)


@pytest.mark.timeout(MINUTES * 60 + 4 * SETTLE_S)
def test_no_acknowledged_record_is_lost_doubled_or_reordered(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    durability = chance.choice(("fsync", "replicated"))
    print(f"\n{REPLAY}\ndurability {durability}")
    cluster = ClusterProcesses(tmp_path, 3, "--durability", durability, "--log-level", "info")
    cluster.peers = cluster.peers_at(HOST)
    small_disk = tmp_path / "small_disk"
    small_disk.write_text(ROOMY)
    cluster.commands[SMALL] = on_small_disk(small_disk)
    try:
        with LinkProxies(cluster.internal) as links:
            cluster.start()
            cluster.wait_for(EVERYBODY)
            _run_and_check(cluster, Troubles(cluster, links, chance, small_disk), chance)
    except BaseException:
        print(f"failed; again: {REPLAY}\n{cluster.last_words()}")
        raise
    finally:
        cluster.kill()


def _run_and_check(cluster: ClusterProcesses, faults: Faults, chance: random.Random) -> None:
    admin = cluster.admin(1)
    for name in (TOPIC, IDLE):
        topic = NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[name].result(10)
    idle = Load(cluster.bootstrap, IDLE, "idle", PARTITIONS, pause_s=2.0)
    loads = [Load(cluster.bootstrap, TOPIC, f"p{i}", PARTITIONS) for i in range(PRODUCERS)]
    loads.append(idle)
    for load in loads:
        load.start()
    ends_s = time.monotonic() + MINUTES * 60
    while time.monotonic() < ends_s:
        faults.once()
        time.sleep(chance.uniform(0, 3))
    everywhere = dict.fromkeys(range(PARTITIONS), EVERYBODY)
    eventually(lambda: reassign(cluster, 1, TOPIC, everywhere), "moved back", SETTLE_S)
    settled_s = eventually(lambda: is_in_sync(cluster), "all replicas in sync", SETTLE_S)
    for load in loads:
        load.stop()
    found = {name: read_back(cluster.bootstrap, name, PARTITIONS) for name in (TOPIC, IDLE)}
    eventually(lambda: is_in_sync(cluster), "all replicas in sync", SETTLE_S)
    cluster.stop()
    acked = {value: place for load in loads[:-1] for value, place in load.acked.items()}
    gaps = sorted((gap for load in loads[:-1] for gap in load.gaps_s), reverse=True)
    print(f"faults {dict(faults.counts)}, in sync after {settled_s:.1f} s")
    print(f"{len(acked)} of {sum(load.sent for load in loads)} records acknowledged")
    print("longest gaps between acks:", ", ".join(f"{gap:.1f} s" for gap in gaps[:5]))
    assert [load.failed for load in loads] == [[]] * len(loads)
    assert [load.epochs[:4] for load in loads] == [[]] * len(loads)
    check_records(found[TOPIC], acked, partial(tell_batch, cluster.data_dir(1), TOPIC))
    check_records(found[IDLE], idle.acked)
    data_dirs = [cluster.data_dir(each) for each in EVERYBODY]
    batches = sum(check_replicas(data_dirs, name, PARTITIONS) for name in (TOPIC, IDLE))
    print(f"{batches} batches are the same on all replicas")
    assert len(acked) > 100, "the producers had no chance"


def is_in_sync(cluster: ClusterProcesses) -> bool:
    """Whether all nodes run and every replica is in sync, as each node tells."""
    for node_id in EVERYBODY:
        metadata = cluster.metadata(node_id)
        if metadata is None or sorted(metadata.brokers) != EVERYBODY:
            return False
        partitions = (
            each for name in (TOPIC, IDLE) for each in metadata.topics[name].partitions.values()
        )
        if any(sorted(each.isrs) != EVERYBODY for each in partitions):
            return False
    return True
