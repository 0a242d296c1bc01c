"""`chronik cluster rebalance`, and how a node is drained: partitions move, and a person watches.

A plan is made from what the cluster tells, shown, and then asked for with Kafka's own requests.
Progress goes to stderr, so that stdout has the result alone. If the command is interrupted, what
moves already goes on moving; asked for again, it plans what is left.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from chronik.assignments import Racks, Replicas, TooFewNodes, drained, rebalanced
from chronik.cli.output import print_json, print_table
from chronik.cli.session import BOOTSTRAP_DEFAULT, TIMEOUT_S, Bootstrap, Json, Timeout, fail, run
from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.moves import (
    Held,
    elect_preferred,
    held_partitions,
    move,
    moving,
    throttled,
)
from chronik.model import TopicPartition

INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
SHOWN_MAX: Final = 50  # moves that a terminal shows; --json has all

Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle", min=1, metavar="BYTES", help="Move no faster than this a second, per node."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and do nothing.")]


def rebalance(
    dry_run: DryRun = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Spread replicas and leaders evenly over the nodes and their racks, with few moves."""

    async def work(cluster: Cluster) -> dict[str, Any]:
        admin = Admin(cluster)
        racks = await _racks(admin)
        if await moving(cluster):
            fail("partitions are moving: wait until that is over, or undo it first")
        held = await held_partitions(admin)
        current = {place: each.replicas for place, each in held.items()}
        try:
            plan = rebalanced(current, racks, await _gone(admin, current))
        except TooFewNodes as refused:
            fail(_too_few(refused, racks))
        shown = _summary(held, plan, racks)
        if not as_json:
            _print_plan(shown)
        if not dry_run:
            async with throttled(admin, racks, plan, throttle):
                await move(cluster, plan, _progress)
            shown["elected"] = await elect_preferred(cluster, current)
        return shown

    shown = run(bootstrap, timeout_s, work)
    if as_json:
        print_json({"applied": not dry_run, **shown})
    elif not dry_run:
        moved, elected = len(shown["moves"]), shown["elected"]
        typer.echo(f"moved {moved} partitions, elected {elected} leaders")


async def _racks(admin: Admin) -> dict[int, str | None]:
    """The nodes that may hold replicas: online, and not in maintenance."""
    quorum = await admin.describe_quorum()
    resting = {node.node_id for node in quorum.nodes if node.status not in ("", "online")}
    described = await admin.describe_cluster()
    return {
        node.broker_id: node.rack
        for node in described.brokers
        if not node.is_fenced and node.broker_id not in resting
    }


async def _gone(admin: Admin, current: Mapping[TopicPartition, Replicas]) -> set[int]:
    """Nodes that hold replicas and are not registered any more."""
    registered = {node.node_id for node in (await admin.describe_quorum()).nodes}
    return {each for replicas in current.values() for each in replicas} - registered


def _summary(
    held: Mapping[TopicPartition, Held], plan: Mapping[TopicPartition, Replicas], racks: Racks
) -> dict[str, Any]:
    before = {place: each.replicas for place, each in held.items()}
    after = before | dict(plan)
    node_ids = sorted({each for replicas in before.values() for each in replicas} | racks.keys())
    counts = [
        Counter(each for replicas in found.values() for each in replicas)
        for found in (before, after)
    ]
    led = [Counter(replicas[0] for replicas in found.values()) for found in (before, after)]
    return {
        "moves": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "from": list(before[place]),
                "to": list(replicas),
            }
            for place, replicas in plan.items()
        ],
        "nodes": [
            {
                "id": node_id,
                "replicas": counts[0][node_id],
                "replicas_after": counts[1][node_id],
                "preferred": led[0][node_id],
                "preferred_after": led[1][node_id],
            }
            for node_id in node_ids
        ],
    }


def _print_plan(shown: Mapping[str, Any]) -> None:
    moves = shown["moves"]
    if not moves:
        typer.echo("replicas are spread evenly")
        return
    rows = [
        (
            f"{each['topic']}-{each['partition']}",
            ",".join(map(str, each["from"])),
            ",".join(map(str, each["to"])),
        )
        for each in moves[:SHOWN_MAX]
    ]
    print_table(("PARTITION", "FROM", "TO"), rows)
    if len(moves) > SHOWN_MAX:
        typer.echo(f"and {len(moves) - SHOWN_MAX} more")
    names = ("id", "replicas", "replicas_after", "preferred", "preferred_after")
    columns = ("NODE", "REPLICAS", "AFTER", "LEADERS", "AFTER")
    print_table(columns, [[node[name] for name in names] for node in shown["nodes"]])


def _progress(done: int, total: int) -> None:
    typer.echo(f"moved {done} of {total} partitions", err=True)


def _too_few(refused: TooFewNodes, racks: Racks) -> str:
    first, count = next(iter(refused.partitions)), len(refused.partitions)
    return (
        f"{count} partition(s), such as {first}, have more replicas than there would be nodes "
        f"({len(racks)}): add a node first, or give their topics fewer replicas"
    )


async def drain(
    cluster: Cluster, node_id: int, bytes_per_s: int | None, *, may_lose_replicas: bool
) -> None:
    """Move all that a node holds to others, until nothing is left."""
    while plan := await plan_drain(cluster, node_id, may_lose_replicas=may_lose_replicas):
        async with throttled(Admin(cluster), sorted(cluster.brokers), plan, bytes_per_s):
            await move(cluster, plan, _progress)


async def plan_drain(
    cluster: Cluster, node_id: int, *, may_lose_replicas: bool
) -> dict[TopicPartition, Replicas]:
    """Where all that a node holds could go; a line and the end if there are too few others.

    Internal topics may have fewer replicas then, others only if that is accepted. What a node that
    is away alone has cannot be moved: whether that is a reason not to go on is asked later.
    """
    admin = Admin(cluster)
    racks = await _racks(admin)
    racks.pop(node_id, None)
    is_online = node_id in cluster.brokers
    current = {
        place: each.replicas
        for place, each in (await held_partitions(admin)).items()
        if node_id in each.replicas and (is_online or set(each.isr) - {node_id})
    }
    if not racks:
        return {}
    may_shrink = {place for place in current if may_lose_replicas or place.topic in INTERNAL_TOPICS}
    try:
        return drained(current, racks, node_id, may_shrink=may_shrink)
    except TooFewNodes as refused:
        fail(_too_few(refused, racks) + "; with --force they have fewer from then on")
